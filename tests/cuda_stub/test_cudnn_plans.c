/* test_cudnn_plans.c - asks the real cuDNN, without a GPU, for an engine for each graph of src/kernels/cuda/cudnn_*.c, on GPUs with given
 * properties: every call that the rows accept must have one, whose workspace keeps to the limit that scratch has room for. cuDNN chooses,
 * compiles and lays out the kernels as it would on such a GPU; cudnn_driver.c takes them. Skipped without cuDNN. LOCKSTEP_MATRIX=full: all
 * shapes on all GPUs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_conv.h"

enum { SKIPPED = 77, PROPERTIES = 1024 };

/* ---- in place of the device ---- */

struct cuda_state cuda;

void *cuda_library_open(const char *file, char *path, size_t room)
{
    snprintf(path, room, "%s", "");
    return dlopen(file, RTLD_NOW);
}

void cuda_library_warn(const char *file, const char *lacks, const char *instead)
{
    (void)instead;
    printf("%s: %s\n", file, lacks ? lacks : "not found");
}

ls_status cuda_stream(struct device_stream *s, struct device_stream **out)
{
    (void)s;
    *out = NULL;
    return LS_OK;
}

ls_status cuda_fail(ls_status st)
{
    fail_msg("%s", ls_errmsg());
    return st;
}

ls_status flight_room(struct device_stream *s)
{
    (void)s;
    return LS_OK;
}

/* ---- GPUs ---- */

/* From NVIDIA's data sheets and the CUDA C++ Programming Guide's table of compute capabilities. */
static const struct gpu { const char *name; int version, processors, shared, l2; double gigabytes; } gpus[] = {
    { "NVIDIA A100-SXM4-80GB", 800, 108, 163 << 10, 40 << 20, 80 },
    { "NVIDIA H100 80GB HBM3", 900, 132, 227 << 10, 50 << 20, 80 },
    { "NVIDIA B200", 1000, 148, 227 << 10, 126 << 20, 180 },
};

static cudnnBackendDescriptor_t properties_of(const struct gpu *g)
{
    char text[PROPERTIES];
    cudnnBackendDescriptor_t d;

    snprintf(text, sizeof text,
             "{\"version\":%zu,\"cudaDeviceId\":0,\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":13000,\"isTccDriver\":0,"
             "\"l2CacheSize\":%d,\"maxBlockSize\":[1024,1024,64],\"maxCtasPerSM\":32,\"maxGridSize\":[2147483647,65535,65535],"
             "\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
             "\"maxThreadsPerBlock\":1024,"
             "\"maxThreadsPerSM\":2048,\"memClockRateKHz\":2619000,\"multiProcessorCount\":%d,\"pciDeviceId\":0,\"regsPerBlock\":65536,"
             "\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1980000,\"supportCoopLaunch\":1,\"totalGlobalMem\":%.0f,"
             "\"warpSize\":32}",
             cudnn.GetVersion(), g->name, g->version, g->l2, g->shared, g->processors, g->gigabytes * 0x1p30);
    assert_int_equal(cudnn.BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d), CUDNN_STATUS_SUCCESS);
    assert_int_equal(
        cudnn.BackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(text) + 1, text),
        CUDNN_STATUS_SUCCESS);
    assert_int_equal(cudnn.BackendFinalize(d), CUDNN_STATUS_SUCCESS);
    return d;
}

static bool is_full(void)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX");

    return matrix && strcmp(matrix, "full") == 0;
}

/* ---- attention ---- */

/* Of queries T and keys S; packed: q, k and v are parts of one tensor. */
static const struct attention_shape { size_t B, T, S, H, G, D; bool causal, packed; ls_dtype type; } attentions[] = {
    { 8, 1024, 1024, 12, 12, 64, true, true, LS_BF16 },   /* GPT-2 */
    { 2, 4096, 4096, 32, 8, 64, true, false, LS_BF16 },   /* Llama 1B: the gradient in parts */
    { 3, 77, 130, 6, 2, 96, true, false, LS_F16 },        /* a part of the queries, at the end */
    { 2, 130, 33, 4, 4, 40, false, false, LS_BF16 },      /* a step of ring attention */
    { 1, 2, 2, 1, 1, 8, true, true, LS_BF16 },            /* the smallest */
    { 1, 4096, 4096, 16, 4, 128, true, false, LS_BF16 },
    { 16, 512, 512, 16, 16, 80, true, true, LS_F16 },
    { 1, 1000, 1000, 7, 1, 120, false, false, LS_BF16 },
    { 5, 64, 64, 3, 3, 24, true, true, LS_BF16 },
    { 2, 192, 192, 32, 8, 64, true, false, LS_F16 },      /* lengths that Hopper's tiles round up */
    { 2, 1088, 1088, 4, 4, 64, true, false, LS_BF16 },
    { 3, 63, 321, 7, 1, 128, true, false, LS_BF16 },
    { 1, 127, 1023, 8, 8, 128, true, false, LS_F16 },
};

