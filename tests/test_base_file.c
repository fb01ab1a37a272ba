/* test_base_file.c - files: reading, mapping, publishing; a full disk at every write; a process killed at every system call. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/faults/fault_points.h"

static char base_file_folder[64];  /* a fresh one for each test */

static int folder_set_up(void **state)
{
    (void)state;
    strcpy(base_file_folder, "base_file_XXXXXX");
    return mkdtemp(base_file_folder) ? 0 : -1;
}

static int folder_tear_down(void **state)
{
    (void)state;
    file_fail_at(0);
    mem_fail_at(0);
    return file_remove_tree(base_file_folder);
}

static const char *in(const char *name)
{
    static char paths[4][256];
    static int at;
    char *path = paths[at++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", base_file_folder, name);
    return path;
}

static void check_holds(const char *path, const char *wanted)
{
    char *text;
    size_t bytes;

    assert_int_equal(file_read(path, &text, &bytes), LS_OK);
    assert_int_equal(bytes, strlen(wanted));
    assert_string_equal(text, wanted);
    mem_free(text);
}

static void written_bytes_are_read_back(void **state)
{
    static const size_t sizes[] = { 0, 1, 65535, 65536, 65537, 262143, 262144, 262145, 1000000 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        unsigned char *data = mem_alloc(MEM_OTHER, sizes[i]);
        struct file_map map;
        char *text;
        size_t bytes;

        for (size_t j = 0; j < sizes[i]; j++) data[j] = (unsigned char)(j * 131 + i);
        assert_int_equal(file_write(in("f"), data, sizes[i]), LS_OK);
        assert_int_equal(file_read(in("f"), &text, &bytes), LS_OK);
        assert_int_equal(bytes, sizes[i]);
        assert_int_equal(text[bytes], '\0');
        assert_memory_equal(text, data, bytes);
        assert_int_equal(file_map_open(in("f"), &map), LS_OK);
        assert_int_equal(map.bytes, sizes[i]);
        if (sizes[i]) assert_memory_equal(map.data, data, sizes[i]);
        else assert_null(map.data);
        file_map_close(&map);
        assert_null(map.data);
        assert_int_equal(map.bytes, 0);
        mem_free(text);
        mem_free(data);
    }
    assert_false(file_exists(in("f.tmp")));
}

static void writes_of_any_size_add_up(void **state)
{
    char *text, all[5000];
    file_writer *w;
    size_t at = 0, bytes;
    char *big = mem_zalloc(MEM_OTHER, 700000);

    (void)state;
    for (size_t i = 0; i < sizeof all; i++) all[i] = (char)('a' + i % 23);
    assert_int_equal(file_writer_open(in("f"), &w), LS_OK);
    for (size_t part = 0; at + part <= sizeof all; at += part++) assert_int_equal(file_writer_put(w, all + at, part), LS_OK);
    assert_int_equal(file_writer_put(w, big, 700000), LS_OK);
    assert_int_equal(file_writer_put(w, "end", 3), LS_OK);
    assert_true(file_exists(in("f.tmp")));
    assert_false(file_exists(in("f")));
    assert_int_equal(file_writer_publish(&w), LS_OK);
    assert_null(w);
    assert_int_equal(file_read(in("f"), &text, &bytes), LS_OK);
    assert_int_equal(bytes, at + 700003);
    assert_memory_equal(text, all, at);
    assert_string_equal(text + bytes - 3, "end");
    mem_free(text);
    mem_free(big);
}

static void abandoned_write_keeps_old_file(void **state)
{
    file_writer *w;

    (void)state;
    assert_int_equal(file_write(in("f"), "old", 3), LS_OK);
    assert_int_equal(file_writer_open(in("f"), &w), LS_OK);
    assert_int_equal(file_writer_put(w, "new", 3), LS_OK);
    file_writer_abandon(&w);
    assert_null(w);
    file_writer_abandon(&w);
    check_holds(in("f"), "old");
    assert_false(file_exists(in("f.tmp")));
}

/* Writes `bytes` in parts that need several write(2), then publishes. */
static ls_status write_in_parts(const char *path, char fill, size_t bytes)
{
    char part[50000];
    file_writer *w;

    memset(part, fill, sizeof part);
    LS_TRY(file_writer_open(path, &w));
    for (size_t at = 0; at < bytes; at += MIN(sizeof part, bytes - at)) {
        ls_status st = file_writer_put(w, part, MIN(sizeof part, bytes - at));

        if (st != LS_OK) {
            file_writer_abandon(&w);
            return st;
        }
    }
    return file_writer_publish(&w);
}

/* The byte of which the complete old or new file consists; fails if bytes differ or the length does not belong to them. */
static char whole(const char *path, size_t old_bytes, size_t new_bytes)
{
    char *text;
    size_t bytes;

    assert_int_equal(file_read(path, &text, &bytes), LS_OK);
    char first = text[0];
    assert_int_equal(bytes, first == 'o' ? old_bytes : new_bytes);
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != first) fail_msg("a mixture at byte %zu", i);
    mem_free(text);
    return first;
}

