/* test_kernels.c - every entry of the kernel table against the reference, for every case of its op.
 *
 * For each entry that this machine can run, under each cap of the instruction set: the result within the op's
 * tolerance, the same bits a second time with other scratch contents, no byte touched that isn't the output's, and
 * the in-place forms that the op allows.
 */
#include "device/device.h"
#include "helper_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/threads.h"
#include "kernels/op_shapes.h"

enum { MOST_ENTRIES = 512 };

/* Copies of a case's blocks as they were made. */
struct pristine { unsigned char *in[CALL_OPERANDS], *out[CALL_OPERANDS]; };

static unsigned char *copy_of(const struct block *b)
{
    unsigned char *copy = b->base ? malloc(b->bytes) : NULL;

    if (copy)
        memcpy(copy, b->base, b->bytes);
    return copy;
}

static void pristine_take(struct pristine *p, const struct kernel_case *c)
{
    for (int i = 0; i < CALL_OPERANDS; i++) {
        p->in[i] = copy_of(&c->in[i]);
        p->out[i] = copy_of(&c->out[i]);
    }
}

static void pristine_restore(const struct pristine *p, struct kernel_case *c)
{
    for (int i = 0; i < CALL_OPERANDS; i++) {
        if (p->in[i])
            memcpy(c->in[i].base, p->in[i], c->in[i].bytes);
        if (p->out[i])
            memcpy(c->out[i].base, p->out[i], c->out[i].bytes);
    }
}

static void pristine_free(struct pristine *p)
{
    for (int i = 0; i < CALL_OPERANDS; i++) {
        free(p->in[i]);
        free(p->out[i]);
    }
}

/* The reference's results, as contiguous views. */
struct expected { struct view out[CALL_OPERANDS]; void *data[CALL_OPERANDS]; };

static void *elements_of(const struct view *v)
{
    size_t esize = ls_dtype_bytes(v->dtype), count = view_count(v);
    char *data = malloc(count * esize + 1);

    assert_non_null(data);
    if (view_is_contiguous(v)) {
        memcpy(data, v->data, count * esize);
        return data;
    }
    for (size_t i = 0; i < count; i++)
        memcpy(data + i * esize, (char *)v->data + view_offset(v, i) * (ptrdiff_t)esize, esize);
    return data;
}

static void expect(struct expected *e, struct kernel_case *c)
{
    char why[256];

    memset(e, 0, sizeof *e);
    if (!op_shapes_fit(&c->call, why, sizeof why))
        fail_msg("%s: %s", c->name, why);
    kernel_run(kernel_reference(c->call.op), &c->call, 0xff, c->name);
    for (int i = 0; i < c->call.nout; i++)
        if (call_has_out(&c->call, i)) {
            e->data[i] = elements_of(&c->call.out[i]);
            e->out[i] = view_of(e->data[i], c->call.out[i].dtype, c->call.out[i].ndim, c->call.out[i].size);
        }
}

static void expected_free(struct expected *e)
{
    for (int i = 0; i < CALL_OPERANDS; i++)
        free(e->data[i]);
}

/* Whatever of an output's block is not an element of the output is as it was. */
static void check_surroundings(const struct view *v, const struct block *b, const unsigned char *before,
                               const char *name)
{
    size_t esize = ls_dtype_bytes(v->dtype);
    size_t count = view_count(v), run = view_is_contiguous(v) ? MAX(count, (size_t)1) : 1;
    unsigned char *now = copy_of(b);

    for (size_t i = 0; i < count; i += run) {
        size_t at = (size_t)((unsigned char *)v->data - b->base) + (size_t)view_offset(v, i) * esize;

        memcpy(now + at, before + at, run * esize);
    }
    for (size_t i = 0; i < b->bytes; i++)
        if (now[i] != before[i])
            fail_msg("%s: wrote byte %zu of the block, outside the output that starts at %zu", name, i,
                     (size_t)((unsigned char *)v->data - b->base));
    free(now);
}

static void check_result(const struct kernel_case *c, const struct expected *e, const char *name)
{
    for (int i = 0; i < c->call.nout; i++)
        if (call_has_out(&c->call, i))
            kernel_compare(&c->call, i, &c->call.out[i], &e->out[i], name);
}

/* Once with each scratch filling: the second run has to give the bits of the first. */
static void check_plain(const struct kernel *k, struct kernel_case *c, const struct pristine *p,
                        const struct expected *e, const char *name)
{
    struct pristine first;

    pristine_restore(p, c);
    kernel_run(k, &c->call, 0xff, name);
    check_result(c, e, name);
    for (int i = 0; i < c->call.nout; i++)
        if (call_has_out(&c->call, i))
            check_surroundings(&c->call.out[i], &c->out[i], p->out[i], name);
    for (int i = 0; i < c->call.nin; i++)
        if (p->in[i] && memcmp(p->in[i], c->in[i].base, c->in[i].bytes) != 0)
            fail_msg("%s: input %d was changed", name, i);
    pristine_take(&first, c);
    pristine_restore(p, c);
    kernel_run(k, &c->call, 0, name);
    for (int i = 0; i < c->call.nout; i++)
        if (first.out[i] && memcmp(first.out[i], c->out[i].base, c->out[i].bytes) != 0)
            fail_msg("%s: output %d differs on a second run", name, i);
    pristine_free(&first);
}

