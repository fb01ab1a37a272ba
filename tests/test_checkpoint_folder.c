/* test_checkpoint_folder.c - a folder of checkpoints: listing, finding, pruning; what is left if a save fails or is killed at any point. */
#include "helper_checkpoint.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/faults/fault_points.h"

enum { BOTH = LS_LOAD_OPTIMIZER };

static ls_status try_save(const ls_store *s, uint64_t step)
{
    ls_train_state state = small_state(step);

    OK(file_write(scratch("tokenizer.json"), "{}", 2));
    return ls_checkpoint_save(scratch("ck"), s, NULL, &state, (const char *[]){ scratch("tokenizer.json"), NULL });
}

static void checkpoint_folder_test_save(const ls_store *s, uint64_t step) { OK(try_save(s, step)); }

static void damage(const char *path, const char *how)
{
    char *text;
    size_t bytes;

    if (strcmp(how, "missing") == 0) {
        OK(file_remove_tree(path));
        return;
    }
    OK(file_read(path, &text, &bytes));
    if (strcmp(how, "truncate") == 0)
        bytes--;
    else
        text[bytes / 2] ^= 1;
    OK(file_write(path, text, bytes));
    mem_free(text);
}

static void check_latest(const char *want)
{
    char *path = NULL;

    OK(ls_checkpoint_latest(scratch("ck"), &path));
    if (want)
        assert_string_equal(path, want);
    else
        assert_null(path);
    ls_free(path);
}

static void check_steps(size_t n, const uint64_t *want)
{
    uint64_t *steps;
    size_t count;

    OK(ls_checkpoint_list(scratch("ck"), &steps, &count));
    assert_int_equal(count, n);
    assert_memory_equal(steps, want, n * sizeof *want);
    ls_free(steps);
}

static void latest_complete_checkpoint_is_found(void **state)
{
    ls_store *s = small_store(LS_F32, 0, "m");
    char *path;

    (void)state;
    log_set_console(LOG_ERROR);
    check_latest(NULL);
    check_steps(0, NULL);
    for (uint64_t step = 98; step <= 102; step++)
        checkpoint_folder_test_save(s, step);
    checkpoint_folder_test_save(s, 100000000);
    OK(file_make_folders(scratch("ck/step_103"))); /* names that are not ours */
    OK(file_make_folders(scratch("ck/step_00000104.tmp")));
    OK(file_make_folders(scratch("ck/step_00000105x")));
    check_steps(6, (uint64_t[]){ 98, 99, 100, 101, 102, 100000000 });
    check_latest(scratch("ck/step_100000000"));
    damage(scratch("ck/step_100000000/manifest.json"), "flip");
    check_latest(scratch("ck/step_00000102"));
    damage(scratch("ck/step_00000102/parameters_0000_of_0001.safetensors"), "truncate");
    check_latest(scratch("ck/step_00000101"));
    damage(scratch("ck/step_00000101/optimizer_0000_of_0001.safetensors"), "missing");
    check_latest(scratch("ck/step_00000100"));
    damage(scratch("ck/step_00000100/manifest.json"), "truncate");
    check_latest(scratch("ck/step_00000099"));
    OK(ls_checkpoint_resolve(scratch("ck/step_00000098"), &path));
    assert_string_equal(path, scratch("ck/step_00000098"));
    ls_free(path);
    OK(file_make_folders(scratch("run")));
    assert_int_equal(rename(scratch("ck"), scratch("run/checkpoints")), 0);
    OK(ls_checkpoint_resolve(scratch("run"), &path));
    assert_string_equal(path, scratch("run/checkpoints/step_00000099"));
    ls_free(path);
    OK(ls_checkpoint_resolve(scratch("run/checkpoints"), &path));
    ls_free(path);
    REFUSED(LS_EINVAL, "no checkpoint here", ls_checkpoint_resolve(scratch("run/checkpoints/step_103"), &path));
    REFUSED(LS_EINVAL, "no checkpoint here", ls_checkpoint_resolve(scratch("nowhere"), &path));
    damage(scratch("run/checkpoints/step_00000098/manifest.json"), "missing");
    damage(scratch("run/checkpoints/step_00000099/manifest.json"), "missing");
    REFUSED(LS_EFORMAT, "all of its 6 checkpoints are damaged", ls_checkpoint_latest(scratch("run/checkpoints"), &path));
    log_set_console(LOG_WARN);
    ls_store_release(&s);
}

static void old_checkpoints_are_pruned(void **state)
{
    ls_store *s = small_store(LS_F32, 0, NULL);

    (void)state;
    for (uint64_t step = 1; step <= 6; step++)
        checkpoint_folder_test_save(s, step);
    damage(scratch("ck/step_00000005/manifest.json"), "flip");
    damage(scratch("ck/step_00000002/manifest.json"), "flip");
    REFUSED(LS_EINVAL, "at least one", ls_checkpoint_prune(scratch("ck"), 0));
    OK(ls_checkpoint_prune(scratch("ck"), 9));
    check_steps(6, (uint64_t[]){ 1, 2, 3, 4, 5, 6 });
    OK(ls_checkpoint_prune(scratch("ck"), 3));
    check_steps(4, (uint64_t[]){ 3, 4, 5, 6 });
    OK(ls_checkpoint_prune(scratch("ck"), 1));
    check_steps(1, (uint64_t[]){ 6 });
    OK(ls_checkpoint_prune(scratch("nowhere"), 1));
    ls_store_release(&s);
}

