/* helper_partition.c - see helper_partition.h. */
#include "helper_partition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "helper_faults.h"
#include "runtime/store.h"

ls_model partition_gpt2(size_t heads, size_t ffn, size_t vocab, double dropout)
{
    return (ls_model){ .architecture = LS_GPT2, .layers = 2, .width = 4 * heads, .heads = heads, .kv_heads = heads, .head_size = 4,
                       .ffn = ffn,
                       .vocab = vocab, .max_positions = 32, .tied = 1, .norm_eps = 1e-5, .dropout = dropout,
                       .attention_dropout = dropout * 1.5, .init_std = 0.2, .seed = 5 };
}

ls_model partition_llama(size_t heads, size_t kv_heads, size_t ffn, size_t vocab, int tied)
{
    return (ls_model){ .architecture = LS_LLAMA, .layers = 2, .width = 12, .heads = heads, .kv_heads = kv_heads, .head_size = 4, .ffn = ffn,
                       .vocab = vocab, .max_positions = 32, .tied = tied, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2 };
}

ls_model partition_experts(ls_architecture family, size_t experts, size_t chosen, size_t ffn, size_t shared)
{
    return (ls_model){ .architecture = family, .layers = 2, .width = 12, .heads = 4, .kv_heads = 2, .head_size = 4, .vocab = 37,
                       .max_positions = 32, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS, .init_std = 0.2, .experts = experts,
                       .experts_per_token = chosen, .expert_ffn = ffn, .shared_ffn = shared, .norm_topk = 1 };
}

void partition_build(ls_program *p, const struct partition_case *c)
{
    size_t shape[2] = { c->batch, c->time };
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, shape), targets = ls_input(p, "targets", LS_I32, 2, shape);
    ls_value denominator = ls_input(p, "denominator", LS_F32, 1, (size_t[]){ 1 });
    ls_value step = c->model.dropout > 0 ? ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 }) : LS_NONE;

    if (c->model.experts)
        ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    ls_backward(p, ls_output(p, "loss", ls_model_loss(p, &c->model, tokens, targets, denominator, step)));
}

ls_status partition_open(const struct partition_case *c, const ls_mesh *mesh, bool plan_only, struct partitioned *out)
{
    ls_store_options so = { "cpu", c->type, 1, 7, 0 };
    ls_compile_options co = LS_COMPILE_DEFAULTS;
    struct partitioned s = { 0 };

    co.plan_only = plan_only;
    co.recompute = c->recompute;
    co.every = 2;
    co.fuse_loss = c->fuse_loss;
    LS_TRY(ls_store_new(&so, &s.store));
    ls_status st = ls_program_new(s.store, &s.program);
    if (st == LS_OK) {
        (c->build ? c->build : partition_build)(s.program, c);
        st = ls_program_status(s.program);
    }
    if (st == LS_OK && mesh) faults_give(s.program, mesh);
    if (st == LS_OK && mesh) st = ls_partition(s.program, mesh, &c->model, &c->options);
    if (st == LS_OK) st = ls_program_compile(s.program, &co);
    if (st == LS_OK) *out = s;
    else partition_close(&s);
    return st;
}

void partition_close(struct partitioned *p)
{
    ls_program_release(&p->program);
    ls_store_release(&p->store);
}

/* ---- a run ---- */

static unsigned hash(size_t a, size_t b)
{
    unsigned x = (unsigned)a * 2654435761u + (unsigned)b * 40503u + 12345u;

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return x * 3266489917u >> 8;
}

/* Token t of sample b in the global batch; which: 0 tokens, 1 targets, of which some are ignored. */
static int32_t token(const struct partition_case *c, size_t b, size_t t, int which)
{
    unsigned h = hash(b * 64 + t + (size_t)which * 7, 3);

    return which && h % 5 == 0 ? -1 : (int32_t)(h / 8 % c->model.vocab);
}