static bool same_shape(const struct view *a, const struct view *b)
{
    if (!view_given(a) || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->size[d] != b->size[d])
            return false;
    return true;
}

static void check_in_place(const struct kernel *k, struct kernel_case *c, const struct pristine *p,
                           const struct expected *e, const char *name)
{
    for (int i = 0; i < c->call.nin; i++) {
        struct kernel_case alias = *c;
        char text[300];

        if (!(op_inplace_mask(c->call.op) >> i & 1) || !same_shape(&c->call.in[i], &c->call.out[0]))
            continue;
        snprintf(text, sizeof text, "%s in place of input %d", name, i);
        alias.call.out[0] = c->call.in[i];
        if (c->call.op == OP_SWIGLU_GRAD)
            alias.call.out[1] = c->call.in[1];
        if (!k->accepts(&alias.call))
            continue;
        pristine_restore(p, c);
        kernel_run(k, &alias.call, 0xff, text);
        check_result(&alias, e, text);
        check_surroundings(&alias.call.out[0], &c->in[i], p->in[i], text);
    }
}

struct walk { unsigned runs[MOST_ENTRIES]; };

static void entries_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;
    struct pristine p;
    struct expected e;
    const struct kernel *k;

    pristine_take(&p, c);
    expect(&e, c);
    for (int cap = ISA_AVX2; cap < ISAS; cap++) {
        isa_cap((enum isa)cap);
        if (isa_best() != (enum isa)cap)
            continue;
        for (int i = 0; (k = kernel_at(i)); i++) {
            char name[256];

            if (k->op != c->call.op || k->isa > isa_best() || !k->accepts(&c->call))
                continue;
            assert_true(i < MOST_ENTRIES);
            w->runs[i]++;
            snprintf(name, sizeof name, "%s by %s (%s)", c->name, k->name, isa_name((enum isa)cap));
            check_plain(k, c, &p, &e, name);
            check_in_place(k, c, &p, &e, name);
        }
    }
    isa_cap(ISAS - 1);
    expected_free(&e);
    pristine_free(&p);
}

static void test_every_entry(void **state)
{
    static struct walk w;
    const struct kernel *k;

    (void)state;
    threads_set(3);
    for (int op = 0; op < OPS; op++)
        if (kernel_cases((enum op)op, entries_check_case, &w) == 0)
            fail_msg("%s has no case", op_name((enum op)op));
    for (int i = 0; (k = kernel_at(i)); i++)
        if (k->isa <= isa_best() && w.runs[i] == 0)
            fail_msg("entry %s of %s accepts no case", k->name, op_name(k->op));
}

static void test_table(void **state)
{
    const struct kernel *k, *other;

    (void)state;
    for (int i = 0; (k = kernel_at(i)); i++) {
        assert_true((unsigned)k->op < OPS);
        assert_non_null(k->accepts);
        assert_non_null(k->run);
        assert_ptr_equal(kernel_named(k->op, k->name), k);  /* one entry per op and name, */
        assert_true(k->priority == PRIORITY_REFERENCE || k->accepts != kernel_reference(k->op)->accepts);
        for (int j = 0; (other = kernel_at(j)); j++)        /* and per op and priority */
            assert_true(other == k || other->op != k->op || other->priority != k->priority);
    }
    for (int op = 0; op < OPS; op++) {
        k = kernel_reference((enum op)op);
        assert_string_equal(k->name, "reference");
        assert_int_equal(k->isa, ISA_ANY);
    }
}

/* Under a cap the entries above it are not chosen, and f64 finds the reference. */
static void test_choose(void **state)
{
    float data[16] = { 0 };
    struct call c = { .op = OP_SCALE, .nin = 1, .nout = 1 };
    static const char *const names[ISAS] = { "reference", "avx2", "avx512", "avx512", "avx512" };
    enum isa best = isa_best();

    (void)state;
    c.in[0] = c.out[0] = view_of(data, LS_F32, 1, (size_t[]){ 16 });
    for (int cap = 0; cap <= (int)best; cap++) {
        isa_cap((enum isa)cap);
        assert_int_equal(isa_best(), cap);
        assert_true(kernel_choose(&c, &device_cpu)->isa <= (enum isa)cap);
        assert_string_equal(kernel_choose(&c, &device_cpu)->name, names[cap]);
    }
    isa_cap(ISAS - 1);
    c.in[0].dtype = c.out[0].dtype = LS_F64;
    assert_ptr_equal(kernel_choose(&c, &device_cpu), kernel_reference(OP_SCALE));
    assert_ptr_equal(kernel_choose(&c, device_find("check")), kernel_reference(OP_SCALE));
    assert_null(kernel_choose(&c, &(struct device){ .name = "abacus", .kernels = "abacus" }));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_choose),
        cmocka_unit_test(test_every_entry),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
