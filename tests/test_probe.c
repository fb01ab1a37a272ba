/* test_probe.c - folders are probed before a run: whether and how much can be written; the probe leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "train/run/probe.h"

static char probe_home[64];

static int probe_test_open_folder(void **state)
{
    (void)state;
    strcpy(probe_home, "test_probe.XXXXXX");
    assert_non_null(mkdtemp(probe_home));
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    return file_remove_tree(probe_home) == LS_OK ? 0 : -1;
}

static char *in(const char *name)
{
    char *path = file_path("%s/%s", probe_home, name);

    assert_non_null(path);
    return path;
}

static void created_folders_are_removed(void **state)
{
    static const char *const names[] = { "", "new", "new/deep/er", "new//slashes///", "./new/./x" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = in(names[i]);

        OK(probe_folder("run.dir", path));
        assert_int_equal(rmdir(probe_home), 0); /* it still exists, and is empty */
        assert_int_equal(mkdir(probe_home, 0777), 0);
        mem_free(path);
    }
}

static void existing_folders_stay(void **state)
{
    char *there = in("there"), *inner = in("there/empty"), *beyond = in("there/empty/a/b"), *file = in("there/file");

    (void)state;
    OK(file_make_folders(inner));
    OK(file_write(file, "kept", 4));
    OK(probe_folder("run.dir", there));
    OK(probe_folder("run.dir", beyond));
    assert_true(file_is_folder(inner));
    assert_int_equal(rmdir(inner), 0);  /* empty */
    assert_true(file_exists(file));
    mem_free(there);
    mem_free(inner);
    mem_free(beyond);
    mem_free(file);
}

static void relative_path_is_removed_too(void **state)
{
    char before[512];

    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(probe_home), 0);
    OK(probe_folder("run.dir", "a/b"));
    OK(probe_space("run.dir", "a/b", 1, "a file"));
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(probe_home), 0);
    assert_int_equal(mkdir(probe_home, 0777), 0);
}

static void file_in_the_way_is_named(void **state)
{
    char *file = in("file"), *path = in("file/checkpoints");

    (void)state;
    OK(file_write(file, "x", 1));
    REFUSED(LS_EIO, "checkpoint.dir: ", probe_folder("checkpoint.dir", path));
    REFUSED(LS_EIO, file, probe_folder("checkpoint.dir", path));
    REFUSED(LS_EIO, "checkpoint.dir: ", probe_folder("checkpoint.dir", file));
    assert_true(file_exists(file));
    mem_free(file);
    mem_free(path);
}

static void too_little_space_is_reported(void **state)
{
    char *path = in("not/there/yet");

    (void)state;
    OK(probe_space("checkpoint.dir", path, 0, "nothing"));
    OK(probe_space("checkpoint.dir", path, 1, "a byte"));
    REFUSED(LS_EIO, "not enough space for a checkpoint: ", probe_space("checkpoint.dir", path, SIZE_MAX / 2, "a checkpoint"));
    REFUSED(LS_EIO, " free", probe_space("checkpoint.dir", path, SIZE_MAX / 2, "a checkpoint"));
    assert_false(file_exists(path));
    mem_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(created_folders_are_removed, probe_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(existing_folders_stay, probe_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(relative_path_is_removed_too, probe_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(file_in_the_way_is_named, probe_test_open_folder, close_folder),
        cmocka_unit_test_setup_teardown(too_little_space_is_reported, probe_test_open_folder, close_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
