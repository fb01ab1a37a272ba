/* test_hooks.c - hooks under layouts: final gradients and values are those of one rank; the update uses what a hook changes; a hook's
 * failure stops the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/threads.h"
#include "helper_check.h"
#include "helper_distributed.h"
#include "helper_forked.h"
#include "helper_layers.h"
#include "lockstep/hook.h"

/* ---- what the hooks saw ---- */

struct seen {
    const ls_store *store;
    float gradient[DIST_ELEMENTS], times[DIST_ELEMENTS];
    double squares; /* sum of squares of the value's elements, over all calls */
    int values;
};

static size_t hooks_elements(const ls_store *s, size_t i)
{
    size_t n = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++) n *= ls_store_size(s, i, d);
    return n;
}

/* Element e of the rank's part of the gradient, by its place in the complete parameter. */
static size_t hooks_place_of(const ls_store *s, size_t param, const ls_hook_gradient *g, size_t e)
{
    size_t at = 0, stride = 1;

    for (int d = g->ndim - 1; d >= 0; d--) {
        at += (g->begin[d] + e % g->size[d]) * stride;
        e /= g->size[d];
        stride *= ls_store_size(s, param, d);
    }
    return at;
}

/* Notes the gradient, and halves it. */
static ls_status halve(void *ctx, const ls_hook_gradient *g)
{
    struct seen *seen = ctx;
    size_t first = 0, i = 0;

    for (; strcmp(ls_store_name(seen->store, i), g->name) != 0; i++) first += hooks_elements(seen->store, i);
    for (size_t k = 0; k < g->count; k++) {
        size_t at = first + hooks_place_of(seen->store, i, g, g->offset + k);

        RANKS_CHECK(g->dtype == LS_F32);
        seen->gradient[at] = ((float *)g->data)[k];
        seen->times[at]++;
        ((float *)g->data)[k] *= 0.5f;
    }
    return LS_OK;
}

static void hooks_add_squares(const ls_hook_value *v, int dim, ptrdiff_t at, double *sum)
{
    if (dim == v->ndim) {
        double x = (double)((const float *)v->data)[at];

        *sum += x * x;
        return;
    }
    for (size_t k = 0; k < v->size[dim]; k++) hooks_add_squares(v, dim + 1, at + (ptrdiff_t)k * v->stride[dim], sum);
}

static ls_status hooks_look(void *ctx, const ls_hook_value *v)
{
    struct seen *seen = ctx;

    RANKS_CHECK(v->dtype == LS_F32 && v->segment == LS_FORWARD);
    hooks_add_squares(v, 0, 0, &seen->squares);
    seen->values++;
    return LS_OK;
}

/* ---- layouts ---- */

static const char *const watched = "h.1/unary"; /* the MLP's activation: sharded over dp, tp and cp alike */

/* What one rank sees: gradients of the first step, the sum of squares of the watched value in it, weights at the end. */
struct hooked {
    float gradient[DIST_ELEMENTS], weight[DIST_ELEMENTS];
    double squares;
    size_t count;
};
static struct hooked *hooks_expected; /* expected results by optimizer */

static bool watch(struct training *s, struct seen *seen)
{
    bool found = false;

    for (int c = 0; s->pipeline && c < ls_pipeline_chunks(s->pipeline); c++)
        found = ls_program_hook_value(ls_pipeline_program(s->pipeline, c), watched, hooks_look, seen) == LS_OK || found;
    return s->pipeline ? found : ls_program_hook_value(s->program, watched, hooks_look, seen) == LS_OK;
}

static void unwatch(struct training *s)
{
    for (int c = 0; s->pipeline && c < ls_pipeline_chunks(s->pipeline); c++) ls_program_unhook(ls_pipeline_program(s->pipeline, c));
    ls_program_unhook(s->program);
}

