/* lab_mesh.h - for the labs of tensor, context and expert parallelism: a small model sharded over a mesh, run or only planned.
 *
 * Sample i of step s is a function of (s, i), whatever the mesh: ranks of dp take an equal part of a step's samples each, ranks of cp
 * their shard of every sample. What a mesh trains is compared with what one rank trains.
 */
#ifndef LAB_MESH_H
#define LAB_MESH_H

#include "lab_train.h"

struct net {
    ls_model             model;
    ls_mesh_shape        shape;
    ls_partition_options options;
    ls_data_parallel_options      data;
    ls_optimizer         optimizer;
    ls_dtype             type;
    size_t time; /* tokens of a sample */
    int samples; /* samples per step over all ranks */
    int sharded; /* sharded over a mesh; 0: the unsharded model on one rank */
    ls_recompute         recompute;
};

struct distributed { ls_store *store; ls_program *program; ls_mesh *mesh; ls_comm *planned; struct net net; };

/* heads of 8 elements */
static inline struct net net_gpt2(size_t layers, size_t heads, size_t time)
{
    struct net n = { { .architecture = LS_GPT2, .layers = layers, .width = 8 * heads, .heads = heads, .ffn = 32 * heads, .vocab = VOCAB,
                       .max_positions = time, .norm_eps = 1e-5, .init_std = 0.1 },
                     LS_MESH_DEFAULTS, LS_PARTITION_DEFAULTS, LS_DATA_PARALLEL_DEFAULTS, LS_OPTIMIZER_DEFAULTS, LS_F32, time, 4, 1,
                     LS_RECOMPUTE_NONE };

    n.optimizer.clip = 0;
    return n;
}

/* A Mixtral with that many experts, of which each token takes `chosen`. */
static inline struct net net_experts(size_t layers, size_t heads, size_t time, size_t experts, size_t chosen)
{
    struct net n = net_gpt2(layers, heads, time);

    n.model.architecture = LS_MIXTRAL;
    n.model.rope = (ls_rope)LS_ROPE_DEFAULTS;
    n.model.experts = experts;
    n.model.experts_per_token = chosen;
    n.model.expert_ffn = 2 * n.model.width;
    n.model.norm_topk = 1;
    return n;
}

static inline size_t net_batch(const struct net *n) { return (size_t)(n->samples / n->shape.dp); }

/* world: the comm of all ranks, or NULL: this rank alone. */
static inline void distributed_open(const struct net *n, ls_comm *world, int plan_only, struct distributed *out)
{
    ls_store_options so = { "cpu", n->type, 1, 1, 0 };
    ls_compile_options co = { .recompute = n->recompute, .every = 1, .plan_only = plan_only };
    struct distributed s = { .net = *n };
    size_t size[2] = { 0, n->time };

    TRY(ls_mesh_check(&s.net.shape, world ? ls_comm_size(world) : 1));
    TRY(ls_mesh_open(world, &s.net.shape, &s.mesh));
    size[0] = net_batch(&s.net);
    TRY(ls_store_new(&so, &s.store));
    TRY(ls_program_new(s.store, &s.program));
    ls_value x = ls_input(s.program, "x", LS_I32, 2, size);
    ls_value y = ls_input(s.program, "y", LS_I32, 2, size);
    ls_value tokens = ls_input(s.program, "tokens", LS_F32, 1, (size_t[]){ 1 });
    ls_backward(s.program, ls_output(s.program, "loss", ls_model_loss(s.program, &n->model, x, y, tokens, LS_NONE)));
    TRY(ls_optimizer_append(s.program, &n->optimizer));
    if (n->sharded) {
        TRY(ls_partition(s.program, s.mesh, &n->model, &n->options));
        TRY(ls_data_parallel_mesh(s.program, s.mesh, &n->data));
    }
    TRY(ls_program_compile(s.program, &co));
    *out = s;
}