static void full_disk_at_every_write(void **state)
{
    int64_t nth = 1;

    (void)state;
    assert_int_equal(write_in_parts(in("f"), 'o', 1000), LS_OK);
    for (;; nth++) {
        file_fail_at(nth);
        ls_status st = write_in_parts(in("f"), 'n', 900000);
        file_fail_at(0);
        assert_false(file_exists(in("f.tmp")));
        if (st == LS_OK) break;
        assert_int_equal(st, LS_EIO);
        assert_non_null(strstr(ls_errmsg(), "f.tmp: cannot write"));
        assert_non_null(strstr(ls_errmsg(), "No space left on device"));
        assert_int_equal(whole(in("f"), 1000, 900000), 'o');
    }
    assert_true(nth > 3);
    assert_int_equal(whole(in("f"), 1000, 900000), 'n');
}

static void failed_write_is_not_published(void **state)
{
    char *big = mem_zalloc(MEM_OTHER, 300000);
    file_writer *w;

    (void)state;
    assert_int_equal(file_writer_open(in("f"), &w), LS_OK);
    file_fail_at(1);
    assert_int_equal(file_writer_put(w, big, 300000), LS_EIO);
    assert_int_equal(file_writer_put(w, "x", 1), LS_EIO);
    assert_int_equal(file_writer_publish(&w), LS_EIO);
    assert_null(w);
    assert_false(file_exists(in("f")));
    assert_false(file_exists(in("f.tmp")));
    mem_free(big);
}

static void file_calls_fail_cleanly_without_memory(void **state)
{
    int64_t nth = 1;

    (void)state;
    for (ls_status st = LS_ENOMEM; st != LS_OK; nth++) {
        mem_fail_at(nth);
        st = write_in_parts(in("f"), 'n', 100);
        mem_fail_at(0);
        if (st == LS_OK) break;
        assert_false(file_exists(in("f")));
        assert_false(file_exists(in("f.tmp")));
        assert_int_equal(st, LS_ENOMEM);
    }
    assert_true(nth > 3);
    for (nth = 1;; nth++) {
        char *text;

        mem_fail_at(nth);
        ls_status st = file_read(in("f"), &text, NULL);
        mem_fail_at(0);
        if (st == LS_OK) {
            mem_free(text);
            break;
        }
        assert_int_equal(st, LS_ENOMEM);
    }
    assert_true(nth > 1);
}

/* SIGXFSZ kills the writer at the write that crosses `most` bytes: a kill inside the data. */
static void kill_at_any_size_leaves_old_or_new(void **state)
{
    (void)state;
    assert_int_equal(write_in_parts(in("f"), 'o', 1000), LS_OK);
    for (size_t most = 0; most <= 600000; most += 60000) {
        const char *path = in("f");
        pid_t child = fork();
        int status;

        if (child == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){ most, most });
            signal(SIGXFSZ, SIG_DFL);
            _exit(write_in_parts(path, 'n', 600000) != LS_OK);
        }
        waitpid(child, &status, 0);
        char holds = whole(in("f"), 1000, 600000);
        if (WIFSIGNALED(status)) assert_int_equal(holds, 'o');
        else assert_true(WEXITSTATUS(status) == 0 && holds == 'n');
    }
    assert_int_equal(whole(in("f"), 1000, 600000), 'n');
}

static void traced_writer(const char *path)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(2);
    raise(SIGSTOP);
    _exit(write_in_parts(path, 'n', 300000) != LS_OK);
}

/* Runs a writer and kills it at its nth stop (entry or return of a system call). 1: it was killed, 0: it ended before,
 * -1: this system does not permit tracing. */
static int kill_at_stop(const char *path, int nth)
{
    int status;
    pid_t child = fork();

    if (child == 0) traced_writer(path);
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status) == 2 ? -1 : 0;
    for (int stop = 0; stop < nth; stop++) {
        ptrace(PTRACE_SYSCALL, child, NULL, NULL);
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            return 0;
        }
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return 1;
}

static void kill_at_every_system_call_leaves_old_or_new(void **state)
{
    int died = 1, nth = 1, old = 0, new = 0;

    (void)state;
    assert_int_equal(write_in_parts(in("f"), 'o', 1000), LS_OK);
    for (; died == 1; nth++) {
        died = kill_at_stop(in("f"), nth);
        if (died < 0) skip();
        *(whole(in("f"), 1000, 300000) == 'o' ? &old : &new) += 1;
    }
    assert_true(old >= 10);  /* open, write, write, fsync, close, rename: entry and return of each at least */
    assert_true(new >= 2);   /* after the rename: fsync of the folder */
    assert_false(file_exists(in("f.tmp")));
}