/* Two steps with hooks; *out: gradients and values of the first one, from all ranks, and the weights at the end. */
static void train_hooked(const struct layout *l, ls_comm *comm, struct hooked *out)
{
    static struct seen seen;
    static float times[DIST_ELEMENTS];
    struct training s;
    double loss;

    memset(&seen, 0, sizeof seen);
    RANKS_TRY(distributed_open(l, comm, false, &s));
    seen.store = s.store;
    out->count = 0;
    for (size_t i = 0; i < ls_store_count(s.store); i++) out->count += hooks_elements(s.store, i);
    RANKS_CHECK(out->count <= DIST_ELEMENTS);
    RANKS_TRY(ls_program_hook_gradient(s.program, NULL, halve, &seen));
    RANKS_CHECK(watch(&s, &seen) || l->schedule);
    RANKS_TRY(distributed_step(&s, l, 0, &loss));
    RANKS_CHECK(seen.values == 0 || seen.values == (l->accumulate ? l->accumulate : 1));
    out->squares = seen.squares;
    memcpy(out->gradient, seen.gradient, sizeof seen.gradient);
    memcpy(times, seen.times, sizeof times);
    if (comm) {
        RANKS_TRY(ls_all_reduce(comm, out->gradient, out->gradient, out->count, LS_F32, LS_SUM, NULL));
        RANKS_TRY(ls_all_reduce(comm, times, times, out->count, LS_F32, LS_SUM, NULL));
        RANKS_TRY(ls_all_reduce(comm, &out->squares, &out->squares, 1, LS_F64, LS_SUM, NULL));
    }
    for (size_t i = 0; i < out->count; i++) {
        RANKS_CHECK(seen.times[i] <= 1 && times[i] >= 1); /* once on each rank that updates it, and there is one */
        out->gradient[i] /= times[i];
    }
    unwatch(&s);
    RANKS_TRY(ls_program_hook_gradient(s.program, NULL, halve, &seen));
    RANKS_TRY(distributed_step(&s, l, 1, &loss));
    for (size_t i = 0, at = 0; i < ls_store_count(s.store); at += hooks_elements(s.store, i++))
        RANKS_TRY(ls_store_read(s.store, i, "parameter", out->weight + at, LS_F32, hooks_elements(s.store, i)));
    distributed_close(&s);
}

static void hooks_compare(const struct layout *l, int n, const char *what, const float *a, const float *b, size_t count)
{
    double off = 0, most = 0;
    char name[DIST_NAME];

    for (size_t i = 0; i < count; i++) {
        off = fmax(off, fabs((double)a[i] - (double)b[i]));
        most = fmax(most, fabs((double)a[i]));
    }
    if (off > 2e-5 * most) {
        fprintf(stderr, "%s: %s differ by %g of %g\n", distributed_name(l, n, name), what, off, most);
        _Exit(1);
    }
}

static void reference_run(ls_comm *comm, void *ctx)
{
    struct layout l = { .net = NET_GPT2, .optimizer = *(const ls_optimizer_kind *)ctx };

    (void)comm;
    threads_set(1);
    train_hooked(&l, NULL, &hooks_expected[l.optimizer]);
}

static void check_layout(ls_comm *comm, void *ctx)
{
    static struct hooked got;
    const struct layout *l = ctx;
    const struct hooked *want = &hooks_expected[l->optimizer];
    char name[DIST_NAME];

    threads_set(1);
    train_hooked(l, comm, &got);
    RANKS_CHECK(got.count == want->count);
    hooks_compare(l, ls_comm_size(comm), "gradients", want->gradient, got.gradient, got.count);
    hooks_compare(l, ls_comm_size(comm), "weights", want->weight, got.weight, got.count);
    if (fabs(got.squares - want->squares) > 1e-5 * want->squares) {
        fprintf(stderr, "%s: the squares of '%s' are %g, expected %g\n", distributed_name(l, ls_comm_size(comm), name), watched,
                got.squares, want->squares);
        _Exit(1);
    }
}

static void check_one(int n, struct layout l)
{
    l.partition = (ls_partition_options)LS_PARTITION_DEFAULTS;
    forked_run(n, check_layout, &l);
}

