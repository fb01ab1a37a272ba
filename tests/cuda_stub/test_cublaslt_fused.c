/* test_cublaslt_fused.c - pairs of instructions that one matmul computes by its epilogue, on the stubs of the CUDA runtime and cuBLASLt:
 * which pairs become one, on which device, what is left out, and that numbers are those of the cpu; also where the library has no algorithm
 * with such an epilogue.
 */
#include "helper_device_calls.h"
#include "helper_kernel_gen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/device.h"
#include "helper_check.h"
#include "helper_child.h"
#include "lockstep/ops.h"
#include "lockstep/program.h"
#include "lockstep/store.h"

enum { ROWS = 6, WIDTH = 8, HIDDEN = 16, NUMBERS = 1 + HIDDEN * WIDTH + HIDDEN };

/* ---- a program ---- */

/* How many instructions a program has of each op. */
struct counts { int linear, unary, linear_unary, linear_dw, bias_grad, linear_dw_bias, kept; };  /* kept: linear_unary with y */

static void count_op(struct counts *n, const ls_instruction *i)
{
    const struct { const char *op; int *n; } all[] = {
        { "linear", &n->linear }, { "unary", &n->unary }, { "linear_unary", &n->linear_unary }, { "linear_dw", &n->linear_dw },
        { "bias_grad", &n->bias_grad }, { "linear_dw_bias", &n->linear_dw_bias },
    };

    for (size_t k = 0; k < COUNT_OF(all); k++)
        *all[k].n += strcmp(i->op, all[k].op) == 0;
    n->kept += strcmp(i->op, "linear_unary") == 0 && i->out[0].value.id;
}

static ls_value cublaslt_fused_layer(ls_program *p, ls_value x, const char *w, const char *b, size_t out, size_t in)
{
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }),
                     ls_param(p, b, (ls_init){ LS_INIT_UNIFORM, 0.1 }, 1, &out));
}

/* got: loss, gradients of the first layer's weight and bias. */
static struct counts network_run(const char *device, ls_dtype type, bool backward, double got[NUMBERS])
{
    struct counts n = { 0 };
    float x[ROWS * WIDTH];
    ls_store *store;
    ls_program *p;

    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(i % 7) / 4 - 0.7f;
    OK(ls_store_new(&(ls_store_options){ device, type, 1, 7, 0 }, &store));
    OK(ls_program_new(store, &p));
    ls_value h = ls_input(p, "x", type, 2, (size_t[]){ ROWS, WIDTH });
    h = cublaslt_fused_layer(p, ls_gelu_tanh(p, cublaslt_fused_layer(p, h, "w1", "b1", HIDDEN, WIDTH)), "w2", "b2", WIDTH, HIDDEN);
    h = ls_sum(p, ls_mul(p, h, h), -1);
    ls_output(p, "loss", h);
    if (backward)
        ls_backward(p, h);
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < ls_program_instructions(p); i++) {
        ls_instruction instruction;

        ls_program_instruction(p, i, &instruction);
        count_op(&n, &instruction);
    }
    OK(ls_program_write(p, "x", x, LS_F32, ROWS * WIDTH));
    for (int run = 0; run < 2; run++)  /* gradients are added to */
        OK(ls_program_run(p, backward ? LS_FORWARD | LS_BACKWARD : LS_FORWARD));
    OK(ls_program_read(p, "loss", got, LS_F64, 1));
    if (backward) {
        OK(ls_store_read(store, (size_t)ls_store_find(store, "w1"), "gradient", got + 1, LS_F64, HIDDEN * WIDTH));
        OK(ls_store_read(store, (size_t)ls_store_find(store, "b1"), "gradient", got + 1 + HIDDEN * WIDTH, LS_F64, HIDDEN));
    }
    ls_program_release(&p);
    ls_store_release(&store);
    return n;
}

static bool numbers_agree(const double *want, const double *got, int n, double tolerance)
{
    double most = 0;

    for (int i = 1; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fmax(most, fabs(want[i])))) {
            fprintf(stderr, "number %d is %g, on the cpu %g\n", i, got[i], want[i]);
            return false;
        }
    return true;
}

