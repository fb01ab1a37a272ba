/* helper_kernel_check.c - compares an entry of the kernel table with the reference, for one case. */
#include "helper_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "kernels/op_shapes.h"

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

static void kernel_check_expect(struct expected *e, struct kernel_case *c)
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

/* All bytes of an output's block that are not elements of the output are unchanged. */
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
    for (size_t i = memcmp(now, before, b->bytes) != 0 ? 0 : b->bytes; i < b->bytes; i++)
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

struct kernel_check { struct kernel_case *c; struct pristine p; struct expected e; };

struct kernel_check *kernel_check_new(struct kernel_case *c)
{
    struct kernel_check *k = malloc(sizeof *k);

    assert_non_null(k);
    k->c = c;
    pristine_take(&k->p, c);
    kernel_check_expect(&k->e, c);
    return k;
}

void kernel_check_entry(struct kernel_check *k, const struct kernel *entry, const char *name)
{
    check_plain(entry, k->c, &k->p, &k->e, name);
    check_in_place(entry, k->c, &k->p, &k->e, name);
}

void kernel_check_free(struct kernel_check *k)
{
    expected_free(&k->e);
    pristine_free(&k->p);
    free(k);
}
