/* test_cublaslt.c - matmuls by cuBLASLt, on the stubs of the CUDA runtime and cuBLASLt: every case of their ops compared with the
 * reference, in a program, in TF32, without the library, and when calls fail. test_cublaslt_stub.c tests the stub itself.
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

static const struct device *gpu;

/* ---- cases ---- */

static const enum op ops[] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW, OP_MATMUL, OP_LINEAR_XENT, OP_LINEAR_XENT_GRAD,
                               OP_LINEAR_UNARY, OP_LINEAR_DW_BIAS };

struct walk { unsigned accepted, refused; };

static bool is_contiguous(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !view_is_contiguous(&c->in[i]))
            return false;
    return !view_given(&c->out[0]) || view_is_contiguous(&c->out[0]);
}

/* Cases that other kernels compute. */
static bool is_left(const struct call *c)
{
    bool f16_gradient = c->op == OP_LINEAR_XENT_GRAD && c->in[0].dtype == LS_F16;
    bool narrow = c->op == OP_LINEAR_DW_BIAS && c->out[0].dtype != LS_F32;
    bool unaligned = c->op == OP_LINEAR_UNARY && call_has_out(c, 0) && view_last(&c->out[1]) % 8;

    if (c->op != OP_LINEAR && c->op != OP_LINEAR_DX && c->op != OP_MATMUL && !view_rows(&c->in[0]))
        return true;
    return f16_gradient || narrow || unaligned || !view_last(&c->in[0]);
}

static void device_check_case(void *ctx, struct kernel_case *c)
{
    const struct kernel *k = kernel_named(c->call.op, "cublaslt");
    struct walk *w = ctx;

    if (!k->accepts(&c->call)) {
        w->refused++;
        if (is_contiguous(&c->call) && !is_left(&c->call))
            fail_msg("%s: cuBLASLt does not take it", c->name);
        return;
    }
    assert_ptr_equal(kernel_choose(&c->call, gpu), k);
    w->accepted++;
    struct kernel_check *check = kernel_check_new(c);
    kernel_check_entry(check, k, c->name);
    kernel_check_free(check);
}

/* Heads next to each other in memory: batch and heads have no common stride. */
static void heads_case(struct gen *g, int a, int b, int d)
{
    gen_begin(g);
    g->layout = a;
    gen_in(g, g->type, -1, 1, DIMS(2, 3, 5, 8));
    g->layout = b;
    gen_in(g, g->type, -1, 1, DIMS(2, 3, 8, 4));
    g->layout = d;
    gen_out(g, g->type, DIMS(2, 3, 5, 4));
    gen_emit(g, "heads, layouts %d %d %d", a, b, d);
}

/* A matrix that is transposed in memory. */
static void transposed_case(struct gen *g, bool a, bool b)
{
    gen_begin(g);
    for (int i = 0; i < 2; i++) {
        struct view *v = i ? gen_in(g, g->type, -1, 1, DIMS(2, b ? 6 : 9, b ? 9 : 6))
                           : gen_in(g, g->type, -1, 1, DIMS(2, a ? 9 : 7, a ? 7 : 9));

        if (i ? b : a) {
            v->size[1] = v->size[2];
            v->size[2] = (size_t)v->stride[2] * (i ? 6 : 9);
            v->stride[2] = v->stride[1];
            v->stride[1] = 1;
        }
    }
    gen_out(g, g->type, DIMS(2, 7, 6));
    gen_emit(g, "transposed %d %d", a, b);
}

static void test_cases(void **state)
{
    struct walk w = { 0, 0 };
    struct gen g = { .fn = device_check_case, .ctx = &w, .op = OP_MATMUL };

    (void)state;
    device_calls_on = gpu;
    kernel_observer.run = device_calls_run;
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        assert_true(kernel_cases(ops[k], device_check_case, &w) > 0);
    assert_true(w.accepted > 150);
    w.refused = 0;
    for (size_t t = 0; t < GEN_TYPES; t++) {
        g.type = gen_types[t];
        for (int k = 0; k < 8; k++)
            heads_case(&g, k & 1, k >> 1 & 1, k >> 2);
        for (int k = 0; k < 4; k++)
            transposed_case(&g, k & 1, k >> 1);
    }
    assert_int_equal(w.refused, 0);
    printf("%u cases\n", w.accepted);
}

/* ---- in a program ---- */

enum { ROWS = 6, WIDTH = 8, HIDDEN = 12 };

