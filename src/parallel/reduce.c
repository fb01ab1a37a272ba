/* reduce.c - gradients become sums over all ranks.
 *
 * Whole gradients (zero 0 and 1, accumulate_whole) lie in the store; a unit's reduction starts behind the instruction that adds
 * to it last, in the last micro-batch of a step, in place, and the optimizer waits for it: all-reduce, or with shards
 * reduce-scatter into this rank's own block.
 *
 * Sharded gradients (zero 2 and 3): the store holds this rank's block. In each micro-batch a unit's gradient is a communication
 * value, zeros before its first writer, reduce-scattered in place behind its last; the own block is then added to the
 * store's, and the rest is free.
 *
 * bf16: a rounded copy travels instead, summed in f32 and rounded once; the sum goes back into f32.
 * Replicas: what a rank owns is all-reduced over the ranks that own the same, in the last micro-batch.
 *
 * What has something left to do after its wait (all but f32 in place) is finished just before the next one starts, so that one
 * buffer at most is under way beside the one being filled.
 */
#include "parallel/data.h"

static ls_dtype exact_type(const struct pass *a)
{
    return ls_store_settings(a->p->store).type == LS_F64 ? LS_F64 : LS_F32;
}

static ls_placement_kind after(const struct pass *a)
{
    return !a->d->o.zero ? LS_REPLICATE : a->d->replicas ? LS_PARTIAL : LS_SHARD;
}

static ls_value group_grad(struct pass *a, const struct unit *u) { return program_group_value(a->p, u->group, STORE_GRAD, NULL); }

/* Is there nothing left to do when an f32 sum in place has arrived? */
static bool is_in_place(const struct pass *a)
{
    return !data_shards(a, STORE_GRAD) && a->d->o.reduce != LS_BF16 && !a->d->replicas;
}

static enum when when_of(const struct pass *a) { return data_shards(a, STORE_GRAD) ? WHEN_ALWAYS : WHEN_LAST; }

/* ---- the steps of one unit ---- */

/* Where micro-batches add up before they travel: [total]. */
static ls_value source(struct pass *a, struct unit *u)
{
    ls_value v = data_shards(a, STORE_GRAD) ? u->full : group_grad(a, u);

    value_set_place(a->p, v, LS_PARTIAL);
    return v;
}

static void begin(struct pass *a, struct unit *u)
{
    if (!data_shards(a, STORE_GRAD))
        return;
    u->full = unit_value(a, u, "gradient", exact_type(a), unit_group(a, u)->total);
    value_set_place(a->p, u->full, LS_PARTIAL);
    emit_call(a->p, OP_FILL, WHEN_ALWAYS, LS_NONE, u->full);
}

/* The rounded copy, or x itself. */
static ls_value to_travel(struct pass *a, struct unit *u, ls_value x, enum when when)
{
    ls_value copy;

    if (!x.id || a->d->o.reduce != LS_BF16)
        return x;
    copy = unit_value(a, u, "gradient.bf16", LS_BF16, value_count(program_value(a->p, x)));
    value_set_place(a->p, copy, value_place(a->p, x));
    emit_call(a->p, OP_COPY, when, x, copy);
    return copy;
}

static void start(struct pass *a, struct unit *u)
{
    const struct store_group *g = unit_group(a, u);
    struct exchange e = { .op = a->d->o.zero ? LS_COLLECTIVE_REDUCE_SCATTER : LS_COLLECTIVE_ALL_REDUCE, .comm = a->d->shard,
                          .redop = data_has(BUG_AVERAGE) ? LS_AVG : LS_SUM, .total = g->total };
    ls_value in = to_travel(a, u, source(a, u), when_of(a)), out;

    in = emit_part(a->p, in, 0, g->total, LS_PARTIAL);
    out = emit_part(a->p, in, unit_begin(a, u), unit_end(a, u) - unit_begin(a, u), after(a));
    if (out.id)
        emit_start(a->p, &u->reduction, &e, when_of(a), in, out);
    u->reduced = out;
}

/* Over the replicas: x is this rank's block in the store. */
static void start_replicas(struct pass *a, struct unit *u, ls_value x)
{
    size_t count = unit_end(a, u) - unit_begin(a, u);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .comm = a->d->replicas, .total = count,
                          .redop = data_has(BUG_AVERAGE) ? LS_AVG : LS_SUM };
    ls_value in = to_travel(a, u, x, WHEN_LAST), out = emit_part(a->p, in, 0, count, LS_SHARD);

    if (!out.id)
        return;
    emit_start(a->p, &u->reduction, &e, WHEN_LAST, in, out);
    u->reduced = out;
    if (in.id == x.id)
        return;
    emit_wait(a->p, &u->reduction);
    u->reduced = emit_part(a->p, x, 0, count, LS_SHARD);
    emit_call(a->p, OP_COPY, WHEN_LAST, out, u->reduced);
}