static void gradients_and_values_are_those_of_one_rank(void **state)
{
    static const ls_optimizer_kind kinds[] = { LS_SGD, LS_LAMB };
    ls_mesh_shape two_tp = LS_MESH_DEFAULTS, two_pp = LS_MESH_DEFAULTS, two_cp = LS_MESH_DEFAULTS;

    (void)state;
    hooks_expected = mmap(NULL, sizeof *hooks_expected * LS_OPTIMIZERS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(hooks_expected != MAP_FAILED);
    two_tp.tp = two_pp.pp = two_cp.cp = 2;
    for (size_t k = 0; k < 2; k++) {
        ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;
        ls_optimizer_kind kind = kinds[k];

        forked_run(1, reference_run, &kind);
        o.bucket_bytes = 9000;
        o.first_bucket_bytes = 3000;
        for (o.zero = 0; o.zero < 4; o.zero++)
            check_one(2, (struct layout){ .optimizer = kind, .data = o, .accumulate = 2, .recompute = LS_RECOMPUTE_FULL });
        o.zero = 2;
        check_one(4, (struct layout){ .optimizer = kind, .data = o, .meshed = true, .mesh = two_tp, .accumulate = 2 });
        check_one(2, (struct layout){ .optimizer = kind, .data = o, .meshed = true, .mesh = two_cp });
        check_one(4, (struct layout){ .optimizer = kind, .data = o, .meshed = true, .mesh = two_pp, .schedule = "1f1b", .accumulate = 3 });
    }
    check_one(2, (struct layout){ .optimizer = LS_SGD, .data = LS_DATA_PARALLEL_DEFAULTS, .device = "check" });
    munmap(hooks_expected, sizeof *hooks_expected * LS_OPTIMIZERS);
}

/* ---- one program ---- */

static const ls_data_parallel_options *layers_offload; /* options for the next program; NULL: none */

static ls_program *layers_step(ls_store *s, const ls_optimizer *o)
{
    enum { N = LAYERS_BATCH * LAYERS_IN, M = LAYERS_BATCH * LAYERS_OUT };
    float x[N], y[M];
    ls_program *p;

    OK(ls_program_new(s, &p));
    layers_build(p, LS_F32);
    if (o) OK(ls_optimizer_append(p, o));
    if (layers_offload) OK(ls_data_parallel(p, NULL, layers_offload));
    OK(ls_program_compile(p, NULL));
    for (int i = 0; i < N; i++) x[i] = (float)(i % 7) / 3 - 1;
    for (int i = 0; i < M; i++) y[i] = (float)(i % 5) / 2 - 1;
    OK(ls_program_write(p, "x", x, LS_F32, N));
    OK(ls_program_write(p, "y", y, LS_F32, M));
    return p;
}

static const ls_optimizer plain_sgd = { .kind = LS_SGD };

static ls_status times_half(void *ctx, const ls_hook_gradient *g)
{
    int *calls = ctx;

    for (size_t k = 0; k < g->count; k++) ((float *)g->data)[k] *= 0.5f;
    ++*calls;
    return LS_OK;
}

/* Weights after three steps of SGD. */
static float *trained(double lr, bool hooked, size_t *count)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_step(s, &plain_sgd);
    float *w = malloc(ls_store_elements(s) * sizeof *w);
    int calls = 0;

    if (hooked) OK(ls_program_hook_gradient(p, NULL, times_half, &calls));
    for (int t = 1; t <= 3; t++) {
        ls_store_zero_grad(s);
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
        OK(ls_optimizer_set(p, &plain_sgd, lr, (uint64_t)t));
        OK(ls_program_run(p, LS_OPTIMIZER_STEP));
    }
    assert_int_equal(calls, hooked ? 3 * (int)ls_store_count(s) : 0);
    *count = 0;
    for (size_t i = 0; i < ls_store_count(s); i++) {
        size_t n = ls_tensor_count(ls_store_value(s, i));

        OK(ls_tensor_read(ls_store_value(s, i), w + *count, LS_F32, n));
        *count += n;
    }
    ls_program_release(&p);
    ls_store_release(&s);
    return w;
}

/* Gradients that a hook would change are loaded again for the update. */
static void hooks_on_offloaded_gradients_are_refused(void **state)
{
    ls_data_parallel_options o = LS_DATA_PARALLEL_DEFAULTS;
    ls_store *s = layers_store(LS_F32);
    int calls = 0;

    (void)state;
    o.offload_parameters = LS_OFFLOAD_CPU;
    layers_offload = &o;
    ls_program *p = layers_step(s, &plain_sgd);
    layers_offload = NULL;
    REFUSED(LS_EINVAL, "gradients are offloaded", ls_program_hook_gradient(p, NULL, times_half, &calls));
    ls_program_release(&p);
    ls_store_release(&s);
}

static void halved_gradients_are_half_the_learning_rate(void **state)
{
    size_t n, m;
    float *a = trained(0.25, true, &n), *b = trained(0.125, false, &m), *c = trained(0.25, false, &m);

    (void)state;
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n * sizeof *a);
    assert_memory_not_equal(a, c, n * sizeof *a);
    free(a);
    free(b);
    free(c);
}

static ls_status stop_gradient(void *ctx, const ls_hook_gradient *g)
{
    (void)g;
    return ls_fail(*(const ls_status *)ctx, "enough");
}

static ls_status stop_value(void *ctx, const ls_hook_value *v)
{
    (void)v;
    return *(const ls_status *)ctx;
}