static ls_status partition_feed(const struct partition_case *c, const ls_mesh *mesh, struct partitioned *s)
{
    size_t begin[2] = { 0, 0 }, end[2] = { c->time, 0 }, dp = mesh ? (size_t)ls_mesh_index(mesh, LS_GROUP_DP) : 0, n = 0;
    size_t ranks = mesh ? (size_t)ls_mesh_size(mesh, LS_GROUP_DP) : 1;
    int runs = mesh ? ls_cp_ranges(mesh, c->options.cp_method, c->time, begin, end) : 1;
    int32_t host[2][512];
    float valid = 0;

    for (size_t b = 0; b < c->batch; b++)
        for (int k = 0; k < runs; k++)
            for (size_t t = begin[k]; t < end[k]; t++, n++)
                for (int w = 0; w < 2; w++)
                    host[w][n] = token(c, dp * c->batch + b, t, w);
    for (size_t b = 0; b < c->batch * ranks; b++)
        for (size_t t = 0; t < c->time; t++)
            valid += token(c, b, t, 1) >= 0;
    LS_TRY(ls_program_write(s->program, "tokens", host[0], LS_I32, n));
    LS_TRY(ls_program_write(s->program, "targets", host[1], LS_I32, n));
    LS_TRY(ls_program_write(s->program, "denominator", &valid, LS_F32, 1));
    if (ls_program_has(s->program, "samples"))
        LS_TRY(ls_program_write(s->program, "samples", (float[]){ (float)c->batch, (float)(c->batch * ranks) }, LS_F32, 2));
    if (c->model.dropout > 0)
        LS_TRY(ls_program_write(s->program, "step", (int64_t[]){ 3, (int64_t)(dp * c->batch) }, LS_I64, 2));
    return LS_OK;
}

static size_t full_count(const ls_store *s, size_t i)
{
    size_t n = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++)
        n *= ls_store_size(s, i, d);
    return n;
}

/* Writes this rank's partial sum of the gradient of parameter i, a box of up to three dims, into the full tensor. */
static ls_status place_gradient(const ls_store *s, size_t i, const ls_mesh *mesh, double *out)
{
    const ls_placement *at = store_placement(s, i);
    size_t count = store_local_count(s, i), begin[3] = { 0 }, own[3] = { 1, 1, 1 }, all[3] = { 1, 1, 1 };
    bool counts = !mesh || at[LS_AXIS_TP].kind == LS_SHARD || at[LS_AXIS_TP].partial_gradient || ls_mesh_index(mesh, LS_GROUP_TP) == 0;
    int first = 3 - ls_store_ndim(s, i);
    double *part;

    if (!counts || !count)
        return LS_OK;
    for (int d = 0; d < ls_store_ndim(s, i); d++) {
        begin[first + d] = store_local_begin(s, i, d);
        own[first + d] = store_local_size(s, i, d);
        all[first + d] = ls_store_size(s, i, d);
    }
    part = malloc(count * sizeof *part);
    ls_status st = ls_tensor_read(ls_store_grad(s, i), part, LS_F64, count);
    for (size_t r = 0; r < own[0] * own[1]; r++)
        memcpy(out + ((begin[0] + r / own[1]) * all[1] + begin[1] + r % own[1]) * all[2] + begin[2], part + r * own[2],
               own[2] * sizeof *part);
    free(part);
    return st;
}

ls_status partition_run(const struct partition_case *c, const ls_mesh *mesh, double *loss, double **gradients, size_t *count)
{
    ls_comm *world = mesh ? ls_mesh_comm(mesh, LS_GROUP_WORLD) : NULL;
    struct partitioned s;
    double *all;

    LS_TRY(partition_open(c, mesh, false, &s));
    *count = ls_store_elements(s.store);
    all = calloc(*count, sizeof *all);
    ls_status st = partition_feed(c, mesh, &s);
    if (st == LS_OK) st = ls_program_run(s.program, LS_FORWARD | LS_BACKWARD | LS_LAST);
    if (st == LS_OK) st = ls_program_read(s.program, "loss", loss, LS_F64, 1);
    for (size_t i = 0, at = 0; i < ls_store_count(s.store) && st == LS_OK; at += full_count(s.store, i++))
        st = place_gradient(s.store, i, mesh, all + at);
    if (st == LS_OK && world) {
        if (ls_mesh_index(mesh, LS_GROUP_TP) != 0) *loss = 0;
        st = ls_all_reduce(world, loss, loss, 1, LS_F64, LS_SUM, NULL);
    }
    if (st == LS_OK && world) st = ls_all_reduce(world, all, all, *count, LS_F64, LS_SUM, NULL);
    *gradients = all;
    partition_close(&s);
    return st;
}

/* ---- comparison with one rank ---- */

