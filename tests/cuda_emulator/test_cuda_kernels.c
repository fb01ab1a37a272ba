/* test_cuda_kernels.c - every CUDA kernel, run by the emulator, compared with the reference, for every case of its op.
 *
 * As in test_kernels; in addition, a kernel accesses only bytes of its operands and its scratch, no two threads race, and the order
 * of threads and blocks changes no bit. Only small cases by default, all of them under LOCKSTEP_MATRIX=full. Entries that take many calls
 * at once give the bits of single ones.
 */
#include "emulator.h"
#include "helper_kernel_many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "kernels/cuda/parts.h"

enum { MOST_ROWS = 256, SMALL = 12000 };

#define PART_ROW(name) kernels_cuda_##name,
static const struct kernel *const cuda_kernels_parts[] = { CUDA_PARTS(PART_ROW) };
#undef PART_ROW

/* Ops without a CUDA kernel of ours, ended by OPS: pairs of ops that run as two unless a library has a kernel for both. */
static const enum op missing[] = { OP_LINEAR_DW_BIAS, OP_LINEAR_UNARY, OPS };

static const struct kernel *row_at(int i)
{
    for (size_t p = 0; p < COUNT_OF(cuda_kernels_parts); p++)
        for (const struct kernel *k = cuda_kernels_parts[p]; k->name; k++)
            if (i-- == 0)
                return k;
    return NULL;
}

static bool is_missing(enum op op)
{
    for (size_t i = 0; missing[i] != OPS; i++)
        if (missing[i] == op)
            return true;
    return false;
}

/* ---- memory that a call may touch ---- */

static struct { const char *base; size_t bytes; } given[2 * CALL_OPERANDS + 1];
static int givens;

static void cuda_kernels_give(const void *base, size_t bytes, size_t grain, bool writable, const char *name)
{
    for (int i = 0; i < givens; i++)
        if (given[i].base == base && given[i].bytes == bytes)
            return;
    given[givens].base = base;
    given[givens++].bytes = bytes;
    emulator_memory_add((void *)base, bytes, (void *)base, grain, writable, name);
}

static void give_view(const struct view *v, bool writable, const char *name)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (view_given(v) && view_reach(v, &low, &high))
        cuda_kernels_give((const char *)v->data + low * esize, (size_t)((high - low + 1) * esize), (size_t)esize, writable, name);
}

static void give_call(const struct call *c, size_t scratch)
{
    static const char *const in[] = { "input 0", "input 1", "input 2", "input 3", "input 4", "input 5", "input 6", "input 7" };
    static const char *const out[] = { "output 0", "output 1", "output 2", "output 3", "output 4", "output 5", "output 6", "output 7" };

    givens = 0;
    for (int i = 0; i < c->nout; i++)
        give_view(&c->out[i], true, out[i]);
    for (int i = 0; i < c->nin; i++)
        give_view(&c->in[i], false, in[i]);
    if (scratch)
        cuda_kernels_give(c->scratch, scratch, 4, true, "scratch");
    emulator_seed(emulator_launches() + 1);
}

static void take_back(const char *name)
{
    if (*emulator_report())
        fail_msg("%s: %s", name, emulator_report());
    emulator_memory_clear();
}

/* ---- cases ---- */

struct walk { unsigned runs[MOST_ROWS], cases, refused; bool all; };

static size_t case_elements(const struct call *c)
{
    size_t n = 0;

    for (int i = 0; i < c->nin; i++)
        n += view_count(&c->in[i]);
    for (int i = 0; i < c->nout; i++)
        n += view_count(&c->out[i]);
    return n;
}

static bool case_is_contiguous(const struct call *c)
{
    for (int i = 0; i < c->nin; i++)
        if (view_given(&c->in[i]) && !view_is_contiguous(&c->in[i]))
            return false;
    for (int i = 0; i < c->nout; i++)
        if (view_given(&c->out[i]) && !view_is_contiguous(&c->out[i]))
            return false;
    return true;
}

