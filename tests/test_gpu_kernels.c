/* test_gpu_kernels.c - every kernel of the CUDA module on the device itself, compared with the reference, for every case of its op.
 *
 * test_cuda_kernels does the same on the emulator, which also finds races and accesses out of bounds. Here the compiled kernels run, and
 * bytes beside the operands must not change. Entries that take many calls at once give the bits of single ones. Skipped with a reason if
 * the device cannot be used. LOCKSTEP_CUDA_MODULE may name the module on the stub of the CUDA runtime, to test this test.
 *
 * Each kernel is a test of its own, so one that fails stops no other. An error of the device breaks all later calls of the process, so
 * run.sh of the GPU bundle gives each op a process: --ops prints their names. A process that ends by a signal, SIGTERM included, prints the
 * case that runs.
 *
 * By default small cases, with LOCKSTEP_MATRIX=full all of them; LOCKSTEP_OP=NAME: only cases of that op; LOCKSTEP_CASES=N: N cases of each
 * kernel. LOCKSTEP_OWN=1 is for tools that look at every access: no kernels of libraries, and of each other one the largest of its small
 * cases (not less than half of the largest), because the first ones have no elements.
 */
#include "helper_device_calls.h"
#include "helper_kernel_many.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/base.h"

enum { SKIPPED = 77, SMALL = 50000, MOST_ROWS = 1024, ALL_CASES = -1 };

static struct {
    const char *op; /* NULL: all */
    int cases;      /* of each kernel, or ALL_CASES */
    bool large;     /* also cases that are not small */
    bool own;       /* LOCKSTEP_OWN */
} chosen = { .cases = ALL_CASES };

/* ---- the case that runs ---- */

static char case_now[256] = "no case";

static void end_in_case(int number)
{
    static const char during[] = "\nthe process ended during ";

    (void)!write(STDERR_FILENO, during, sizeof during - 1);
    (void)!write(STDERR_FILENO, case_now, strlen(case_now));
    (void)!write(STDERR_FILENO, "\n", 1);
    signal(number, SIG_DFL);
    raise(number);
}

/* Again in each test, because cmocka then sets handlers of its own. */
static void name_case_at_end(void)
{
    const int ends[] = { SIGTERM, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };

    for (size_t i = 0; i < COUNT_OF(ends); i++) signal(ends[i], end_in_case);
}

/* ---- cases ---- */

/* A kernel's way through the cases of its op. */
struct walk { const struct kernel *k; int cases; size_t largest; };

static size_t case_elements(const struct call *c)
{
    size_t n = 0;

    for (int i = 0; i < c->nin; i++) n += view_count(&c->in[i]);
    for (int i = 0; i < c->nout; i++) n += view_count(&c->out[i]);
    return n;
}

static bool is_row(const struct kernel *k) { return strcmp(k->device, device_calls_on->kernels) == 0; }

/* prepare: libraries' kernels have it. */
static bool is_chosen(const struct kernel *k)
{
    return is_row(k) && !(chosen.own && k->prepare) && (!chosen.op || strcmp(chosen.op, op_name(k->op)) == 0);
}

static bool is_taken(const struct walk *w, const struct kernel_case *c)
{
    return (chosen.large || case_elements(&c->call) <= SMALL) && w->k->accepts(&c->call);
}

static void gpu_measure_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;

    if (is_taken(w, c))
        w->largest = MAX(w->largest, case_elements(&c->call));
}

static void gpu_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;

    if (w->cases == chosen.cases || !is_taken(w, c) || (chosen.own && case_elements(&c->call) < w->largest / 2))
        return;
    w->cases++;
    snprintf(case_now, sizeof case_now, "%s by %s", c->name, w->k->name);
    struct kernel_check *check = kernel_check_new(c);
    kernel_check_entry(check, w->k, case_now);
    kernel_check_free(check);
}

/* No kernel of the library accepts anything: of libraries a name is that of all their kernels. */
static bool is_library_absent(const struct kernel *library)
{
    struct walk w = { 0 };

    for (int i = 0; library->prepare && !w.largest && (w.k = kernel_at(i)); i++)
        if (is_row(w.k) && strcmp(w.k->name, library->name) == 0)
            kernel_cases(w.k->op, gpu_measure_case, &w);
    return library->prepare && !w.largest;
}

static struct device_facts facts;

/* cudnn_attention_repeats(): on Blackwell the sums of cuDNN's gradient of attention may have no fixed order. */
static bool is_left_to_own(const struct kernel *k)
{
    return facts.generation >= 10 && k->op == OP_ATTENTION_GRAD && strcmp(k->name, "cudnn") == 0;
}

static int kernels_run, cases_run;