static struct view cudnn_plans_heads_of(const struct attention_shape *s, size_t rows, size_t heads)
{
    struct view v = view_of(NULL, s->type, 4, (size_t[]){ s->B, rows, heads, s->D });

    if (s->packed) {
        v.stride[1] *= 3;
        v.stride[0] *= 3;
    }
    return v;
}

static struct call attention_call(const struct attention_shape *s, bool gradient)
{
    struct view q = cudnn_plans_heads_of(s, s->T, s->H), k = cudnn_plans_heads_of(s, s->S, s->G),
                lse = view_of(NULL, LS_F32, 3, (size_t[]){ s->B, s->H, s->T });
    struct view o = view_of(NULL, s->type, 4, (size_t[]){ s->B, s->T, s->H, s->D });
    struct call c = { .op = gradient ? OP_ATTENTION_GRAD : OP_ATTENTION, .nin = gradient ? 6 : 3, .nout = gradient ? 3 : 2,
                      .in = { q, k, k, o, lse, o } };

    c.attr.attention.causal = s->causal;
    c.attr.attention.scale = 0.125;
    c.out[0] = gradient ? q : o;
    c.out[1] = gradient ? k : lse;
    c.out[2] = k;
    return c;
}

/* True if cuDNN has an engine, and the first one that it proposes keeps to the limit. */
static bool has_engine(struct cudnn_graph *g, cudnnBackendDescriptor_t gpu, size_t most, bool tensor_cores, const char *what)
{
    struct cudnn_plan *p = NULL;
    ls_status st = cudnn_plan_new(g, &(struct cudnn_target){ .properties = gpu },
                                  &(struct cudnn_limits){ .workspace = SIZE_MAX, .tensor_cores = tensor_cores }, &p);

    if (st < 0 && what)
        print_message("%s: %s\n", what, ls_errmsg());
    if (st == LS_OK && cudnn_plan_workspace(p) > most)
        fail_msg("%s: a workspace of %zu bytes, %zu are allowed", what, cudnn_plan_workspace(p), most);
    cudnn_plan_free(p);
    return st == LS_OK;
}

static void attention_check(const struct attention_shape *s, bool gradient, const struct gpu *g, cudnnBackendDescriptor_t gpu)
{
    struct call c = attention_call(s, gradient);
    char what[200];

    snprintf(what, sizeof what, "%s: attention%s B %zu T %zu S %zu H %zu G %zu D %zu%s", g->name, gradient ? "'s gradient" : "", s->B, s->T,
             s->S, s->H, s->G, s->D, s->causal ? " causal" : "");
    assert_true(cudnn_attention_accepts(&c));
    struct call part = cudnn_attention_part(&c, cudnn_attention_parts(&c) - 1);
    if (!cudnn_attention_repeats(&c, g->version / 100))
        return;
    if (!has_engine(cudnn_attention_graph(&part), gpu, cudnn_attention_workspace(&part), true, what))
        fail_msg("%s: cuDNN has no engine", what);
}

static void test_attention(void **state)
{
    size_t n = COUNT_OF(attentions);

    (void)state;
    for (size_t g = 0; g < COUNT_OF(gpus); g++) {
        cudnnBackendDescriptor_t gpu = properties_of(&gpus[g]);

        for (size_t k = 0; k < n; k++)
            for (int gradient = 0; gradient < 2; gradient++)
                if (is_full() || (k + g) % 3 == 0)
                    attention_check(&attentions[k], gradient, &gpus[g], gpu);
    }
}

/* The rows refuse heads of some sizes because cuDNN has no engine for them. */
static void test_attention_refused(void **state)
{
    struct attention_shape s = { 2, 64, 64, 2, 2, 12, true, false, LS_BF16 };
    struct call c = attention_call(&s, false);

    (void)state;
    assert_false(cudnn_attention_accepts(&c));
    assert_false(has_engine(cudnn_attention_graph(&c), properties_of(&gpus[1]), SIZE_MAX, true, NULL));
}

