/* test_cublaslt_tune.c - run.tune_matmuls on the stubs of the CUDA runtime and cuBLASLt: the fastest algorithm is measured once, on a GPU
 * without free memory, and stored in a file, which may be damaged or old.
 */
#include "helper_device_calls.h"
#include "helper_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"
#include "helper_child.h"

enum { TERMS = 96 };

static const struct device *gpu;
static const char *tuned_folder;  /* NULL: nothing is measured */

/* The kernel is prepared on a GPU that is full, and its output is the same afterwards, on any stream. */
static ls_status prepare_when_full(const struct kernel *k, struct call *c)
{
    uint32_t before[16], after[16];
    struct device_stream *other;
    void *p;

    for (size_t bytes = 1 << 26; bytes; bytes /= 2)
        while ((p = gpu->alloc(MEM_OTHER, bytes))) {
        }
    memset(before, 0x3c, sizeof before);
    LS_TRY(gpu->stream_new("another", &other));
    LS_TRY(gpu->fill(other, c->out[0].data, 0x3c, sizeof before));
    LS_TRY(k->prepare(c));
    LS_TRY(gpu->copy(other, c->scratch, c->out[0].data, sizeof after)); /* a race, if the output is still being restored */
    LS_TRY(gpu->copy_out(other, after, c->scratch, sizeof after));
    LS_TRY(gpu->stream_sync(other));
    return memcmp(before, after, sizeof before) ? ls_fail(LS_EINVAL, "prepare() has changed the output") : LS_OK;
}

/* Exit code 0, and on stderr a hash of sums whose terms lose other bits in another order. */
static int sum_once(void)
{
    struct view v = view_of(NULL, LS_F32, 2, (size_t[]){ 4, TERMS }), y = view_of(NULL, LS_F32, 2, (size_t[]){ 4, 4 });
    struct call c = { .op = OP_LINEAR, .nin = 3, .nout = 1, .in = { v, v }, .out = { y } };
    float number[4 * TERMS];
    uint32_t sum[16], hash = 0;
    char *data;

    gpu = device_find("cuda");
    if (!gpu || kernel_table_add(gpu) < 0)
        return 2;
    gpu->configure(&(struct device_settings){ .tuned = tuned_folder });
    c.in[2] = view_of(NULL, LS_F32, 1, (size_t[]){ 4 });
    const struct kernel *k = kernel_named(OP_LINEAR, "cublaslt");
    if (!k->accepts(&c) || !(data = gpu->alloc(MEM_OTHER, 2 * sizeof number + k->scratch(&c))))
        return 3;
    for (int i = 0; i < 4 * TERMS; i++)
        number[i] = (float)sin(i + 1);
    c.in[0].data = c.in[1].data = c.in[2].data = data;
    c.out[0].data = data + sizeof number;
    c.scratch = data + 2 * sizeof number;
    ls_status st = device_write(gpu, data, number, sizeof number);
    if (st == LS_OK)
        st = prepare_when_full(k, &c);
    if (st == LS_OK)
        st = kernel_launch(gpu, k, &c);
    if (st == LS_OK)
        st = device_read(gpu, sum, c.out[0].data, sizeof sum);
    k->release(&c);
    for (size_t i = 0; i < COUNT_OF(sum) && st == LS_OK; i++)
        hash = hash * 31 + sum[i];
    fprintf(stderr, "%08x %s", hash, st == LS_OK ? "" : ls_errmsg());
    return st < 0;
}

/* fastest: the algorithm that is the fastest on the stub. */
static struct child sum_in_child(const char *folder, int fastest)
{
    char settings[48];

    snprintf(settings, sizeof settings, "memory=80000000 fastest=%d", fastest);
    tuned_folder = folder;
    struct child c = child_run(settings, sum_once);
    if (c.code != 0)
        fail_msg("exit code %d, %s", c.code, c.err);
    return c;
}