/* What an interruption may leave: incomplete folders are removed, a checkpoint that was moved aside counts and is put back. */
static void temporary_folders_are_removed(void **state)
{
    ls_store *s = small_store(LS_F32, 0, NULL);

    (void)state;
    checkpoint_folder_test_save(s, 1);
    checkpoint_folder_test_save(s, 2);
    OK(file_make_folders(scratch("ck/step_00000003.tmp/x")));
    assert_int_equal(rename(scratch("ck/step_00000002"), scratch("ck/step_00000002.old")), 0);
    check_latest(scratch("ck/step_00000002.old"));
    checkpoint_folder_test_save(s, 4);
    check_steps(3, (uint64_t[]){ 1, 2, 4 });
    assert_false(file_exists(scratch("ck/step_00000002.old")));
    assert_false(file_exists(scratch("ck/step_00000003.tmp")));
    OK(file_make_folders(scratch("ck/step_00000002.old/x")));
    checkpoint_folder_test_save(s, 4);
    assert_false(file_exists(scratch("ck/step_00000002.old")));
    check_steps(3, (uint64_t[]){ 1, 2, 4 });
    OK(ls_checkpoint_verify(scratch("ck/step_00000002")));
    ls_store_release(&s);
}

/* ---- faults ---- */

/* The checkpoint at this step is whole and holds exactly what s does. */
static void check_holds(uint64_t step, const ls_store *s, ls_store *room)
{
    char name[64];

    snprintf(name, sizeof name, "ck/step_%08llu", (unsigned long long)step);
    small_fill(room, 77);
    OK(ls_checkpoint_load(scratch(name), room, BOTH, NULL));
    assert_true(small_same(s, room));
}

/* A failing save leaves the old checkpoints and nothing else. */
static void check_untouched(const ls_store *old, ls_store *room)
{
    check_steps(1, (uint64_t[]){ 1 });
    assert_false(file_exists(scratch("ck/step_00000001.old")));
    assert_false(file_exists(scratch("ck/step_00000001.tmp")));
    assert_false(file_exists(scratch("ck/step_00000002.tmp")));
    check_holds(1, old, room);
}

static void save_fails_cleanly_on_full_disk(void **state)
{
    ls_store *old = small_store(LS_BF16, 1, "m v"), *new = small_store(LS_BF16, 1, "m v"),
             *room = small_store(LS_BF16, 1, "m v");
    ls_train_state st[2] = { small_state(2), small_state(1) };  /* a new step, and one in place of the old */
    const char *files[] = { strdup(scratch("tokenizer.json")), NULL };

    (void)state;
    small_fill(old, 1);
    small_fill(new, 2);
    checkpoint_folder_test_save(old, 1);
    for (int i = 0; i < 2; i++) {
        int failures = 0;

        for (int nth = 1;; nth++, failures++) {
            file_fail_at(nth);
            ls_status result = ls_checkpoint_save(scratch("ck"), new, NULL, &st[i], files);
            file_fail_at(0);
            if (result == LS_OK)
                break;
            assert_int_equal(result, LS_EIO);
            assert_non_null(strstr(ls_errmsg(), "No space left"));
            check_untouched(old, room);
        }
        assert_true(failures >= 4);  /* two shards, the tokenizer, the manifest */
        check_holds(st[i].step, new, room);
        OK(file_remove_tree(scratch("ck/step_00000002")));
    }
    free((char *)files[0]);
    ls_store_release(&old);
    ls_store_release(&new);
    ls_store_release(&room);
}

static size_t held(void)
{
    struct mem_stats m;

    mem_read(&m);
    return m.total_now;
}

/* fn fails with LS_ENOMEM and without a leak until all of its allocations succeed. */
static int fail_every_allocation(ls_status (*fn)(void *ctx), void *ctx, void (*check)(void *ctx))
{
    size_t before = held();
    int nth = 1;

    for (;; nth++) {
        mem_fail_at(nth);
        ls_status st = fn(ctx);
        mem_fail_at(0);
        if (st == LS_OK)
            return nth - 1;
        if (st != LS_ENOMEM)
            fail_msg("allocation %d: status %d: %s", nth, (int)st, ls_errmsg());
        assert_int_equal(held(), before);
        if (check)
            check(ctx);
    }
}

struct stores { ls_store *old, *new, *room; };

static ls_status save_new(void *ctx)
{
    ls_train_state st = small_state(2);
    const char *files[] = { "tokenizer_of_the_test.json", NULL };

    return ls_checkpoint_save(scratch("ck"), ((struct stores *)ctx)->new, NULL, &st, files);
}