static void kernel_agrees_with_its_reference(void **state)
{
    struct walk w = { .k = *state };

    name_case_at_end();
    if (chosen.own)
        kernel_cases(w.k->op, gpu_measure_case, &w);
    kernel_cases(w.k->op, gpu_check_case, &w);
    cases_run += w.cases;
    kernels_run += w.cases > 0;
    if (w.cases == 0 && is_library_absent(w.k))
        printf("%s of %s: the library is not here\n", w.k->name, op_name(w.k->op));
    else if (w.cases == 0 && is_left_to_own(w.k))
        printf("%s of %s: left to lockstep's own kernel on this GPU\n", w.k->name, op_name(w.k->op));
    else if (w.cases == 0)
        fail_msg("%s of %s accepts no case", w.k->name, op_name(w.k->op));
}

/* ---- many calls at once ---- */

static void *gpu_copy(const void *bytes, size_t n, size_t grain)
{
    void *p = device_calls_on->alloc(MEM_OTHER, n + 1);

    (void)grain;
    if (!p)
        fail_msg("%s", ls_errmsg());
    device_calls_ok(device_calls_on->fill(NULL, p, 0xff, n + 1), case_now);
    if (bytes && n)
        device_calls_ok(device_calls_on->copy_in(NULL, p, bytes, n), case_now);
    device_calls_ok(device_calls_on->stream_sync(NULL), case_now);
    return p;
}

static void gpu_read(void *host, const void *p, size_t n) { device_calls_ok(device_read(device_calls_on, host, p, n), case_now); }
static void gpu_drop(void *p) { device_calls_on->free(p); }
static void gpu_run(const struct kernel *k, const struct call *c) { device_calls_ok(kernel_launch(device_calls_on, k, c), case_now); }

static void gpu_run_many(const struct kernel *k, const struct call *const *c, int n)
{
    struct device_access *access = calloc((size_t)n * CALL_ACCESSES, sizeof *access);

    assert_non_null(access);
    device_calls_ok(kernel_launch_many(device_calls_on, k, c, n, access), case_now);
    device_calls_ok(device_calls_on->stream_sync(NULL), case_now);
    free(access);
}

static void many_calls_leave_the_bits_of_single_ones(void **state)
{
    static const struct many_place place = { gpu_copy, gpu_read, gpu_drop, gpu_run, gpu_run_many };
    const struct kernel *k = *state;

    name_case_at_end();
    snprintf(case_now, sizeof case_now, "many calls of %s by %s", op_name(k->op), k->name);
    kernel_check_many(k, &place, chosen.cases == ALL_CASES ? 300 : 10 * chosen.cases);
}

/* ---- all of them ---- */

static void choose_cases(void)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX"), *most = getenv("LOCKSTEP_CASES");

    chosen.op = getenv("LOCKSTEP_OP");
    chosen.own = getenv("LOCKSTEP_OWN");
    chosen.large = matrix && strcmp(matrix, "full") == 0;
    chosen.cases = most && atoi(most) > 0 ? atoi(most) : ALL_CASES;
}

static int print_ops(void)
{
    const struct kernel *k;

    for (int op = 0; op < OPS; op++)
        for (int i = 0; (k = kernel_at(i)); i++)
            if (k->op == (enum op)op && is_chosen(k)) {
                puts(op_name((enum op)op));
                break;
            }
    return 0;
}

static int test_kernels(void)
{
    static struct CMUnitTest tests[MOST_ROWS];
    static char names[MOST_ROWS][96];
    const struct kernel *k;
    int n = 0;

    for (int i = 0; (k = kernel_at(i)); i++)
        for (int many = 0; many < 2; many++) {
            if (!is_chosen(k) || (many && !k->run_many))
                continue;
            ASSERT(n < MOST_ROWS);
            snprintf(names[n], sizeof names[n], "%s by %s%s", op_name(k->op), k->name, many ? ", many calls" : "");
            tests[n].name = names[n];
            tests[n].test_func = many ? many_calls_leave_the_bits_of_single_ones : kernel_agrees_with_its_reference;
            tests[n++].initial_state = (void *)(uintptr_t)k;
        }
    if (n == 0) {
        printf("there is no kernel of the op '%s'\n", chosen.op ? chosen.op : "");
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d kernels, %d cases\n", kernels_run, cases_run);
    return failed > 0;
}

int main(int argc, char **argv)
{
    int processors = 0;

    setvbuf(stdout, NULL, _IOLBF, 0); /* what a process that crashes has printed is not lost */
    name_case_at_end();
    choose_cases();
    device_calls_on = device_find("cuda");
    if (!device_calls_on || device_calls_on->count(&processors) != LS_OK || device_calls_on->choose(0, &facts) != LS_OK) {
        printf("skipped: %s\n", ls_errmsg());
        return SKIPPED;
    }
    if (kernel_table_add(device_calls_on) != LS_OK) {
        printf("%s\n", ls_errmsg());
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "--ops") == 0)
        return print_ops();
    printf("on %s\n", facts.name);
    kernel_observer.run = device_calls_run;
    return test_kernels();
}