/* Where the last tile has more keys or queries than there are, and cuDNN's gradient does not mask them, it is refused; forward is not. */
static void test_unmasked_gradients_are_refused(void **state)
{
    static const struct { size_t T, S; bool causal, refused; } all[] = {
        { 64, 64, false, true },   { 64, 64, true, false },    { 128, 192, false, true },  { 128, 192, true, false },
        { 128, 128, false, false }, { 192, 128, false, false }, { 100, 100, false, false }, { 33, 65, false, false },
        { 63, 320, true, true },    { 63, 128, false, true },   { 63, 128, true, true },    { 63, 321, true, false },
        { 2, 97, false, false },    { 1000, 1000, false, false },
    };
    cudnnBackendDescriptor_t gpu = properties_of(&gpus[1]);

    (void)state;
    for (size_t k = 0; k < COUNT_OF(all); k++) {
        struct attention_shape s = { 2, all[k].T, all[k].S, 4, 2, 64, all[k].causal, false, LS_BF16 };
        struct call c = attention_call(&s, true), forward = attention_call(&s, false);

        if (cudnn_attention_accepts(&c) == all[k].refused)
            fail_msg("T %zu S %zu causal %d", s.T, s.S, s.causal);
        assert_true(cudnn_attention_accepts(&forward));
    }
    struct attention_shape s = { 3, 63, 320, 7, 1, 128, true, false, LS_BF16 };
    struct call c = attention_call(&s, false);
    assert_true(has_engine(cudnn_attention_graph(&c), gpu, cudnn_attention_workspace(&c), true, "63 queries"));
}

/* Parts are whole samples, or groups of heads of one sample; together they are the call. */
static void test_attention_parts(void **state)
{
    struct attention_shape s = { 6, 64, 64, 8, 4, 16, true, false, LS_BF16 };
    struct call c = attention_call(&s, true), part;
    const size_t before = cudnn_pairs_most, head = 128 * 128 * 2; /* rounded up */
    const struct { size_t most; int parts; size_t samples, groups; } want[] = {
        { 48 * head, 1, 6, 4 }, { 47 * head, 2, 3, 4 },  { 16 * head, 3, 2, 4 },
        { 8 * head, 6, 1, 4 },  { 7 * head, 12, 1, 2 }, { 2 * head, 24, 1, 1 },
    };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(want); k++) {
        cudnn_pairs_most = want[k].most;
        part = cudnn_attention_part(&c, want[k].parts - 1);
        assert_int_equal(cudnn_attention_parts(&c), want[k].parts);
        assert_int_equal(part.in[0].size[0], want[k].samples);
        assert_int_equal(part.in[1].size[2], want[k].groups);
        assert_int_equal(part.in[0].size[2], 2 * want[k].groups);
        assert_int_equal(part.in[4].size[1], 2 * want[k].groups);
        assert_ptr_equal(part.in[1].data, (char *)(((6 - want[k].samples) * 64 * 4 + 4 - want[k].groups) * 16 * 2));
        assert_ptr_equal(part.in[4].data, (char *)(((6 - want[k].samples) * 8 + 2 * (4 - want[k].groups)) * 64 * 4));
    }
    cudnn_pairs_most = 2 * head - 1;
    assert_false(cudnn_attention_accepts(&c));
    cudnn_pairs_most = before;
}

/* ---- convolutions ---- */

static const struct conv_shape { size_t B, C, H, O, K, stride, padding; } convs[] = {
    { 64, 64, 32, 128, 3, 2, 1 }, { 64, 64, 32, 64, 3, 1, 1 }, { 32, 3, 32, 64, 3, 1, 1 },
    { 64, 64, 32, 128, 1, 2, 0 }, { 3, 5, 9, 7, 3, 1, 1 },     { 2, 8, 7, 4, 5, 2, 2 }, { 128, 256, 8, 512, 3, 2, 1 },
    { 64, 3, 224, 64, 7, 2, 3 },
};

static struct call conv_call(const struct conv_shape *s, enum op op, ls_dtype type)
{
    size_t out = (s->H + 2 * s->padding - s->K) / s->stride + 1;
    struct view x = view_of(NULL, type, 4, (size_t[]){ s->B, s->C, s->H, s->H });
    struct view w = view_of(NULL, type, 4, (size_t[]){ s->O, s->C, s->K, s->K });
    struct view y = view_of(NULL, type, 4, (size_t[]){ s->B, s->O, out, out });
    struct call c = { .op = op, .nin = 2, .nout = 1 };