/* Exit code 0: the cpu's program has no pair, the GPU's has all of them, and the numbers agree. */
static int run_programs(void)
{
    for (int variant = 0; variant < 4; variant++) {
        ls_dtype type = variant & 1 ? LS_BF16 : LS_F32;
        bool backward = variant & 2;
        double want[NUMBERS], got[NUMBERS];
        struct counts cpu = network_run("cpu", type, backward, want), gpu = network_run("cuda", type, backward, got);

        if (cpu.linear != 2 || cpu.unary != 1 || cpu.linear_dw != (backward ? 2 : 0) || cpu.bias_grad != cpu.linear_dw ||
            cpu.linear_unary || cpu.linear_dw_bias)
            return 3;
        if (gpu.linear != 1 || gpu.unary || gpu.linear_unary != 1 || gpu.linear_dw || gpu.bias_grad ||
            gpu.linear_dw_bias != (backward ? 2 : 0) || gpu.kept != backward)
            return 4;
        if (!numbers_agree(want, got, backward ? NUMBERS : 1, variant & 1 ? 0.05 : 1e-5))
            return 5;
    }
    return 0;
}

static void test_programs(void **state)
{
    struct child c = child_run("seed=3", run_programs);

    (void)state;
    if (c.code != 0 || strstr(c.err, "no algorithm"))
        fail_msg("exit code %d, %s", c.code, c.err);
}

/* The same programs, with a warning, once. */
static void test_without_epilogues(void **state)
{
    static const char *const settings[] = { "seed=4 epilogues=0", "seed=4 epilogues=2" };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(settings); k++) {
        struct child c = child_run(settings[k], run_programs);
        const char *said = strstr(c.err, "has no algorithm for a f32 matmul");

        if (c.code != 0 || !said || !strstr(said, "with GELU; computed by a kernel of its own") ||
            strstr(said + strlen("has no algorithm"), "no algorithm"))
            fail_msg("%s: exit code %d, %s", settings[k], c.code, c.err);
    }
}

/* Without the library there is no pair. */
static int run_without_library(void)
{
    double got[NUMBERS];
    struct counts n = network_run("cuda", LS_F32, true, got);

    return n.linear == 2 && n.unary == 1 && n.linear_dw == 2 && n.bias_grad == 2 && !n.linear_unary && !n.linear_dw_bias ? 0 : 1;
}

static void test_without_library(void **state)
{
    struct child c = child_run("cublaslt=0", run_without_library);

    (void)state;
    if (c.code != 0)
        fail_msg("exit code %d, %s", c.code, c.err);
}

/* ---- measured algorithms ---- */

static char cache_folder[] = "/tmp/lockstep_test_XXXXXX";

static int run_tuned(void)
{
    const struct device *d = device_find("cuda");

    if (!d)
        return 2;
    d->configure(&(struct device_settings){ .tuned = cache_folder });
    return run_programs();
}

/* A matmul with another epilogue is another matmul. */
static void test_measured_algorithms(void **state)
{
    static const char *const keys[] = { "f32 to f32 with bias |", "f32 to f32 with bias with GELU |",
                                        "f32 to f32 with bias with GELU and its input |", "f32 to f32 added with bias gradient |",
                                        "bf16 to f32 added with bias gradient |" };
    char path[64], command[64], all[16384] = "";

    (void)state;
    assert_non_null(mkdtemp(cache_folder));
    struct child c = child_run("fastest=3", run_tuned);
    if (c.code != 0)
        fail_msg("exit code %d, %s", c.code, c.err);
    snprintf(path, sizeof path, "%s/matmuls.txt", cache_folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(all, 1, sizeof all - 1, f) > 0);
    fclose(f);
    for (size_t k = 0; k < COUNT_OF(keys); k++)
        if (!strstr(all, keys[k]))
            fail_msg("no '%s' in %s", keys[k], all);
    snprintf(command, sizeof command, "rm -r %s", cache_folder);
    assert_int_equal(system(command), 0);
}

/* ---- every case ---- */