static void failing_hook_stops_the_run(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_step(s, &plain_sgd);
    ls_status st = LS_EIO, positive = (ls_status)7;

    (void)state;
    OK(ls_program_hook_gradient(p, "b.up.weight", stop_gradient, &st));
    OK(ls_optimizer_set(p, &plain_sgd, 0.5, 1));
    OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD));
    float before = *(float *)ls_tensor_data(ls_store_value(s, 0));
    assert_int_equal(ls_program_run(p, LS_OPTIMIZER_STEP), LS_EIO);
    assert_string_equal(ls_errmsg(), "the hook on the gradient of 'b.up.weight' stopped the run with status -3: enough");
    float after = *(float *)ls_tensor_data(ls_store_value(s, 0));
    assert_true(before == after); /* nothing was updated */
    ls_program_unhook(p);
    OK(ls_program_run(p, LS_OPTIMIZER_STEP));
    OK(ls_program_hook_value(p, "loss", stop_value, &positive));
    assert_int_equal(ls_program_run(p, LS_FORWARD), LS_EINVAL);
    assert_string_equal(ls_errmsg(), "the hook on value 'loss' stopped the run with status 7");
    ls_program_release(&p);
    ls_store_release(&s);
}

static void impossible_hooks_are_refused(void **state)
{
    ls_store *s = layers_store(LS_F32), *other = layers_store(LS_F32);
    ls_program *p = layers_step(s, &plain_sgd), *none = layers_step(other, NULL);
    ls_status st = LS_EIO;

    (void)state;
    assert_int_equal(ls_program_hook_gradient(p, "nothing", stop_gradient, &st), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "'nothing': the store has no such parameter"));
    assert_int_equal(ls_program_hook_gradient(none, "in.weight", stop_gradient, &st), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "no optimizer"));
    assert_int_equal(ls_program_hook_value(p, "nothing", stop_value, &st), LS_EINVAL);
    assert_non_null(strstr(ls_errmsg(), "computes no value of that name"));
    OK(ls_program_run(p, LS_FORWARD)); /* none of them was set */
    ls_program_release(&p);
    ls_program_release(&none);
    ls_store_release(&s);
    ls_store_release(&other);
}

struct order { char text[256]; };

static ls_status note_gradient(void *ctx, const ls_hook_gradient *g)
{
    struct order *o = ctx;

    snprintf(o->text + strlen(o->text), sizeof o->text - strlen(o->text), " %s", g->name);
    return LS_OK;
}

static ls_status note_value(void *ctx, const ls_hook_value *v)
{
    struct order *o = ctx;

    snprintf(o->text + strlen(o->text), sizeof o->text - strlen(o->text), " %s", v->name);
    return LS_OK;
}

/* In the order of instructions, then in which they were set; a value by the id that the printed program shows. */
static void calls_are_in_the_programs_order(void **state)
{
    ls_store *s = layers_store(LS_F32);
    ls_program *p = layers_step(s, &plain_sgd);
    struct order first = { "" }, again = { "" };
    ls_instruction i;
    char id[16];
    int n = 0;

    (void)state;
    do ls_program_instruction(p, n++, &i);
    while (strcmp(i.op, "linear") != 0);
    snprintf(id, sizeof id, "%%%d", i.out[0].value.id);
    OK(ls_program_hook_value(p, "loss", note_value, &first));
    OK(ls_program_hook_value(p, id, note_value, &first));
    OK(ls_program_hook_gradient(p, "out.bias", note_gradient, &first));
    OK(ls_program_hook_gradient(p, "in.weight", note_gradient, &first));
    OK(ls_program_hook_gradient(p, "in.weight", note_gradient, &first));
    for (int t = 0; t < 2; t++) {
        OK(ls_optimizer_set(p, &plain_sgd, 0.5, (uint64_t)t + 1));
        OK(ls_program_run(p, LS_FORWARD | LS_BACKWARD | LS_OPTIMIZER_STEP));
        if (!t) again = first, first = (struct order){ "" };
    }
    assert_string_equal(first.text, again.text);
    assert_string_equal(first.text, " linear loss in.weight in.weight out.bias");
    ls_program_release(&p);
    ls_store_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_and_values_are_those_of_one_rank),
        cmocka_unit_test(hooks_on_offloaded_gradients_are_refused), cmocka_unit_test(halved_gradients_are_half_the_learning_rate),
        cmocka_unit_test(failing_hook_stops_the_run),                 cmocka_unit_test(impossible_hooks_are_refused),
        cmocka_unit_test(calls_are_in_the_programs_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