static ls_value cublaslt_layer(ls_program *p, ls_value x, const char *w, const char *b, size_t out, size_t in)
{
    return ls_linear(p, x, ls_param(p, w, (ls_init){ LS_INIT_NORMAL, 0.3 }, 2, (size_t[]){ out, in }),
                     ls_param(p, b, (ls_init){ LS_INIT_UNIFORM, 0.1 }, 1, &out));
}

/* Loss and gradients of a small network in res[]; how many kernels of the name it has. */
static int network_run(const char *device, ls_dtype type, const char *kernel, double res[1 + WIDTH * HIDDEN])
{
    float x[ROWS * WIDTH];
    ls_store *store;
    ls_program *p;
    int n = 0;

    for (int i = 0; i < ROWS * WIDTH; i++)
        x[i] = (float)(i % 7) / 4 - 0.7f;
    OK(ls_store_new(&(ls_store_options){ device, type, 1, 7, 0 }, &store));
    OK(ls_program_new(store, &p));
    ls_value h = ls_input(p, "x", type, 2, (size_t[]){ ROWS, WIDTH });
    h = cublaslt_layer(p, ls_relu(p, cublaslt_layer(p, h, "w1", "b1", HIDDEN, WIDTH)), "w2", "b2", WIDTH, HIDDEN);
    h = ls_matmul(p, h, ls_transpose(p, h, 0, 1));
    h = ls_sum(p, ls_mul(p, h, h), -1);
    ls_output(p, "loss", h);
    ls_backward(p, h);
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < ls_program_instructions(p); i++) {
        ls_instruction instruction;

        ls_program_instruction(p, i, &instruction);
        n += strcmp(instruction.kernel, kernel) == 0;
    }
    OK(ls_program_write(p, "x", x, LS_F32, ROWS * WIDTH));
    for (int run = 0; run < 2; run++)  /* gradients are added to */
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(p, "loss", res, LS_F64, 1));
    OK(ls_store_read(store, (size_t)ls_store_find(store, "w1"), "gradient", res + 1, LS_F64, WIDTH * HIDDEN));
    ls_program_release(&p);
    ls_store_release(&store);
    return n;
}

static void test_program(void **state)
{
    enum { MATMULS = 2 + 1 + 2 + 2 + 1 };  /* linear, matmul, its two gradients, linear_dw, linear_dx (x has none) */
    double want[1 + WIDTH * HIDDEN], got[1 + WIDTH * HIDDEN], most = 0;

    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        ls_dtype type = bf16 ? LS_BF16 : LS_F32;

        network_run("cpu", type, "reference", want);
        assert_int_equal(network_run("cuda", type, "cublaslt", got), MATMULS);
        for (int i = 1; i <= WIDTH * HIDDEN; i++)
            most = MAX(most, fabs(want[i]));
        for (int i = 0; i <= WIDTH * HIDDEN; i++)
            if (!(fabs(got[i] - want[i]) <= (bf16 ? 0.05 : 1e-5) * MAX(most, fabs(want[i]))))
                fail_msg("%s: number %d is %g, on the cpu %g", ls_dtype_name(type), i, got[i], want[i]);
    }
}

/* ---- TF32 ---- */

/* x x^T, with operands of these shapes and types. */
static struct call call_of(const struct view *x, const struct view *y)
{
    struct call c = { .op = OP_LINEAR, .nin = 2, .nout = 1 };

    c.in[0] = c.in[1] = *x;
    c.out[0] = *y;
    return c;
}

/* The sum of 16 products (1 + 2^-13) * 1: TF32 has no such number. */
static double cublaslt_product_of(bool tf32, ls_dtype type)
{
    enum { SIZE = 16, OPERAND = SIZE * SIZE * sizeof(float) };
    const struct kernel *k = kernel_named(OP_LINEAR, "cublaslt");
    struct view v = view_of(NULL, type, 2, (size_t[]){ SIZE, SIZE });
    struct call c = call_of(&v, &v);
    float number[SIZE * SIZE], one[SIZE * SIZE];
    char *data = gpu->alloc(MEM_OTHER, 3 * OPERAND + k->scratch(&c));

    assert_non_null(data);
    for (int i = 0; i < SIZE * SIZE; i++) {
        number[i] = 1 + 0x1p-13f;
        one[i] = 1;
    }
    c.in[0].data = data;
    c.in[1].data = data + OPERAND;
    c.out[0].data = data + 2 * OPERAND;
    c.scratch = data + 3 * OPERAND;
    OK(device_write(gpu, c.in[0].data, number, OPERAND));
    OK(device_write(gpu, c.in[1].data, one, OPERAND));
    gpu->configure(&(struct device_settings){ .tf32 = tf32 });
    OK(k->prepare(&c));
    OK(kernel_launch(gpu, k, &c));
    OK(device_read(gpu, number, c.out[0].data, OPERAND));
    k->release(&c);
    gpu->free(data);
    return number[0];
}