    c.in[0] = op == OP_CONV2D ? x : y;
    c.in[1] = op == OP_CONV2D_DW ? x : w;
    c.out[0] = op == OP_CONV2D ? y : op == OP_CONV2D_DX ? x : w;
    if (op == OP_CONV2D_DW)
        c.out[0].dtype = LS_F32;
    c.attr.conv.stride = s->stride;
    c.attr.conv.padding = s->padding;
    return c;
}

static void conv_check(const struct conv_shape *s, enum op op, ls_dtype type, const struct gpu *g, cudnnBackendDescriptor_t gpu)
{
    struct call c = conv_call(s, op, type);
    char what[200];

    snprintf(what, sizeof what, "%s: %s of %s, B %zu C %zu H %zu O %zu K %zu stride %zu", g->name,
             op == OP_CONV2D ? "convolution" : op == OP_CONV2D_DX ? "its dx" : "its dw", ls_dtype_name(type), s->B, s->C, s->H, s->O, s->K,
             s->stride);
    assert_true(cudnn_conv_accepts(&c));
    if (!has_engine(cudnn_conv_graph(&c), gpu, cudnn_conv_workspace(&c), type != LS_F32, what))
        fail_msg("%s: cuDNN has no engine", what);
}

static void test_convolutions(void **state)
{
    static const enum op ops[] = { OP_CONV2D, OP_CONV2D_DX, OP_CONV2D_DW };
    static const ls_dtype types[] = { LS_F32, LS_BF16, LS_F16 };

    (void)state;
    for (size_t g = 0; g < COUNT_OF(gpus); g++) {
        cudnnBackendDescriptor_t gpu = properties_of(&gpus[g]);

        for (size_t k = 0; k < COUNT_OF(convs); k++)
            for (size_t o = 0; o < COUNT_OF(ops); o++)
                for (size_t t = 0; t < COUNT_OF(types); t++)
                    if (is_full() || (k + o + t + g) % 3 == 0)
                        conv_check(&convs[k], ops[o], types[t], &gpus[g], gpu);
    }
}

/* Equal graphs share a plan, also one without an engine. */
static void test_plans_are_shared(void **state)
{
    struct conv_shape s = convs[1];
    struct call c = conv_call(&s, OP_CONV2D, LS_BF16);
    struct cudnn_target t = { .properties = properties_of(&gpus[1]) };
    struct cudnn_limits l = { .workspace = cudnn_conv_workspace(&c), .tensor_cores = true };
    struct cudnn_plan *a = NULL, *b = NULL, *other = NULL;

    (void)state;
    assert_int_equal(cudnn_plan_new(cudnn_conv_graph(&c), &t, &l, &a), LS_OK);
    assert_int_equal(cudnn_plan_new(cudnn_conv_graph(&c), &t, &l, &b), LS_OK);
    assert_ptr_equal(a, b);
    s.stride = 2;
    c = conv_call(&s, OP_CONV2D, LS_BF16);
    assert_int_equal(cudnn_plan_new(cudnn_conv_graph(&c), &t, &l, &other), LS_OK);
    assert_ptr_not_equal(a, other);
    cudnn_plan_free(a);
    cudnn_plan_free(b);
    cudnn_plan_free(other);
    c = attention_call(&(struct attention_shape){ 2, 64, 64, 2, 2, 12, true, false, LS_BF16 }, false);
    assert_int_equal(cudnn_plan_new(cudnn_attention_graph(&c), &t, &l, &a), LS_EUNSUPPORTED);
    assert_int_equal(cudnn_plan_new(cudnn_attention_graph(&c), &t, &l, &b), LS_EUNSUPPORTED);
    assert_ptr_equal(a, b);
    cudnn_plan_free(a);
    cudnn_plan_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_parts),   cmocka_unit_test(test_attention),        cmocka_unit_test(test_attention_refused),
        cmocka_unit_test(test_convolutions),      cmocka_unit_test(test_plans_are_shared),
        cmocka_unit_test(test_unmasked_gradients_are_refused),
    };

    if (!cudnn_found()) {
        printf("skipped: cuDNN 9 was not found by the loader\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