static void cache_write(const char *path, const char *text, bool append)
{
    FILE *f = fopen(path, append ? "a" : "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool cache_has(const char *path, const char *text)
{
    char all[8192] = "";
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    assert_true(fread(all, 1, sizeof all - 1, f) > 0);
    fclose(f);
    return strstr(all, text);
}

static void test_measured_algorithms(void **state)
{
    enum { SPLIT = 3, PLAIN = 4 };
    char root[] = "/tmp/lockstep_test_XXXXXX", folder[64], path[96], command[96];

    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/new/cache", root);
    snprintf(path, sizeof path, "%s/matmuls.txt", folder);
    struct child first = sum_in_child(NULL, PLAIN);  /* nothing is measured: the first one */
    struct child plain = sum_in_child(folder, PLAIN);
    assert_string_not_equal(first.err, plain.err);
    assert_true(cache_has(path, "stub GPU 0 | cuBLASLt 130000 | f32 to f32 with bias | batch 1 | 96 x 4 / 96 + 0 T @64 |"));
    assert_string_equal(sum_in_child(folder, SPLIT).err, plain.err); /* the measured choice is stored */
    assert_string_equal(sum_in_child(NULL, SPLIT).err, first.err);   /* without the option it is not read */
    cache_write(path, "other\t0 0 0 0 0 0 0 0\t0.5\nsome garbage\n\t\nhalf\t1 2", true);
    assert_string_equal(sum_in_child(folder, SPLIT).err, plain.err);  /* a damaged file: what can be read counts */
    cache_write(path, "other\t0 0 0 0 0 0 0 0\t0.5\nsome garbage\n\t\nhalf\t1 2", false);
    struct child split = sum_in_child(folder, SPLIT);  /* measured anew, and the file written anew */
    assert_string_not_equal(split.err, plain.err);
    assert_string_not_equal(split.err, first.err);
    assert_true(cache_has(path, "other\t") && !cache_has(path, "garbage") && !cache_has(path, "half"));
    assert_string_equal(sum_in_child(folder, PLAIN).err, split.err);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* An algorithm that the library does not propose for the matmul any more is not used. */
static void test_old_algorithm(void **state)
{
    enum { PLAIN = 4 };
    char folder[] = "/tmp/lockstep_test_XXXXXX", command[200], path[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/matmuls.txt", folder);
    struct child plain = sum_in_child(folder, PLAIN);
    snprintf(command, sizeof command, "sed -i 's/\\t0000000000000004/\\t0000000000000009/' %s", path);
    assert_int_equal(system(command), 0);
    assert_true(cache_has(path, "\t0000000000000009"));
    assert_string_equal(sum_in_child(folder, PLAIN).err, plain.err);
    assert_true(!cache_has(path, "\t0000000000000009"));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- operands of every kind ---- */

static void check_case(void *ctx, struct kernel_case *c)
{
    enum { STRIDE = 16 };
    const struct kernel *k = kernel_named(c->call.op, "cublaslt");
    int *n = ctx;

    if (!k->accepts(&c->call) || (*n)++ % STRIDE)
        return;
    struct kernel_check *check = kernel_check_new(c);
    kernel_check_entry(check, k, c->name);
    kernel_check_free(check);
}

/* Measuring does not change accumulated outputs, bias gradients, GELU's input, or the gaps of a batch. */
static int cases_once(void)
{
    static const enum op ops[] = { OP_LINEAR_DW, OP_LINEAR_DW_BIAS, OP_LINEAR_UNARY, OP_MATMUL, OP_LINEAR_XENT_GRAD };
    int n = 0;

    gpu = device_find("cuda");
    if (!gpu || kernel_table_add(gpu) < 0)
        return 2;
    gpu->configure(&(struct device_settings){ .tuned = tuned_folder });
    device_calls_on = gpu;
    kernel_observer.run = device_calls_run;
    for (size_t k = 0; k < COUNT_OF(ops); k++)
        kernel_cases(ops[k], check_case, &n);
    return n < 100;
}

static void test_operands(void **state)
{
    char folder[] = "/tmp/lockstep_test_XXXXXX", command[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    tuned_folder = folder;
    struct child c = child_run("seed=1", cases_once);
    if (c.code != 0)
        fail_msg("exit code %d, %s", c.code, c.err);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_measured_algorithms), cmocka_unit_test(test_old_algorithm),
                                        cmocka_unit_test(test_operands) };

    unsetenv("CUDA_VISIBLE_DEVICES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
