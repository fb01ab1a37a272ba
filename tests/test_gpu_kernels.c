/* test_gpu_kernels.c - every kernel of the CUDA module on the device itself, compared with the reference, for every case of its op.
 *
 * test_cuda_kernels does the same on the emulator, which also finds races and accesses out of bounds. Here the compiled kernels run, and
 * bytes beside the operands must not change. Skipped with a reason where the device cannot be used. LOCKSTEP_CUDA_MODULE may name the
 * module on the stub of the CUDA runtime, to test this test. By default small cases, with LOCKSTEP_MATRIX=full all of them;
 * LOCKSTEP_OP=NAME: only those of that op; LOCKSTEP_CASES=N: N of each kernel.
 */
#include "helper_device_calls.h"

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

static bool is_row(const struct kernel *k) { return k->device && strcmp(k->device, device_calls_on->kernels) == 0; }

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
        rows++;
        if (w.runs[i] == 0)
            fail_msg("%s of %s accepts no case", k->name, op_name(k->op));
    }
    assert_true(rows > 0);
    printf("%u kernels, %u cases\n", rows, w.cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_kernel_agrees_with_its_reference) };
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