static void rows_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;
    struct kernel_check *check = NULL;
    const struct kernel *k;

    if (!w->all && case_elements(&c->call) > SMALL)
        return;
    for (int i = 0; (k = row_at(i)); i++) {
        char name[256];

        if (k->op != c->call.op || !k->accepts(&c->call))
            continue;
        if (!check)
            check = kernel_check_new(c);
        w->runs[i]++;
        snprintf(name, sizeof name, "%s by %s", c->name, k->name);
        kernel_check_entry(check, k, name);
    }
    w->cases++;
    w->refused += !check && !is_missing(c->call.op);
    if (check)
        kernel_check_free(check);
    else if (case_is_contiguous(&c->call) && !is_missing(c->call.op))
        fail_msg("%s: no CUDA kernel accepts it", c->name);
}

static void test_every_row(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX"), *only = getenv("LOCKSTEP_OP");
    static struct walk w;
    const struct kernel *k;

    (void)state;
    w.all = matrix && strcmp(matrix, "full") == 0;
    kernel_observer.before = give_call;
    kernel_observer.after = take_back;
    for (int op = 0; op < OPS; op++) {
        if (only && strcmp(only, op_name((enum op)op)))
            continue;
        kernel_cases((enum op)op, rows_check_case, &w);
    }
    for (int i = 0; !only && (k = row_at(i)); i++)
        if (w.runs[i] == 0)
            fail_msg("%s of %s accepts no case", k->name, op_name(k->op));
    printf("%u cases, %u of them with strides that no CUDA kernel takes; %llu launches\n", w.cases, w.refused,
           (unsigned long long)emulator_launches());
}

static void test_rows(void **state)
{
    bool has[OPS] = { false };
    const struct kernel *k, *other;

    (void)state;
    for (int i = 0; (k = row_at(i)); i++) {
        assert_true((unsigned)k->op < OPS && i < MOST_ROWS);
        assert_string_equal(k->device, "cuda");
        assert_non_null(k->accepts);
        assert_non_null(k->run);
        has[k->op] = true;
        for (int j = 0; j < i; j++) {
            other = row_at(j);
            if (other->op == k->op && (other->priority == k->priority || strcmp(other->name, k->name) == 0))
                fail_msg("%s has two rows of one name or priority", op_name(k->op));
        }
    }
    for (int op = 0; op < OPS; op++)
        if (has[op] == is_missing((enum op)op))
            fail_msg("%s %s", op_name((enum op)op),
                     has[op] ? "has a CUDA kernel: take it from the list of those that have none" : "has no CUDA kernel");
}

/* ---- many calls at once ---- */

static uint64_t singly, together; /* launches */

static void *region_copy(const void *bytes, size_t n, size_t grain)
{
    char *p = aligned_alloc(64, (n + 64) / 64 * 64);

    assert_non_null(p);
    memset(p, 0xff, n);
    if (bytes)
        memcpy(p, bytes, n);
    if (n)
        emulator_memory_add(p, n, p, grain, true, "an operand");
    return p;
}

static void region_read(void *host, const void *p, size_t n) { memcpy(host, p, n); }
static void region_drop(void *p) { free(p); }

static void region_run(const struct kernel *k, const struct call *c)
{
    uint64_t before = emulator_launches();

    k->run(c);
    singly += emulator_launches() - before;
}

static void region_run_many(const struct kernel *k, const struct call *const *c, int n)
{
    uint64_t before = emulator_launches();

    emulator_seed(before);
    k->run_many(c, n);
    together += emulator_launches() - before;
    if (*emulator_report())
        fail_msg("%s: %s", op_name(k->op), emulator_report());
}

static void test_many(void **state)
{
    static const struct many_place place = { region_copy, region_read, region_drop, region_run, region_run_many };
    const char *only = getenv("LOCKSTEP_OP");
    const struct kernel *k;
    int rows = 0;

    (void)state;
    for (int i = 0; (k = row_at(i)); i++) {
        rows += k->run_many != NULL;
        if (!k->run_many || (only && strcmp(only, op_name(k->op))))
            continue;
        singly = together = 0;
        kernel_check_many(k, &place, 300);
        emulator_memory_clear();
        printf("%s: 300 calls in %llu launches, %llu one by one\n", op_name(k->op), (unsigned long long)together,
               (unsigned long long)singly);
        assert_true(together * 10 < singly);
    }
    assert_int_equal(rows, 8);
}