static void folders_are_made_and_removed(void **state)
{
    (void)state;
    assert_int_equal(file_make_folders(in("a/b/c")), LS_OK);
    assert_int_equal(file_make_folders(in("a/b/c")), LS_OK);
    assert_int_equal(file_make_folders(in("a//b/d/")), LS_OK);
    assert_true(file_is_folder(in("a/b/c")));
    assert_true(file_is_folder(in("a/b/d")));
    assert_int_equal(file_write(in("a/b/c/f"), "x", 1), LS_OK);
    assert_int_equal(symlink(base_file_folder, in("a/link")), 0);
    assert_false(file_is_folder(in("a/b/c/f")));
    assert_int_equal(file_make_folders(in("a/b/c/f/g")), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "a/b/c/f"));
    assert_int_equal(file_write(in("kept"), "x", 1), LS_OK);
    assert_int_equal(file_remove_tree(in("a")), LS_OK);
    assert_false(file_exists(in("a")));
    assert_true(file_exists(in("kept")));  /* links are removed, not followed */
    assert_int_equal(file_remove_tree(in("a")), LS_OK);
    assert_int_equal(file_remove_tree(in("kept")), LS_OK);
    assert_false(file_exists(in("kept")));
}

static void folders_are_published(void **state)
{
    (void)state;
    assert_int_equal(file_make_folders(in("step.tmp")), LS_OK);
    assert_int_equal(file_write(in("step.tmp/part"), "x", 1), LS_OK);
    assert_int_equal(file_publish_folder(in("step.tmp"), in("step")), LS_OK);
    check_holds(in("step/part"), "x");
    assert_false(file_exists(in("step.tmp")));
    assert_int_equal(file_publish_folder(in("step.tmp"), in("step")), LS_EIO);
    assert_int_equal(file_make_folders(in("step.tmp")), LS_OK);
    assert_int_equal(file_publish_folder(in("step.tmp"), in("step")), LS_EIO);  /* there is one already */
    check_holds(in("step/part"), "x");
}

static void failures_name_the_path(void **state)
{
    struct file_map map = { 0 };
    char *text = NULL;
    file_writer *w = NULL;

    (void)state;
    assert_int_equal(file_read(in("none"), &text, NULL), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "/none: cannot open: No such file"));
    assert_int_equal(file_read(base_file_folder, &text, NULL), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "Is a directory"));
    assert_int_equal(file_map_open(in("none"), &map), LS_EIO);
    assert_int_equal(file_map_open(base_file_folder, &map), LS_EIO);
    assert_int_equal(file_map_open("/dev/null", &map), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "/dev/null: not a regular file, but a folder, a device or a pipe; use a file"));
    assert_int_equal(file_writer_open(in("none/f"), &w), LS_EIO);
    assert_non_null(strstr(ls_errmsg(), "none/f.tmp: cannot create"));
    assert_int_equal(file_make_folders("/dev/null/x"), LS_EIO);
    assert_null(text);
    assert_null(map.data);
    assert_null(w);
}

/* A .tmp that is a link must not redirect the writer; one left by a crash is replaced. */
static void leftovers_are_replaced_not_followed(void **state)
{
    file_writer *w = NULL;

    (void)state;
    assert_int_equal(file_write(in("victim"), "safe", 4), LS_OK);
    assert_int_equal(symlink("victim", in("f.tmp")), 0);
    assert_int_equal(file_writer_open(in("f"), &w), LS_EIO);
    check_holds(in("victim"), "safe");
    assert_int_equal(file_write(in("g.tmp"), "a longer leftover", 17), LS_OK);
    assert_int_equal(file_write(in("g"), "new", 3), LS_OK);
    check_holds(in("g"), "new");
}

static void files_without_a_size_are_read(void **state)
{
    char *text;
    size_t bytes;

    (void)state;
    assert_int_equal(file_read("/proc/self/status", &text, &bytes), LS_OK);
    assert_true(bytes > 100);
    assert_int_equal(strlen(text), bytes);
    assert_memory_equal(text, "Name:", 5);
    mem_free(text);
}

static void paths_are_joined_and_split(void **state)
{
    static const char *const bad[] = { "", ".", "..", "a/b", "/", "a\n", "\x7f", "\x01" };
    static const char *const good[] = { "a", "...", ".hidden", "a b", "model-00001.safetensors", "\xc3\xa9" };
    char *path = file_path("%s/%08d", "steps", 42);

    (void)state;
    assert_string_equal(path, "steps/00000042");
    mem_free(path);
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_false(file_is_basename(bad[i]));
    for (size_t i = 0; i < COUNT_OF(good); i++) assert_true(file_is_basename(good[i]));
    assert_int_equal(chdir(base_file_folder), 0);
    assert_int_equal(file_write("bare", "x", 1), LS_OK);  /* a path without a folder */
    check_holds("bare", "x");
    assert_int_equal(chdir(".."), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, folder_set_up, folder_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(written_bytes_are_read_back),       TEST(writes_of_any_size_add_up),
        TEST(abandoned_write_keeps_old_file), TEST(full_disk_at_every_write),
        TEST(failed_write_is_not_published), TEST(file_calls_fail_cleanly_without_memory),
        TEST(kill_at_any_size_leaves_old_or_new),             TEST(kill_at_every_system_call_leaves_old_or_new),
        TEST(folders_are_made_and_removed),  TEST(folders_are_published),
        TEST(failures_name_the_path),        TEST(leftovers_are_replaced_not_followed),
        TEST(files_without_a_size_are_read), TEST(paths_are_joined_and_split),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
