/* test_onednn.c - oneDNN's kernels compared with the reference: sizes with and without packed weights, aligned and odd;
 * accumulation, biases, types, strides; calls that they refuse; how primitives are shared and freed.
 *
 * test_kernels.c runs them on the small cases of every op as well; test_onednn_threads.c has teams, forks and the module.
 */
#include "helper_onednn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/threads.h"
#include "kernels/cpu/onednn_load.h"
#include "train/faults/fault_points.h"

static const ls_dtype types[] = { LS_F32, LS_BF16 };

/* bf16 needs a processor that multiplies it. */
static bool usable(ls_dtype type)
{
    return isa_best() >= (type == LS_BF16 ? ISA_AVX512_BF16 : ISA_AVX2);
}

/* Runs the call on the original block of its output; returns a copy of the resulting block. */
static unsigned char *result(const struct kernel *k, struct kernel_case *c, const unsigned char *before,
                             unsigned char fill)
{
    unsigned char *after = malloc(c->out[0].bytes);

    assert_non_null(after);
    memcpy(c->out[0].base, before, c->out[0].bytes);
    kernel_run(k, &c->call, fill, c->name);
    memcpy(after, c->out[0].base, c->out[0].bytes);
    return after;
}

static struct view moved(const struct kernel_case *c, unsigned char *block)
{
    struct view v = c->call.out[0];

    v.data = block + ((unsigned char *)v.data - c->out[0].base);
    return v;
}

/* Near the reference, the same bits again, and nothing but the output written. */
static void onednn_check_case(struct kernel_case *c)
{
    const struct kernel *k = onednn_row(&c->call);
    struct block *b = &c->out[0];
    unsigned char *before = malloc(b->bytes);
    struct view v = c->call.out[0];
    size_t begin = (size_t)((unsigned char *)v.data - b->base), end = begin + view_bytes(&v);

    if (!k)
        fail_msg("%s is refused", c->name);
    assert_non_null(before);
    memcpy(before, b->base, b->bytes);
    unsigned char *want = result(kernel_reference(c->call.op), c, before, 0);
    unsigned char *got = result(k, c, before, 0xff);
    unsigned char *again = result(k, c, before, 0);
    struct view w = moved(c, want);
    struct view g = moved(c, got);
    kernel_compare(&c->call, 0, &g, &w, c->name);
    if (memcmp(got, again, b->bytes) != 0)
        fail_msg("%s: other bits on a second run", c->name);
    if (memcmp(got, before, begin) != 0 || memcmp(got + end, before + end, b->bytes - end) != 0)
        fail_msg("%s: wrote outside its output", c->name);
    free(before);
    free(want);
    free(got);
    free(again);
}

static void test_linear(void **state)
{
    static const size_t sizes[][3] = {
        { 1, 1, 1 }, { 2, 64, 64 }, { 33, 17, 65 }, { 256, 128, 192 }, { 131, 257, 97 },
    };
    static const enum op ops[] = { OP_LINEAR, OP_LINEAR_DX, OP_LINEAR_DW };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t o = 0; o < COUNT_OF(ops) && usable(types[t]); o++)
            for (size_t s = 0; s < COUNT_OF(sizes); s++)
                for (int variant = 0; variant < 2; variant++) {
                    bool dw = ops[o] == OP_LINEAR_DW, wide = variant == 1 || dw;
                    struct gemm_case p = { ops[o], sizes[s][0], sizes[s][1], sizes[s][2], types[t],
                                              wide ? LS_F32 : types[t], variant == 1 && ops[o] == OP_LINEAR };
                    struct kernel_case c;

                    onednn_open(&c, &p);
                    onednn_check_case(&c);
                    onednn_close(&c);
                }
}