static double norm_of(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* The norm that the rounding errors of parameter i's gradient are relative to: of the gradient itself, or of a hundredth of the gradient of
 * all parameters per element if that is larger.
 *
 * A key bias adds the same number to all scores of a query, which softmax ignores: its exact gradient is 0. The computed gradient is the
 * sum of dk over the tokens, whose terms cancel. What remains is the rounding of the terms, which is relative to the root of their sum of
 * squares. The gradient of the key weight, the parameter before the bias, is the sum of the same terms times the normalized inputs, [C] of
 * root mean square 1. If these are independent, its norm / sqrt(C) is that root. */
static double rounding_norm(const ls_store *s, size_t i, const double *gradient, const double *all, size_t elements)
{
    size_t n = full_count(s, i), before = i ? full_count(s, i - 1) : 0;

    if (strstr(ls_store_name(s, i), "attn.k.bias"))
        return norm_of(gradient - before, before) / sqrt((double)before / (double)n);
    return norm_of(gradient, n) + 0.01 * norm_of(all, elements) * sqrt((double)n / (double)elements);
}

static const char *partition_compare(const struct partition_case *c, const double *a, const double *b, double rounding)
{
    static char text[400];
    struct partitioned s;
    const char *found = NULL;

    if (partition_open(c, NULL, true, &s) < 0) return ls_errmsg();
    for (size_t i = 0, at = 0; i < ls_store_count(s.store) && !found; at += full_count(s.store, i++)) {
        double scale = rounding_norm(s.store, i, a + at, a, ls_store_elements(s.store)), error = 0;

        for (size_t e = at; e < at + full_count(s.store, i); e++) error += (a[e] - b[e]) * (a[e] - b[e]);
        if (!(sqrt(error) <= rounding * scale)) {
            snprintf(text, sizeof text, "gradient of %s: the error has norm %.3g, more than %.3g", ls_store_name(s.store, i), sqrt(error),
                     rounding * scale);
            found = text;
        }
    }
    partition_close(&s);
    return found;
}

const char *partition_differs(const struct partition_case *c, ls_comm *world, double rounding)
{
    static char text[600];
    struct partition_case alone = *c;
    double loss[2], *gradient[2] = { NULL, NULL };
    const char *found = NULL;
    ls_mesh *mesh = NULL;
    size_t count;

    alone.batch *= (size_t)(ls_comm_size(world) / (c->shape.tp * c->shape.cp));
    alone.recompute = LS_RECOMPUTE_NONE;
    alone.fuse_loss = 0;
    if (partition_run(&alone, NULL, &loss[0], &gradient[0], &count) < 0 || ls_mesh_open(world, &c->shape, &mesh) < 0 ||
        partition_run(c, mesh, &loss[1], &gradient[1], &count) < 0)
        found = ls_errmsg();
    if (!found && !(fabs(loss[0] - loss[1]) <= rounding * fabs(loss[0]))) {
        snprintf(text, sizeof text, "loss %.9g, one rank has %.9g", loss[1], loss[0]);
        found = text;
    }
    if (!found) found = partition_compare(&alone, gradient[0], gradient[1], rounding);
    ls_mesh_close(&mesh);
    free(gradient[0]);
    free(gradient[1]);
    return found;
}

/* ---- counts ---- */

int partition_exchanges(const ls_program *p, enum segment s, ls_collective op, ls_axis a, size_t *bytes)
{
    const struct list *l = &p->list[s];
    int found = 0;

    if (bytes) *bytes = 0;
    for (int n = 0; n < l->n; n++) {
        const struct exchange *e = l->at[n].op == OP_COMM_START ? instruction_exchange(&l->at[n]) : NULL;

        if (!e || e->op != op || e->axis != a)
            continue;
        found++;
        if (bytes) {
            ls_value v = l->at[n].in[0].id ? l->at[n].in[0] : l->at[n].out[0];
            bool blocks = (op == LS_COLLECTIVE_ALL_GATHER || op == LS_COLLECTIVE_REDUCE_SCATTER) && !e->counts;

            *bytes += ls_comm_bytes_of(e->comm, op, blocks ? e->total / (size_t)ls_comm_size(e->comm) : e->total,
                                       op == LS_COLLECTIVE_ALL_REDUCE ? NULL : e->counts, p->values[v.id].dtype);
        }
    }
    return found;
}
