/* test_gpu_kernels.c - every kernel of the CUDA module on the device itself, compared with the reference, for every case of its op.
 *
 * test_cuda_kernels does the same on the emulator, which also finds races and accesses out of bounds. Here the compiled kernels run, and
 * bytes beside the operands must not change. Entries that take many calls at once give the bits of single ones. Skipped with a reason if
 * the device cannot be used. LOCKSTEP_CUDA_MODULE may name the module on the stub of the CUDA runtime, to test this test. By default small
 * cases, with LOCKSTEP_MATRIX=full all of them; LOCKSTEP_OP=NAME: only cases of that op; LOCKSTEP_CASES=N: N cases of each kernel.
 */
#include "helper_device_calls.h"
#include "helper_check.h"
#include "helper_kernel_many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"

enum { SKIPPED = 77, SMALL = 50000, MOST_ROWS = 1024 };

/* ---- cases ---- */

struct walk { unsigned runs[MOST_ROWS], cases, most; bool all; };  /* most: cases of each kernel; 0: all */

static size_t case_elements(const struct call *c)
{
    size_t n = 0;

    for (int i = 0; i < c->nin; i++) n += view_count(&c->in[i]);
    for (int i = 0; i < c->nout; i++) n += view_count(&c->out[i]);
    return n;
}

static bool is_row(const struct kernel *k) { return strcmp(k->device, device_calls_on->kernels) == 0; }

static void gpu_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;
    struct kernel_check *check = NULL;
    const struct kernel *k;

    if (!w->all && case_elements(&c->call) > SMALL)
        return;
    for (int i = 0; (k = kernel_at(i)); i++) {
        char name[256];

        if (k->op != c->call.op || !is_row(k) || !k->accepts(&c->call))
            continue;
        assert_true(i < MOST_ROWS);
        if (w->most && w->runs[i] == w->most)
            continue;
        if (!check)
            check = kernel_check_new(c);
        w->runs[i]++;
        snprintf(name, sizeof name, "%s by %s", c->name, k->name);
        kernel_check_entry(check, k, name);
    }
    w->cases += check != NULL;
    if (check)
        kernel_check_free(check);
}

/* No kernel of its name accepts anything. */
static bool is_library_absent(const struct kernel *k, const unsigned *runs)
{
    const struct kernel *other;

    for (int i = 0; (other = kernel_at(i)); i++)
        if (is_row(other) && strcmp(other->name, k->name) == 0 && runs[i] > 0)
            return false;
    return k->prepare;
}

static void every_kernel_agrees_with_its_reference(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX"), *only = getenv("LOCKSTEP_OP"), *most = getenv("LOCKSTEP_CASES");
    static struct walk w;
    const struct kernel *k;
    unsigned rows = 0;

    (void)state;
    w.all = matrix && strcmp(matrix, "full") == 0;
    w.most = most ? (unsigned)atoi(most) : 0;
    kernel_observer.run = device_calls_run;
    for (int op = 0; op < OPS; op++)
        if (!only || strcmp(only, op_name((enum op)op)) == 0)
            kernel_cases((enum op)op, gpu_check_case, &w);
    for (int i = 0; (k = kernel_at(i)); i++) {
        if (!is_row(k) || (only && strcmp(only, op_name(k->op)) != 0))
            continue;
        if (w.runs[i] == 0 && is_library_absent(k, w.runs)) {
            printf("%s of %s: the library is not here\n", k->name, op_name(k->op));
            continue;
        }
        rows++;
        if (w.runs[i] == 0)
            fail_msg("%s of %s accepts no case", k->name, op_name(k->op));
    }
    assert_true(rows > 0);
    printf("%u kernels, %u cases\n", rows, w.cases);
}

/* ---- many calls at once ---- */

static void *gpu_copy(const void *bytes, size_t n, size_t grain)
{
    void *p = device_calls_on->alloc(MEM_OTHER, n + 1);

    (void)grain;
    if (!p)
        fail_msg("%s", ls_errmsg());
    OK(device_calls_on->fill(NULL, p, 0xff, n + 1));
    if (bytes && n)
        OK(device_calls_on->copy_in(NULL, p, bytes, n));
    OK(device_calls_on->stream_sync(NULL));
    return p;
}

static void gpu_read(void *host, const void *p, size_t n) { OK(device_read(device_calls_on, host, p, n)); }
static void gpu_drop(void *p) { device_calls_on->free(p); }
static void gpu_run(const struct kernel *k, const struct call *c) { OK(kernel_launch(device_calls_on, k, c)); }

static void gpu_run_many(const struct kernel *k, const struct call *const *c, int n)
{
    struct device_access *access = calloc((size_t)n * CALL_ACCESSES, sizeof *access);

    assert_non_null(access);
    OK(kernel_launch_many(device_calls_on, k, c, n, access));
    OK(device_calls_on->stream_sync(NULL));
    free(access);
}

static void many_calls_leave_the_bits_of_single_ones(void **state)
{
    static const struct many_place place = { gpu_copy, gpu_read, gpu_drop, gpu_run, gpu_run_many };
    const char *only = getenv("LOCKSTEP_OP"), *most = getenv("LOCKSTEP_CASES");
    const struct kernel *k;
    unsigned rows = 0;

    (void)state;
    for (int i = 0; (k = kernel_at(i)); i++) {
        if (!k->run_many || !is_row(k) || (only && strcmp(only, op_name(k->op)) != 0))
            continue;
        rows++;
        kernel_check_many(k, &place, most ? 10 * atoi(most) : 300);
    }
    assert_true(only || rows > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_kernel_agrees_with_its_reference),
                                        cmocka_unit_test(many_calls_leave_the_bits_of_single_ones) };
    struct device_facts facts;
    int processors = 0;

    device_calls_on = device_find("cuda");
    if (!device_calls_on || device_calls_on->count(&processors) != LS_OK || device_calls_on->choose(0, &facts) != LS_OK) {
        printf("skipped: %s\n", ls_errmsg());
        return SKIPPED;
    }
    if (kernel_table_add(device_calls_on) != LS_OK) {
        printf("%s\n", ls_errmsg());
        return 1;
    }
    printf("on %s\n", facts.name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