/* ---- sizes ---- */

/* 65535 tiles of 64 columns fit in y of a grid; gradients of embeddings have tiles of 128. */
enum { MOST_COLUMNS = 65535 * 64, OPERANDS = 3 };

/* The first inputs and the first output of calls; the others are absent. Nothing is run. */
static const struct { enum op op; size_t in[OPERANDS - 1][4], out[4]; bool accepted; } sizes[] = {
    { OP_LINEAR, { { 2, 8 }, { MOST_COLUMNS, 8 } }, { 2, MOST_COLUMNS }, true },
    { OP_LINEAR, { { 2, 8 }, { MOST_COLUMNS + 1, 8 } }, { 2, MOST_COLUMNS + 1 }, false },
    { OP_CONV2D, { { 1, 2, 3, 3 }, { MOST_COLUMNS, 2, 3, 3 } }, { 1, MOST_COLUMNS, 1, 1 }, true },
    { OP_CONV2D, { { 1, 2, 3, 3 }, { MOST_COLUMNS + 1, 2, 3, 3 } }, { 1, MOST_COLUMNS + 1, 1, 1 }, false },
    { OP_CONV2D_DX, { { 1, 2, 1, 1 }, { 2, MOST_COLUMNS, 1, 1 } }, { 1, MOST_COLUMNS, 1, 1 }, true },
    { OP_CONV2D_DX, { { 1, 2, 1, 1 }, { 2, MOST_COLUMNS + 1, 1, 1 } }, { 1, MOST_COLUMNS + 1, 1, 1 }, false },
    { OP_CONV2D_DW, { { 1024, 8, 1024, 1024 }, { 1024, 8, 1024, 1024 } }, { 8, 8, 1, 1 }, true },
    { OP_CONV2D_DW, { { 1, 8, 1, 1 }, { 1, MOST_COLUMNS / 9 + 1, 1, 1 } }, { 8, MOST_COLUMNS / 9 + 1, 3, 3 }, false },
    { OP_LINEAR_XENT, { { 2, 8 }, { MOST_COLUMNS, 8 } }, { 1 }, true },
    { OP_LINEAR_XENT, { { 2, 8 }, { MOST_COLUMNS + 1, 8 } }, { 1 }, false },
    { OP_LINEAR_XENT, { { 2, MOST_COLUMNS + 1 }, { 8, MOST_COLUMNS + 1 } }, { 1 }, false },
    { OP_EMBEDDING_DW, { { 2, 2 * MOST_COLUMNS }, { 2 } }, { 3, 2 * MOST_COLUMNS }, true },
    { OP_EMBEDDING_DW, { { 2, 2 * MOST_COLUMNS + 1 }, { 2 } }, { 3, 2 * MOST_COLUMNS + 1 }, false },
};

static struct view sized_view(const size_t size[4])
{
    int ndim = 0;

    while (ndim < 4 && size[ndim])
        ndim++;
    return view_of(NULL, LS_F32, ndim, size);
}

static void test_sizes(void **state)
{
    const struct kernel *k;

    (void)state;
    for (size_t n = 0; n < COUNT_OF(sizes); n++) {
        struct call c = { .op = sizes[n].op, .nin = 2, .nout = 1 };
        bool accepted = false;

        for (int i = 0; i < OPERANDS - 1; i++)
            c.in[i] = sized_view(sizes[n].in[i]);
        c.out[0] = sized_view(sizes[n].out);
        if (c.op == OP_LINEAR_XENT)
            c.in[c.nin++] = view_of(NULL, LS_I32, 1, c.in[0].size);
        if (c.op == OP_EMBEDDING_DW)
            c.in[1].dtype = LS_I32;
        for (int i = 0; (k = row_at(i)); i++)
            accepted = accepted || (k->op == c.op && k->accepts(&c));
        if (accepted != sizes[n].accepted)
            fail_msg("row %zu, %s: %s", n, op_name(c.op), accepted ? "a kernel accepts it" : "no kernel accepts it");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_every_row),
        cmocka_unit_test(test_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