static void test_tf32(void **state)
{
    (void)state;
    assert_true(cublaslt_product_of(false, LS_F32) == 16 + 16 * 0x1p-13);
    assert_true(cublaslt_product_of(true, LS_F32) == 16);
    cublaslt_product_of(true, LS_BF16); /* the stub ends the process if TF32 is asked for with other types than f32 */
    assert_true(cublaslt_product_of(false, LS_F32) == 16 + 16 * 0x1p-13);
}

/* ---- without the library, and with calls that fail ---- */

static struct call small_call(char *data)
{
    struct view v = view_of(data, LS_F32, 2, (size_t[]){ 16, 16 });
    struct call c = call_of(&v, &v);

    c.out[0].data = data + 2048;
    return c;
}

/* Exit code 0: another kernel, or none, is chosen, twice. */
static int choose_without(void)
{
    const struct device *d = device_find("cuda");
    struct call c = small_call((char[4096]){ 0 });

    if (!d || kernel_table_add(d) < 0)
        return 2;
    for (int i = 0; i < 2; i++) {
        const struct kernel *k = kernel_choose(&c, d);

        if (k && strcmp(k->name, "cublaslt") == 0)
            return 1;
    }
    return 0;
}

static void test_library_is_absent(void **state)
{
    struct child c = child_run("cublaslt=0", choose_without);
    const char *said = strstr(c.err, "libcublasLt.so.13 was not found");

    (void)state;
    if (c.code != 0 || !said || strstr(said + 1, "libcublasLt.so.13 was not found"))
        fail_msg("exit code %d, %s", c.code, c.err);
}

/* Gradients of the output projection and its loss: 3 rows, 4 channels, a vocabulary of 5. */
static struct call loss_call(char *data)
{
    struct call c = { .op = OP_LINEAR_XENT_GRAD, .nin = 6, .nout = 3 };

    c.in[0] = view_of(data, LS_F32, 2, (size_t[]){ 3, 4 });
    c.in[1] = view_of(data + 256, LS_F32, 2, (size_t[]){ 5, 4 });
    c.in[2] = view_of(data + 512, LS_I32, 1, (size_t[]){ 3 });
    c.in[3].ndim = c.in[4].ndim = VIEW_ABSENT;
    c.in[5] = view_of(data + 768, LS_F32, 1, (size_t[]){ 1 });
    c.out[0] = view_of(data + 1024, LS_F32, 2, (size_t[]){ 3, 4 });
    c.out[1] = view_of(data + 1280, LS_F32, 2, (size_t[]){ 5, 4 });
    c.out[2] = view_of(data + 1536, LS_F32, 1, (size_t[]){ 1 });
    return c;
}

static ls_status call_once(const struct device *d, struct call *c)
{
    const struct kernel *k = kernel_named(c->op, "cublaslt");

    if (!k->accepts(c) || !(c->scratch = d->alloc(MEM_OTHER, k->scratch(c))))
        return ls_fail(LS_ENOMEM, "%s", ls_errmsg());
    ls_status st = k->prepare(c);
    if (st == LS_OK)
        st = kernel_launch(d, k, c);
    if (st == LS_OK)
        st = d->sync();
    k->release(c);
    return st;
}

/* Exit code 1, with the message: a call has failed. */
static int multiply_once(void)
{
    const struct device *d = device_find("cuda");

    if (!d || kernel_table_add(d) < 0)
        return 2;
    char *data = d->alloc(MEM_OTHER, 3072);
    ls_status st = data ? d->fill(NULL, data, 0, 3072) : LS_ENOMEM;
    struct call product = small_call(data);
    struct call loss = loss_call(data);
    if (st == LS_OK)
        st = call_once(d, &product);
    if (st == LS_OK)
        st = call_once(d, &loss);
    if (st < 0)
        fprintf(stderr, "%s\n", ls_errmsg());
    return st < 0;
}