/* Waits, and brings the sum to where the store has it. */
static void finish(struct pass *a, struct unit *u)
{
    ls_value sum = u->reduced, kept = group_grad(a, u);
    bool twice = data_has(BUG_TWICE) && u->group == a->order[0];

    emit_wait(a->p, &u->reduction);
    if (!kept.id)
        return;
    if (data_shards(a, STORE_GRAD)) {
        value_set_place(a->p, kept, after(a));
        for (int k = 0; k < 1 + twice; k++)
            emit_call(a->p, OP_ACCUMULATE, WHEN_ALWAYS, sum, kept);
    } else {
        kept = emit_part(a->p, kept, unit_begin(a, u), unit_end(a, u) - unit_begin(a, u), after(a));
        if (a->d->o.reduce == LS_BF16)
            emit_call(a->p, OP_COPY, WHEN_LAST, sum, kept);
    }
    u->reduced = kept;
    if (a->d->replicas)
        start_replicas(a, u, kept);
}

/* ---- the walk ---- */

static void find_writers(struct pass *a)
{
    const ls_program *p = a->p;
    const struct list *l = &p->list[SEG_BACKWARD];

    for (int k = 0; k < l->n; k++)
        for (int o = 0; o < l->at[k].nout; o++) {
            const struct value *root = &p->values[p->values[l->at[k].out[o].id].root];
            struct unit *u = root->role == LS_ROLE_GRADIENT ? unit_of(a, root) : NULL;

            if (!u)
                continue;
            u->first = u->first < 0 ? k : u->first;
            u->last = k;
        }
}

/* A writer's target: the parameter's gradient in the store, or its place in the unit's. */
static ls_value target(struct pass *a, ls_value v)
{
    ls_program *p = a->p;
    const struct value *root = &p->values[p->values[v.id].root];
    struct unit *u = v.id && root->role == LS_ROLE_GRADIENT ? unit_of(a, root) : NULL;
    struct value x;
    int k = 0;

    if (!u)
        return v;
    value_set_place(p, v, LS_PARTIAL);
    if (!data_shards(a, STORE_GRAD) || !u->full.id)
        return v;
    while (unit_group(a, u)->params[k] != root->param)
        k++;
    x = *program_value(p, v);
    return program_view(p, u->full, (struct view_rule){ VIEW_SLICE, 0, 0, unit_group(a, u)->at[k] }, x.ndim, x.size, x.stride,
                        (ptrdiff_t)unit_group(a, u)->at[k] + x.offset);
}

static struct unit *settle(struct pass *a, struct unit *pending)
{
    if (pending)
        finish(a, pending);
    return NULL;
}

/* A planted bug: the sum that has just been started is formed once more. */
static void reduce_again(struct pass *a, struct unit *u)
{
    struct flight first = u->reduction;

    emit_wait(a->p, &u->reduction);
    emit_start(a->p, &u->reduction, &first.x, WHEN_LAST, a->d->o.zero ? first.in : first.out, first.out);
}

/* Behind instruction k: starts what is final now. Returns the unit that is still to be finished. */
static struct unit *after_instruction(struct pass *a, int k, int last, struct unit *pending)
{
    for (int g = 0; g < a->nunits && program_ok(a->p); g++) {
        struct unit *u = &a->unit[g];

        if (u->last != k || (data_has(BUG_SKIP_BUCKET) && k == last))
            continue;
        pending = settle(a, pending);
        a->order[a->ordered++] = g;
        start(a, u);
        if (!is_in_place(a))
            pending = u;
        if (data_has(BUG_TWICE) && is_in_place(a) && a->ordered == 1)
            reduce_again(a, u);
        if (!a->d->o.overlap) {
            pending = settle(a, pending);
            emit_wait(a->p, &u->reduction);
        }
    }
    return pending;
}

static void walk(struct pass *a)
{
    ls_program *p = a->p;
    struct list old = rewrite_begin(p, SEG_BACKWARD, PHASE_COMMUNICATE);
    struct unit *pending = NULL;
    int last = -1;

    for (int g = 0; g < a->nunits; g++)
        last = MAX(last, a->unit[g].last);
    for (int k = 0; k < old.n && program_ok(p); k++) {
        struct instruction i = old.at[k];

        p->block = i.block;
        for (int g = 0; g < a->nunits; g++)
            if (a->unit[g].first == k)
                begin(a, &a->unit[g]);
        for (int o = 0; o < i.nout; o++)
            i.out[o] = target(a, i.out[o]);
        emit_same(p, &i);
        pending = after_instruction(a, k, last, pending);
    }
    settle(a, pending);
    rewrite_end(p, &old);
}

ls_status reduce_gradients(struct pass *a)
{
    if (a->p->list[SEG_BACKWARD].n) {
        find_writers(a);
        walk(a);
    }
    return ls_program_status(a->p);
}