static void old_is_there(void *ctx)
{
    struct stores *s = ctx;

    check_untouched(s->old, s->room);
}

static ls_status load_it(void *ctx)
{
    return ls_checkpoint_load(scratch("ck/step_00000001"), ((struct stores *)ctx)->room, BOTH, NULL);
}

static ls_status find_it(void *ctx)
{
    char *path;
    ls_status st = ls_checkpoint_resolve(scratch("ck"), &path);

    (void)ctx;
    if (st == LS_OK)
        ls_free(path);
    return st;
}

static ls_status list_them(void *ctx)
{
    uint64_t *steps;
    size_t count;
    ls_status st = ls_checkpoint_list(scratch("ck"), &steps, &count);

    (void)ctx;
    if (st == LS_OK)
        ls_free(steps);
    return st;
}

static ls_status prune_them(void *ctx)
{
    (void)ctx;
    return ls_checkpoint_prune(scratch("ck"), 1);
}

static void save_and_load_fail_cleanly_without_memory(void **state)
{
    struct stores s = { small_store(LS_F32, 0, "m"), small_store(LS_F32, 0, "m"), small_store(LS_F32, 0, "m") };

    (void)state;
    small_fill(s.old, 1);
    small_fill(s.new, 2);
    checkpoint_folder_test_save(s.old, 1);
    OK(file_write("tokenizer_of_the_test.json", "{}", 2));
    assert_true(fail_every_allocation(save_new, &s, old_is_there) > 20);
    OK(file_remove_tree("tokenizer_of_the_test.json"));
    assert_true(fail_every_allocation(load_it, &s, NULL) > 20);
    assert_true(fail_every_allocation(find_it, &s, NULL) > 5);
    assert_true(fail_every_allocation(list_them, &s, NULL) >= 2);
    assert_true(fail_every_allocation(prune_them, &s, NULL) >= 2);
    check_steps(1, (uint64_t[]){ 2 });
    ls_store_release(&s.old);
    ls_store_release(&s.new);
    ls_store_release(&s.room);
}

/* ---- death ---- */

/* Saves in a process that is killed at its nth stop (entry or return of a system call). 1: it died, 0: it came through,
 * -1: this system does not permit tracing. */
static int save_and_kill(const ls_store *s, uint64_t step, int nth)
{
    ls_train_state st = small_state(step);
    const char *files[] = { scratch("tokenizer.json"), NULL };
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(2);
        raise(SIGSTOP);
        _exit(ls_checkpoint_save(scratch("ck"), s, NULL, &st, files) != LS_OK);
    }
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status))
        return -1;
    for (int i = 0; i < nth; i++) {
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

/* The latest checkpoint is the old one or the new one, whole; never a mixture. */
static int which_is_there(const struct stores *s)
{
    char *path;

    OK(ls_checkpoint_latest(scratch("ck"), &path));
    assert_non_null(path);
    small_fill(s->room, 77);
    OK(ls_checkpoint_load(path, s->room, BOTH, NULL));
    ls_free(path);
    if (small_same(s->room, s->old))
        return 0;
    assert_true(small_same(s->room, s->new));
    return 1;
}

static void kill_at_every_system_call_leaves_old_or_new(void **state)
{
    static const uint64_t steps[2] = { 2, 1 };  /* the new one beside the old one, and in its place */
    struct stores s = { small_store(LS_F32, 0, "m"), small_store(LS_F32, 0, "m"), small_store(LS_F32, 0, "m") };

    (void)state;
    small_fill(s.old, 1);
    small_fill(s.new, 2);
    for (int i = 0; i < 2; i++) {
        int died = 1, seen[2] = { 0, 0 };

        for (int nth = 2; died == 1; nth += 2) { /* the return of each call: the next one's entry finds the same disk */
            OK(file_remove_tree(scratch("ck")));
            checkpoint_folder_test_save(s.old, 1);
            died = save_and_kill(s.new, steps[i], nth);
            if (died < 0)
                skip();
            seen[which_is_there(&s)]++;
            checkpoint_folder_test_save(s.new, steps[i]); /* the next save succeeds, and removes leftovers */
            assert_int_equal(which_is_there(&s), 1);
            assert_false(file_exists(scratch("ck/step_00000001.old")));
            assert_false(file_exists(scratch("ck/step_00000002.tmp")));
        }
        assert_true(seen[0] >= 20 && seen[1] >= 2);
    }
    ls_store_release(&s.old);
    ls_store_release(&s.new);
    ls_store_release(&s.room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(latest_complete_checkpoint_is_found, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(old_checkpoints_are_pruned, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(temporary_folders_are_removed, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(save_fails_cleanly_on_full_disk, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(save_and_load_fail_cleanly_without_memory, scratch_set_up, scratch_tear_down),
        cmocka_unit_test_setup_teardown(kill_at_every_system_call_leaves_old_or_new, scratch_set_up, scratch_tear_down),
    };

    return cmocka_run_group_tests_name("checkpoint folders", tests, NULL, NULL);
}
