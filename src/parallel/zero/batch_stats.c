/* batch_stats.c - sums over the samples of all ranks: batch statistics, and the number of tokens routed to each expert.
 *
 * An op whose result must be summed over the samples of all ranks marks it as partial over dp. It is reduced immediately, and its readers
 * use the sum. Batch norms without sync_batch_norm normalize by each rank's own samples; the running statistics, which then differ, are
 * broadcast from rank 0 at the end of each step. (With it they are equal anyway.)
 */
#include "parallel/zero/zero.h"

#include "base/mem.h"
#include "ir/op_info.h"

static bool is_marked(const ls_program *p, ls_value v)
{
    const struct value *x = &p->values[v.id];

    return v.id && x->root == v.id && x->role == LS_ROLE_ACTIVATION && x->place[LS_AXIS_DP].kind == LS_PARTIAL;
}

/* The ranks that have different samples; NULL: this rank's are all that count. */
static ls_comm *samples(const struct pass *a) { return a->d->method->apart ? NULL : a->d->groups[GROUPS_DENSE].all; }

/* True if the result that i marks must be summed. */
static bool is_summed(const struct pass *a, const struct instruction *i)
{
    return samples(a) && (a->d->o.sync_batch_norm || !(op_info(i->op)->traits & TRAIT_SAMPLE_STATS));
}

static bool has_other_samples(const struct pass *a)
{
    return a->d->mesh ? ls_mesh_size(a->d->mesh, LS_GROUP_DP) > 1 : samples(a) && ls_comm_size(samples(a)) > 1;
}

/* A mean over the sequences of a step needs their number (evaluation reads no such loss). */
static void check_sample_count(struct pass *a, const struct instruction *i)
{
    if ((op_info(i->op)->traits & TRAIT_SAMPLE_COUNT) && !i->in[2].id && has_other_samples(a))
        program_fail(a->p, "router_loss over several data-parallel ranks: the program has no input \"samples\"; declare it and write the "
                           "number of samples of the step on all ranks");
}

/* The sum over all ranks' samples, in v's shape. */
static ls_value batch_stats_sum_of(struct pass *a, ls_value v)
{
    struct value like = *program_value(a->p, v);
    ls_value sum = emit_sum(a->p, samples(a), v);

    return like.ndim == 1 ? sum : ls_reshape(a->p, sum, like.ndim, like.size);
}

/* Reduces the partial results of this segment's instructions; later instructions read the sum. */
static void join_segment(struct pass *a, enum segment s, ls_value *sum, int n)
{
    ls_program *p = a->p;
    struct rewrite w = rewrite_begin(p, s, LS_PHASE_COMMUNICATE);

    for (int k = 0; k < w.old.n && program_ok(p); k++) {
        struct instruction i = w.old.at[k];
        struct cursor before = program_cursor_block(p, i.block);

        check_sample_count(a, &i);
        for (int o = 0; o < i.nin; o++)
            if (i.in[o].id && i.in[o].id < n && sum[i.in[o].id].id) i.in[o] = sum[i.in[o].id];
        program_push(p, &i);
        for (int o = 0; o < i.nout; o++)
            if (is_marked(p, i.out[o]) && is_summed(a, &i))
                sum[i.out[o].id] = batch_stats_sum_of(a, i.out[o]);
            else if (is_marked(p, i.out[o]))
                value_set_place(p, i.out[o], LS_REPLICATE);
        program_cursor_end(p, before);
    }
    rewrite_end(p, &w);
}

static void broadcast_buffer(struct pass *a, ls_value v)
{
    struct exchange e = { .op = LS_COLLECTIVE_BROADCAST, .axis = LS_AXIS_DP, .comm = samples(a), .root = 0 };
    struct pending f;

    e.total = value_count(program_value(a->p, v));
    v = emit_flat(a->p, v, LS_REPLICATE);
    emit_start(a->p, &f, &e, LS_WHEN_ALWAYS, LS_NONE, v);
    emit_wait(a->p, &f);
}

/* Broadcasts the buffers that forward writes, once each, at the end of the step. */
static void broadcast_buffers(struct pass *a, bool *seen)
{
    ls_program *p = a->p;
    const struct list *l = &p->list[SEG_FORWARD];
    struct cursor before = program_cursor_segment(p, SEG_OPTIMIZER, LS_PHASE_COMMUNICATE);

    for (int k = 0; k < l->n; k++)
        for (int o = 0; o < l->at[k].nout; o++) {
            const struct value *root = &p->values[p->values[l->at[k].out[o].id].root];

            /* root->param < 0: all of a unit, which a gather writes */
            if (!l->at[k].out[o].id || root->role != LS_ROLE_PARAMETER || root->param < 0 || seen[root->param]) continue;
            seen[root->param] = true;
            broadcast_buffer(a, (ls_value){ p->values[l->at[k].out[o].id].root });
        }
    program_cursor_end(p, before);
}

ls_status join_batch_norms(struct pass *a)
{
    int n = a->p->nvalues;
    ls_value *sum = mem_array(MEM_OTHER, (size_t)n, sizeof *sum);
    bool *seen = mem_array(MEM_OTHER, ls_store_count(a->p->store) + 1, sizeof *seen);

    if (sum && seen) {
        join_segment(a, SEG_FORWARD, sum, n);
        join_segment(a, SEG_BACKWARD, sum, n);
        join_segment(a, SEG_WEIGHTS, sum, n);
        if (samples(a) && !a->d->o.sync_batch_norm && a->p->list[SEG_OPTIMIZER].n) broadcast_buffers(a, seen);
    }
    mem_free(sum);
    mem_free(seen);
    return sum && seen ? ls_program_status(a->p) : LS_ENOMEM;
}