static void check_case(void *ctx, struct kernel_case *c)
{
    const struct kernel *k = kernel_named(c->call.op, "cublaslt");

    if (!k->accepts(&c->call))
        return;
    ++*(int *)ctx;
    struct kernel_check *check = kernel_check_new(c);
    kernel_check_entry(check, k, c->name);
    kernel_check_free(check);
}

/* Exit code 0: all cases are right, those with epilogues that the library lacks too. */
static int run_cases(void)
{
    int cases[2] = { 0 };

    device_calls_on = device_find("cuda");
    if (!device_calls_on || kernel_table_add(device_calls_on) < 0)
        return 2;
    kernel_observer.run = device_calls_run;
    kernel_cases(OP_LINEAR_UNARY, check_case, &cases[0]);
    kernel_cases(OP_LINEAR_DW_BIAS, check_case, &cases[1]);
    return cases[0] >= 24 && cases[1] >= 12 ? 0 : 3;
}

static void test_cases_without_epilogues(void **state)
{
    struct child c = child_run("seed=5 epilogues=0", run_cases);

    (void)state;
    if (c.code != 0 || !strstr(c.err, "no algorithm"))
        fail_msg("exit code %d, %s", c.code, c.err);
}

/* ---- pointers of an epilogue that are less aligned than D ---- */

enum { SIDE = 16, PLACE = 2048, OPERANDS = 5 };

/* What a linear layer with GELU leaves in y and a; operand number `moved`, of x, w, bias, y and a, is one element off. */
static ls_status gelu_run(const struct device *d, int moved, float y[2 * SIDE * SIDE])
{
    const struct kernel *k = kernel_named(OP_LINEAR_UNARY, "cublaslt");
    struct call c = { .op = OP_LINEAR_UNARY, .nin = 3, .nout = 2, .attr.unary.kind = UNARY_GELU_TANH };
    float number[SIDE * SIDE];
    char *data = d->alloc(MEM_OTHER, OPERANDS * PLACE);

    if (!data)
        return LS_ENOMEM;
    for (int i = 0; i < SIDE * SIDE; i++)
        number[i] = (float)(i % 7) / 8 - 0.25f;
    for (int i = 0; i < OPERANDS; i++) {
        struct view *v = i < 3 ? &c.in[i] : &c.out[i - 3];
        size_t size[] = { SIDE, SIDE };

        *v = view_of(data + i * PLACE + (i == moved ? sizeof(float) : 0), LS_F32, i == 2 ? 1 : 2, size);
        if (i < 3)
            LS_TRY(device_write(d, v->data, number, view_bytes(v)));
    }
    if (!k->accepts(&c) || !(c.scratch = d->alloc(MEM_OTHER, k->scratch(&c))))
        return LS_ENOMEM;
    LS_TRY(k->prepare(&c));
    LS_TRY(kernel_launch(d, k, &c));
    for (int i = 0; i < 2; i++)
        LS_TRY(device_read(d, y + i * SIDE * SIDE, c.out[i].data, SIDE * SIDE * sizeof *y));
    k->release(&c);
    d->free(c.scratch);
    d->free(data);
    return LS_OK;
}

/* Exit code 0: the numbers are the same wherever the operands are; all sums are exact. */
static int run_less_aligned(void)
{
    const struct device *d = device_find("cuda");
    float want[2 * SIDE * SIDE], got[2 * SIDE * SIDE];

    if (!d || kernel_table_add(d) < 0 || gelu_run(d, -1, want) < 0)
        return 2;
    for (int moved = 0; moved < OPERANDS; moved++)
        if (gelu_run(d, moved, got) < 0 || memcmp(want, got, sizeof want) != 0)
            return 3 + moved;
    return want[0] != 0 ? 0 : 1;
}

static void test_less_aligned(void **state)
{
    struct child c = child_run("seed=6", run_less_aligned);

    (void)state;
    if (c.code != 0)
        fail_msg("exit code %d, %s", c.code, c.err);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_programs), cmocka_unit_test(test_without_epilogues),
                                        cmocka_unit_test(test_without_library), cmocka_unit_test(test_measured_algorithms),
                                        cmocka_unit_test(test_cases_without_epilogues), cmocka_unit_test(test_less_aligned) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
