/* test_onednn_threads.c - oneDNN's kernels in other teams, inside tasks of a team and in forked children; when the module is loaded.
 *
 * With the argument "absent" it is run by test_onednn_module.sh from a folder without the module, or with one that cannot be used.
 */
#include "helper_onednn.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/base.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/module.h"
#include "base/threads.h"
#include "device/device.h"
#include "kernels/cpu/onednn_load.h"

#if defined(__SANITIZE_THREAD__)
#define ONEDNN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ONEDNN_TSAN 1
#endif
#endif

#ifdef ONEDNN_TSAN  /* it ends a forked child that starts threads */
enum { CHILD_THREADS = 1 };
#else
enum { CHILD_THREADS = 3 };
#endif

static const ls_dtype types[] = { LS_F32, LS_BF16 };

static int process_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *e;
    int n = 0;

    assert_non_null(tasks);
    while ((e = readdir(tasks)))
        n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

static void *run_and_count(void *ctx)
{
    struct call *c = ctx;
    int before = process_threads();

    kernel_named(c->op, "onednn")->run(c);
    return process_threads() > before ? c : NULL;
}

static void run_in_task(void *ctx, size_t begin, size_t end, int thread)
{
    (void)end;
    (void)thread;
    if (begin == 0)
        assert_null(run_and_count(ctx));
}

/* Packed weights, prepared for three threads and run once; the caller frees *want, the result. */
static void prepared(struct kernel_case *c, void **want)
{
    struct gemm_case p = { OP_LINEAR_DX, 2300, 70, 90, LS_F32, LS_F32, false };

    onednn_open(c, &p);
    const struct kernel *k = onednn_row(&c->call);
    assert_non_null(k);
    size_t bytes = view_bytes(&c->call.out[0]);
    *want = malloc(bytes);
    assert_non_null(*want);
    c->call.scratch = mem_alloc(MEM_OTHER, k->scratch(&c->call));
    assert_int_equal(k->prepare(&c->call), LS_OK);
    k->run(&c->call);
    memcpy(*want, c->call.out[0].data, bytes);
    memset(c->call.out[0].data, 0xff, bytes);
}

static void released(struct kernel_case *c, void *want)
{
    kernel_named(c->call.op, "onednn")->release(&c->call);
    mem_free(c->call.scratch);
    free(want);
    onednn_close(c);
}

/* Run with the team at one, in a thread that has no team yet, and inside a task of the team: the same bits, and no thread is started. */
static void test_other_teams(void **state)
{
    struct kernel_case c;
    void *want, *grew;
    pthread_t thread;

    (void)state;
    prepared(&c, &want);
    size_t bytes = view_bytes(&c.call.out[0]);
    threads_set(1);
    assert_int_equal(pthread_create(&thread, NULL, run_and_count, &c.call), 0);
    pthread_join(thread, &grew);
    assert_null(grew);
    assert_memory_equal(c.call.out[0].data, want, bytes);
    threads_set(3);
    memset(c.call.out[0].data, 0xff, bytes);
    threads_each(3, 1, run_in_task, &c.call);
    assert_memory_equal(c.call.out[0].data, want, bytes);
    released(&c, want);
}

/* A child of a process in which oneDNN had a team computes, instead of waiting for threads that it does not have. */
static void forked_child_computes(void **state)
{
    struct kernel_case c;
    void *want;
    int status;

    (void)state;
    prepared(&c, &want);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        log_set_console(LOG_ERROR);
        threads_set(CHILD_THREADS);
        kernel_named(c.call.op, "onednn")->run(&c.call);
        _exit(memcmp(c.call.out[0].data, want, view_bytes(&c.call.out[0])) != 0);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    released(&c, want);
}

static bool module_is_loaded(void)
{
    char path[4200];

    assert_true(module_find("onednn", path, sizeof path));
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (handle)
        dlclose(handle);
    return handle != NULL;
}

/* Choosing among the rows does not load oneDNN where our own take the call; asking one of its rows does, and keeps libgomp from spinning.
 */
static void module_is_loaded_when_asked(void **state)
{
    struct gemm_case p = { OP_LINEAR, 8, 16, 8, LS_F32, LS_F32, false };

    (void)state;
    unsetenv("OMP_WAIT_POLICY");
    for (size_t t = 0; t < COUNT_OF(types) && isa_best() >= ISA_AVX2; t++) {
        struct kernel_case c;

        p.type = types[t];
        if (p.type == LS_BF16 && isa_best() == ISA_AMX)
            continue;
        onednn_open(&c, &p);
        assert_string_equal(kernel_choose(&c.call, &device_cpu)->name, "tiles");
        assert_false(module_is_loaded());
        onednn_close(&c);
    }
    assert_null(getenv("OMP_WAIT_POLICY"));
    assert_true(onednn_found());
    assert_true(module_is_loaded());
    assert_string_equal(getenv("OMP_WAIT_POLICY"), "passive");
}

/* Without the module the rows accept nothing; that of AMX, which is asked only where it would run, says so once. */
static int run_absent(void)
{
    int accepted = onednn_found();

    for (size_t t = 0; t < COUNT_OF(types); t++) {
        struct gemm_case p = { OP_LINEAR, 8, 16, 8, types[t], LS_F32, false };
        struct kernel_case c;

        onednn_open(&c, &p);
        for (int i = 0; i < 2; i++) {
            accepted += kernel_named(OP_LINEAR, "onednn")->accepts(&c.call);
            accepted += kernel_named(OP_LINEAR, "onednn_amx")->accepts(&c.call);
        }
        onednn_close(&c);
    }
    return accepted;
}

static int onednn_threads_start(void **state)
{
    (void)state;
    threads_set(3);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(module_is_loaded_when_asked),
        cmocka_unit_test(test_other_teams),
        cmocka_unit_test(forked_child_computes),
    };

    if (argc == 2 && strcmp(argv[1], "absent") == 0)
        return run_absent();
    return cmocka_run_group_tests(tests, onednn_threads_start, NULL);
}