/* Sums over 63 values, some of which crash oneDNN 2.6 with tile registers: other rows compute them there. */
static void test_sums_over_63(void **state)
{
    static const struct { enum op op; size_t m, k, n; } sums[] = {
        { OP_LINEAR, 28, 63, 80 }, { OP_LINEAR_DX, 28, 80, 63 }, { OP_LINEAR_DW, 63, 28, 80 }, { OP_LINEAR, 47, 63, 72 },
    };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t i = 0; i < COUNT_OF(sums) && usable(types[t]); i++) {
            bool dw = sums[i].op == OP_LINEAR_DW;
            struct gemm_case p = { sums[i].op, sums[i].m, sums[i].k, sums[i].n, types[t], dw ? LS_F32 : types[t], false };
            struct kernel_case c;

            onednn_open(&c, &p);
            if (types[t] == LS_BF16 && isa_best() == ISA_AMX)
                assert_null(onednn_row(&c.call));
            else
                onednn_check_case(&c);
            onednn_close(&c);
        }
}

/* Rows just under and at the bounds from which weights are packed; the scratch size shows which it is. */
static void test_packed(void **state)
{
    static const struct { enum op op; size_t rows; } many[] = { { OP_LINEAR, 4096 }, { OP_LINEAR_DX, 2048 } };
    static const size_t sizes[][2] = { { 64, 128 }, { 37, 51 } };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t i = 0; i < COUNT_OF(many) && usable(types[t]); i++)
            for (size_t s = 0; s < COUNT_OF(sizes); s++)
                for (size_t less = 0; less < 2; less++) {
                    struct gemm_case p = { many[i].op, many[i].rows - less, sizes[s][0], sizes[s][1], types[t],
                                              types[t], many[i].op == OP_LINEAR };
                    struct kernel_case c;

                    onednn_open(&c, &p);
                    if (!less && isa_best() >= ISA_AVX512)  /* for AVX2 oneDNN takes some of these weights as they are */
                        assert_true(onednn_row(&c.call)->scratch(&c.call) >= view_bytes(&c.call.in[1]));
                    onednn_check_case(&c);
                    onednn_close(&c);
                }
}

/* Heads side by side in memory, as attention has them; transposed matrices; the most dims. */
static void test_matmul(void **state)
{
    static const struct { int ndim, layout; size_t lead[4], m, k, n; } cases[] = {
        { 2, 0, { 0 }, 64, 64, 64 }, { 2, 2, { 0 }, 31, 33, 35 }, { 3, 0, { 3 }, 17, 70, 1 },
        { 3, 1, { 4 }, 65, 9, 33 }, { 4, 1, { 2, 3 }, 40, 24, 56 }, { 4, 2, { 3, 2 }, 1, 40, 19 },
        { 6, 0, { 2, 1, 3, 2 }, 5, 7, 9 },
    };

    (void)state;
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t i = 0; i < COUNT_OF(cases) && usable(types[t]); i++) {
            size_t a[LS_DIMS], b[LS_DIMS], y[LS_DIMS];
            int n = cases[i].ndim;
            struct kernel_case c = { .call = { .op = OP_MATMUL, .nin = 2, .nout = 1 } };

            for (int d = 0; d < n - 2; d++)
                a[d] = b[d] = y[d] = cases[i].lead[d];
            a[n - 2] = y[n - 2] = cases[i].m;
            a[n - 1] = b[n - 2] = cases[i].k;
            b[n - 1] = y[n - 1] = cases[i].n;
            snprintf(c.name, sizeof c.name, "matmul %s, case %zu", ls_dtype_name(types[t]), i);
            c.call.in[0] = onednn_filled(&c.in[0], types[t], n, a, cases[i].layout, 1);
            c.call.in[1] = onednn_filled(&c.in[1], types[t], n, b, cases[i].layout, 2);
            c.call.out[0] = onednn_filled(&c.out[0], types[t], n, y, 0, 4);
            onednn_check_case(&c);
            onednn_close(&c);
        }
}

