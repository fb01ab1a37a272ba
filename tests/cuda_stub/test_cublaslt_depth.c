/* test_cublaslt_depth.c - instructions of many launches, one after another, while the host does not wait: a stream never has so many
 * pending operations that a launch blocks, at which the stub of the CUDA runtime ends the process.
 */
#include "helper_check.h"
#include "helper_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/base.h"
#include "device/device.h"

enum { CALLS = 300 };

static const struct device *gpu;

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
static void test_matmuls(void **state)
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

/* Gradients of an output projection and its loss, which are added up; their kernels are ours, or cuBLASLt's in between. */
static void loss_often(const char *kernel)
{
    enum { ROWS = 3, WIDTH = 4, WORDS = 5 };
    struct call c = { .op = OP_LINEAR_XENT_GRAD, .nin = 6, .nout = 3 };
    char *data = numbers_new(512, 0.25f), *gradient;
    float once, often;

    c.in[0] = view_of(data, LS_F32, 2, (size_t[]){ ROWS, WIDTH });
    c.in[1] = view_of(data + 256, LS_F32, 2, (size_t[]){ WORDS, WIDTH });
    c.in[2] = view_of(data + 512, LS_I32, 1, (size_t[]){ ROWS });
    c.in[3].ndim = c.in[4].ndim = VIEW_ABSENT;
    c.in[5] = view_of(data + 768, LS_F32, 1, (size_t[]){ 1 });
    c.out[0] = view_of(data + 1024, LS_F32, 2, (size_t[]){ ROWS, WIDTH });
    c.out[2] = view_of(data + 1280, LS_F32, 1, (size_t[]){ 1 });
    OK(gpu->fill(NULL, c.in[2].data, 0, ROWS * sizeof(int)));
    gradient = numbers_new(WORDS * WIDTH, 0);
    c.out[1] = view_of(gradient, LS_F32, 2, (size_t[]){ WORDS, WIDTH });
    once = run_often(kernel, &c, 1, 1);
    assert_true(once != 0);
    OK(gpu->fill(NULL, gradient, 0, WORDS * WIDTH * sizeof(float)));
    often = run_often(kernel, &c, CALLS, 1);
    if (!(often / once > CALLS * (1 - 1e-4f) && often / once < CALLS * (1 + 1e-4f)))
        fail_msg("%s: %d times %g is %g", kernel, CALLS, once, often);
    gpu->free(gradient);
    gpu->free(data);
}

static void test_losses(void **state)
{
    (void)state;
    loss_often("cublaslt");
    loss_often("cuda");
}

static int group_open(void **state)
{
    (void)state;
    gpu = device_find("cuda");
    if (gpu && kernel_table_add(gpu) == LS_OK)
        return 0;
    fprintf(stderr, "%s\n", ls_errmsg());
    return -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_matmuls), cmocka_unit_test(test_losses) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("LOCKSTEP_CUDA_STUB", "seed=3", 1);
    return cmocka_run_group_tests(tests, group_open, NULL);
}