static void test_calls_that_fail(void **state)
{
    struct child c = { .code = 1 };
    int of_library = 0, n = 0;

    (void)state;
    for (n = 1; n < 500; n++) {
        char setting[32];

        snprintf(setting, sizeof setting, "fail=%d", n);
        c = child_run(setting, multiply_once);
        if (c.code == 0)
            break;
        of_library += strstr(c.err, "cublasLt") != NULL;
        if (c.code != 1 || !strstr(c.err, "GPU"))
            fail_msg("call %d: exit code %d, %s", n, c.code, c.err);
    }
    assert_int_equal(c.code, 0);
    assert_true(of_library >= 40 && n > of_library);
}

/* ---- many launches while the host does not wait: no stream has so many pending operations that one blocks ---- */

enum { CALLS = 300 };

/* n numbers on the device. */
static char *numbers_new(size_t n, float number)
{
    char *device = gpu->alloc(MEM_OTHER, n * sizeof number);
    float *host = malloc(n * sizeof number);

    assert_true(device && host);
    for (size_t i = 0; i < n; i++)
        host[i] = number;
    OK(device_write(gpu, device, host, n * sizeof number));
    free(host);
    return device;
}

/* Runs c so many times, then reads the first number of an output. */
static float run_often(const char *kernel, struct call *c, int calls, int output)
{
    const struct kernel *k = kernel_named(c->op, kernel);
    float first;

    assert_true(k && k->accepts(c));
    c->scratch = gpu->alloc(MEM_OTHER, k->scratch ? k->scratch(c) + 1 : 1);
    assert_non_null(c->scratch);
    if (k->prepare)
        OK(k->prepare(c));
    for (int i = 0; i < calls; i++)
        OK(kernel_launch(gpu, k, c));
    OK(device_read(gpu, &first, c->out[output].data, sizeof first));
    if (k->release)
        k->release(c);
    gpu->free(c->scratch);
    return first;
}

/* Heads are next to each other in memory, so one instruction is a matmul for each sample. */
static void test_many_matmuls(void **state)
{
    enum { SAMPLES = 6, HEADS = 8, SIZE = 4, NUMBERS = SAMPLES * HEADS * SIZE * SIZE };
    struct view v = view_of(numbers_new(NUMBERS, 0.5f), LS_F32, 4, (size_t[]){ SAMPLES, HEADS, SIZE, SIZE });
    struct call c = { .op = OP_MATMUL, .nin = 2, .nout = 1 };

    (void)state;
    v.stride[1] = SIZE;
    v.stride[2] = HEADS * SIZE;
    c.in[0] = c.in[1] = c.out[0] = v;
    c.out[0].data = numbers_new(NUMBERS, 0);
    assert_true(run_often("cublaslt", &c, CALLS, 0) == SIZE * 0.25f);
    gpu->free(c.in[0].data);
    gpu->free(c.out[0].data);
}

/* Gradients are added up; their kernels are ours, or cuBLASLt's in between. */
static void loss_often(const char *kernel)
{
    char *data = numbers_new(512, 0.25f);
    struct call c = loss_call(data);

    OK(gpu->fill(NULL, c.in[2].data, 0, 3 * sizeof(int)));
    OK(gpu->fill(NULL, c.out[1].data, 0, 5 * 4 * sizeof(float)));
    float once = run_often(kernel, &c, 1, 1);
    assert_true(once != 0);
    OK(gpu->fill(NULL, c.out[1].data, 0, 5 * 4 * sizeof(float)));
    float often = run_often(kernel, &c, CALLS, 1);
    if (!(often / once > CALLS * (1 - 1e-4f) && often / once < CALLS * (1 + 1e-4f)))
        fail_msg("%s: %d times %g is %g", kernel, CALLS, once, often);
    gpu->free(data);
}

static void test_many_losses(void **state)
{
    (void)state;
    loss_often("cublaslt");
    loss_often("cuda");
}

static int group_open(void **state)
{
    (void)state;
    gpu = device_find("cuda");
    if (!gpu || kernel_table_add(gpu) < 0) {
        fprintf(stderr, "%s\n", ls_errmsg());
        return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest in_children[] = { cmocka_unit_test(test_library_is_absent), cmocka_unit_test(test_calls_that_fail) };
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases), cmocka_unit_test(test_program), cmocka_unit_test(test_tf32),
                                        cmocka_unit_test(test_many_matmuls), cmocka_unit_test(test_many_losses) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    int failed = cmocka_run_group_tests(in_children, NULL, NULL);
    setenv("LOCKSTEP_CUDA_STUB", "seed=3", 1);
    return failed + cmocka_run_group_tests(tests, group_open, NULL);
}