static void unsupported_calls_are_refused(void **state)
{
    struct gemm_case p = { OP_LINEAR, 8, 16, 8, LS_F32, LS_F32, true };
    struct kernel_case c;
    struct call other;

    (void)state;
    onednn_open(&c, &p);
    assert_non_null(onednn_row(&c.call));
    for (int i = 0; i < 2; i++) {
        other = c.call;
        other.in[0].dtype = i ? LS_F16 : LS_F64;
        assert_null(onednn_row(&other));
    }
    other = c.call;
    other.in[2].dtype = LS_BF16; /* a bias of a smaller type than the output */
    assert_null(onednn_row(&other));
    other = c.call;
    other.in[0].size[0] = other.out[0].size[0] = 0;
    assert_null(onednn_row(&other));
    other = c.call;
    other.in[0].stride[1] = 2;
    assert_null(onednn_row(&other));
    if (isa_best() > ISA_ANY) {
        isa_cap(ISA_ANY);  /* below what oneDNN would use */
        assert_null(onednn_row(&c.call));
        isa_cap(ISA_AVX512);  /* the most that f32 uses */
        assert_non_null(onednn_row(&c.call));
        isa_cap(isa_all());
    }
    onednn_close(&c);
}

/* Calls of one kind share a primitive; another size, type or team has another one; each is freed with its last call. */
static void test_shared(void **state)
{
    struct gemm_case p = { OP_LINEAR_DW, 24, 16, 8, LS_F32, LS_F32, false }, q = p;
    struct kernel_case a, b;

    (void)state;
    q.R = 25;
    onednn_open(&a, &p);
    onednn_open(&b, &q);
    struct call again = a.call;
    const struct kernel *k = onednn_row(&a.call);
    assert_non_null(k);
    assert_int_equal(onednn_primitives(), 0);
    assert_int_equal(k->prepare(&a.call), LS_OK);
    assert_int_equal(k->prepare(&again), LS_OK);
    assert_int_equal(onednn_primitives(), 1);
    assert_int_equal(k->prepare(&b.call), LS_OK);
    assert_int_equal(onednn_primitives(), 2);
    k->release(&a.call);
    assert_int_equal(onednn_primitives(), 2);
    threads_set(2);
    assert_int_equal(k->prepare(&a.call), LS_OK);
    assert_int_equal(onednn_primitives(), 3);
    threads_set(3);
    k->release(&again);
    k->release(&b.call);
    assert_int_equal(onednn_primitives(), 1);
    k->release(&a.call);
    assert_null(a.call.state);
    assert_int_equal(onednn_primitives(), 0);
    onednn_close(&a);
    onednn_close(&b);
}

/* Each allocation of prepare() fails in turn: a status, nothing kept. run() allocates nothing. */
static void test_allocations(void **state)
{
    struct gemm_case p = { OP_LINEAR, 4096, 16, 8, LS_F32, LS_F32, true };
    struct mem_stats before, after;
    struct kernel_case c;
    int fails = 0;

    (void)state;
    onednn_open(&c, &p);
    const struct kernel *k = onednn_row(&c.call);
    assert_non_null(k);
    c.call.scratch = mem_alloc(MEM_OTHER, k->scratch(&c.call));
    mem_read(&before);
    for (int64_t nth = 1;; nth++) {
        mem_fail_at(nth);
        ls_status st = k->prepare(&c.call);
        mem_fail_at(0);
        if (st == LS_OK)
            break;
        assert_int_equal(st, LS_ENOMEM);
        assert_null(c.call.state);
        assert_int_equal(onednn_primitives(), 0);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        fails++;
    }
    assert_int_equal(fails, 2);
    mem_read(&before);
    k->run(&c.call);
    k->run(&c.call);
    mem_read(&after);
    assert_int_equal(after.calls, before.calls);
    k->release(&c.call);
    mem_free(c.call.scratch);
    onednn_close(&c);
}

static int onednn_start(void **state)
{
    (void)state;
    threads_set(3);
    isa_cap(isa_all());  /* pairs of bf16, even if they are slow */
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),      cmocka_unit_test(test_sums_over_63),
        cmocka_unit_test(test_packed),      cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_shared),      cmocka_unit_test(unsupported_calls_are_refused),
        cmocka_unit_test(test_allocations),
    };

    return cmocka_run_group_tests(tests, onednn_start, NULL);
}