/* The program as that rank of `ranks` would have it; nothing runs. */
static inline void distributed_plan(const struct net *n, int rank, int ranks, struct distributed *out)
{
    ls_comm *world;

    TRY(ls_comm_open("plan:", rank, ranks, &world));
    distributed_open(n, world, 1, out);
    out->planned = world;
}

static inline void distributed_close(struct distributed *s)
{
    ls_program_release(&s->program);
    ls_store_release(&s->store);
    ls_mesh_close(&s->mesh);
    ls_comm_close(&s->planned);
}

/* Token k of a sample; token k + 1 is what follows it. */
static inline int32_t net_token(int step, int sample, size_t k)
{
    return (int32_t)(mixed((unsigned)step, (unsigned)sample, (unsigned)k) % VOCAB);
}

/* Step 0, 1, ..: this rank's tokens, forward, backward and update. Returns the complete loss on every rank. */
static inline double distributed_step(struct distributed *s, int step)
{
    const struct net *n = &s->net;
    size_t begin[2] = { 0, 0 }, end[2] = { n->time, 0 }, batch = net_batch(n), count = 0;
    int runs = ls_cp_ranges(s->mesh, n->options.cp_method, n->time, begin, end),
        first = ls_mesh_index(s->mesh, LS_GROUP_DP) * (int)batch;
    int32_t *x = malloc(2 * batch * n->time * sizeof *x), *y = x + batch * n->time;
    ls_comm *data = ls_mesh_comm(s->mesh, LS_GROUP_DATA);
    float tokens = (float)(n->samples * (int)n->time);
    double loss;

    if (!x) exit(1);
    for (size_t b = 0; b < batch; b++)
        for (int r = 0; r < runs; r++)
            for (size_t t = begin[r]; t < end[r]; t++, count++) {
                x[count] = net_token(step, first + (int)b, t);
                y[count] = net_token(step, first + (int)b, t + 1);
            }
    TRY(ls_program_write(s->program, "x", x, LS_I32, count));
    TRY(ls_program_write(s->program, "y", y, LS_I32, count));
    TRY(ls_program_write(s->program, "tokens", &tokens, LS_F32, 1));
    free(x);
    ls_store_zero_grad(s->store);
    TRY(ls_program_run(s->program, LS_FORWARD | LS_BACKWARD | LS_LAST));
    TRY(ls_program_read(s->program, "loss", &loss, LS_F64, 1));
    if (data) TRY(ls_all_reduce(data, &loss, &loss, 1, LS_F64, LS_SUM, NULL));
    TRY(ls_optimizer_set(s->program, &n->optimizer, 3e-3, (uint64_t)step + 1));
    TRY(ls_program_run(s->program, LS_OPTIMIZER_STEP));
    return loss;
}

/* The largest distance of a gradient or parameter of two stores, relative to that tensor's norm (and, where it is all but 0, to a
 * hundredth of an average tensor's of that size). Collective, as ls_store_read(). */
static inline double distributed_apart(const struct distributed *a, const struct distributed *b, const char *kind)
{
    size_t count = ls_store_elements(a->store), at = 0;
    double *u = malloc(2 * count * sizeof *u), *v = u + count, all = 0, most = 0;

    if (!u) exit(1);
    for (size_t i = 0; i < ls_store_count(a->store); at += parameter_count(a->store, i++)) {
        TRY(ls_store_read(a->store, i, kind, u + at, LS_F64, parameter_count(a->store, i)));
        TRY(ls_store_read(b->store, i, kind, v + at, LS_F64, parameter_count(a->store, i)));
    }
    for (size_t k = 0; k < count; k++) all += v[k] * v[k];
    at = 0;
    for (size_t i = 0; i < ls_store_count(a->store); i++) {
        size_t n = parameter_count(a->store, i);
        double norm = 0, apart = 0;

        for (size_t k = at; k < at + n; k++) {
            norm += v[k] * v[k];
            apart += (u[k] - v[k]) * (u[k] - v[k]);
        }
        most = fmax(most, sqrt(apart) / (sqrt(norm) + 0.01 * sqrt(all * (double)n / (double)count)));
        at += n;
    }
    free(u);
    return most;
}

#endif
