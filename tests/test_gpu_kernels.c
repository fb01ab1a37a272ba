/* test_gpu_kernels.c - every kernel of the CUDA module on the device itself, against the reference, for every case of its op.
 *
 * test_cuda_kernels does the same on the emulator, which also finds races and accesses out of bounds. Here the compiled kernels run, and
 * bytes beside the operands must not change. Skipped with a reason where the device cannot be used. LOCKSTEP_CUDA_MODULE may name the
 * module on the stub of the CUDA runtime, to test this test. Small cases by default, all of them under LOCKSTEP_MATRIX=full;
 * LOCKSTEP_OP=NAME: of one op.
 */
#include "helper_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/device.h"
#include "helper_check.h"

enum { SKIPPED = 77, SIDE = 256, SMALL = 50000, RANGES = 2 * CALL_OPERANDS + 1, MOST_ROWS = 1024 };

static const struct device *device;

/* ---- operands on the device ---- */

/* Bytes of the host, with a copy on the device between SIDE bytes of 0xa5; the copy has the same alignment up to 64. */
struct range { char *begin, *end, *base; };
struct ranges { struct range at[RANGES]; int n; };

static void ranges_add(struct ranges *r, char *begin, char *end)
{
    for (int i = 0; i < r->n; i++)
        if (begin < r->at[i].end && r->at[i].begin < end) {  /* one range for both */
            struct range old = r->at[i];

            r->at[i] = r->at[--r->n];
            ranges_add(r, old.begin < begin ? old.begin : begin, old.end > end ? old.end : end);
            return;
        }
    r->at[r->n++] = (struct range){ begin, end, NULL };
}

static void ranges_add_view(struct ranges *r, const struct view *v)
{
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);

    if (view_given(v) && view_reach(v, &low, &high))
        ranges_add(r, (char *)v->data + low * esize, (char *)v->data + (high + 1) * esize);
}

static size_t range_shift(const struct range *r) { return SIDE + (uintptr_t)r->begin % 64; }

static void range_upload(struct range *r)
{
    size_t bytes = (size_t)(r->end - r->begin);

    r->base = device->alloc(MEM_OTHER, range_shift(r) + bytes + SIDE);
    if (!r->base)
        fail_msg("%s", ls_errmsg());
    OK(device->fill(NULL, r->base, 0xa5, range_shift(r) + bytes + SIDE));
    OK(device->copy_in(NULL, r->base + range_shift(r), r->begin, bytes));
}

static void check_side(const char *host, size_t bytes, const char *where, const char *name)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)host[i] != 0xa5)
            fail_msg("%s: wrote byte %zu of the %zu %s an operand", name, i, bytes, where);
}

static void range_download(struct range *r, const char *name)
{
    size_t bytes = (size_t)(r->end - r->begin), before = range_shift(r);
    char *all = malloc(before + bytes + SIDE);

    assert_non_null(all);
    OK(device->copy_out(NULL, all, r->base, before + bytes + SIDE));
    OK(device->stream_sync(NULL));
    check_side(all, before, "before", name);
    check_side(all + before + bytes, SIDE, "after", name);
    memcpy(r->begin, all + before, bytes);
    free(all);
    device->free(r->base);
}

static void *range_find(const struct ranges *r, const void *host)
{
    for (int i = 0; i < r->n; i++)
        if ((const char *)host >= r->at[i].begin && (const char *)host < r->at[i].end)
            return r->at[i].base + range_shift(&r->at[i]) + ((const char *)host - r->at[i].begin);
    return NULL;  /* an operand without elements */
}

/* Runs c, whose operands are the host's, on copies. */
static void run_on_device(const struct kernel *k, const struct call *c, size_t scratch, const char *name)
{
    struct ranges r = { .n = 0 };
    struct call there = *c;

    for (int i = 0; i < c->nin; i++) ranges_add_view(&r, &c->in[i]);
    for (int i = 0; i < c->nout; i++) ranges_add_view(&r, &c->out[i]);
    if (scratch)
        ranges_add(&r, c->scratch, (char *)c->scratch + scratch);
    for (int i = 0; i < r.n; i++) range_upload(&r.at[i]);
    for (int i = 0; i < c->nin; i++) there.in[i].data = range_find(&r, c->in[i].data);
    for (int i = 0; i < c->nout; i++) there.out[i].data = range_find(&r, c->out[i].data);
    there.scratch = scratch ? range_find(&r, c->scratch) : NULL;
    OK(kernel_launch(device, k, &there));
    for (int i = 0; i < r.n; i++) range_download(&r.at[i], name);
}

/* ---- cases ---- */

struct walk { unsigned runs[MOST_ROWS], cases; bool all; };

static size_t case_elements(const struct call *c)
{
    size_t n = 0;

    for (int i = 0; i < c->nin; i++) n += view_count(&c->in[i]);
    for (int i = 0; i < c->nout; i++) n += view_count(&c->out[i]);
    return n;
}

static bool is_row(const struct kernel *k) { return k->device && strcmp(k->device, device->kernels) == 0; }

static void gpu_check_case(void *ctx, struct kernel_case *c)
{
    struct walk *w = ctx;
    struct kernel_check *check = NULL;
    const struct kernel *k;

    if (!w->all && case_elements(&c->call) > SMALL)
        return;
    for (int i = 0; (k = kernel_at(i)); i++) {
        char name[256];

        if (k->op != c->call.op || !is_row(k) || !k->accepts(&c->call))
            continue;
        if (!check)
            check = kernel_check_new(c);
        assert_true(i < MOST_ROWS);
        w->runs[i]++;
        snprintf(name, sizeof name, "%s by %s", c->name, k->name);
        kernel_check_entry(check, k, name);
    }
    w->cases += check != NULL;
    if (check)
        kernel_check_free(check);
}

static void every_kernel_agrees_with_its_reference(void **state)
{
    const char *matrix = getenv("LOCKSTEP_MATRIX"), *only = getenv("LOCKSTEP_OP");
    static struct walk w;
    const struct kernel *k;
    unsigned rows = 0;

    (void)state;
    w.all = matrix && strcmp(matrix, "full") == 0;
    kernel_observer.run = run_on_device;
    for (int op = 0; op < OPS; op++)
        if (!only || strcmp(only, op_name((enum op)op)) == 0)
            kernel_cases((enum op)op, gpu_check_case, &w);
    for (int i = 0; (k = kernel_at(i)); i++) {
        if (!is_row(k) || (only && strcmp(only, op_name(k->op)) != 0))
            continue;
        rows++;
        if (w.runs[i] == 0)
            fail_msg("%s of %s accepts no case", k->name, op_name(k->op));
    }
    assert_true(rows > 0);
    printf("%u kernels, %u cases\n", rows, w.cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_kernel_agrees_with_its_reference) };
    struct device_facts facts;
    int processors = 0;

    device = device_find("cuda");
    if (!device || device->count(&processors) != LS_OK || device->choose(0, &facts) != LS_OK) {
        printf("skipped: %s\n", ls_errmsg());
        return SKIPPED;
    }
    if (kernel_table_add(device) != LS_OK) {
        printf("%s\n", ls_errmsg());
        return 1;
    }
    printf("on %s\n", facts.name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
