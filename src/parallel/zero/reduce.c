/* reduce.c - sums gradients over all ranks of their kind.
 *
 * Unsharded gradients (zero 0 and 1, unsharded_accumulation) are in the store. In the last micro-batch of a step a unit's reduction
 * starts in place after the last instruction that adds to it, and the optimizer waits for it: an all-reduce, or with shards a
 * reduce-scatter into this rank's own block. A program without the optimizer waits at the end of the segment;
 * a pipeline's stage (slots) in its own optimizer's segment, after all micro-batches, because the stage before waits for its gradients.
 *
 * Sharded gradients (zero 2 and 3): the store holds this rank's block. In each micro-batch a unit's gradient is a communication value,
 * zeroed before its first writer and reduce-scattered in place after its last; the own block is then added to the store's, and the
 * buffer is free. If weight gradients have a segment of their own, other micro-batches run between the two segments, so the buffer
 * exists in the segment that completes the unit only. What the backward writes of a unit that the weights segment completes (an output
 * projection whose gradient comes with that of its input, in a unit with other parameters) waits in an activation, of which each
 * micro-batch in flight has its own.
 *
 * Gradients to which several programs of the store add (tied weights, if a rank has both ends) are reduced before the optimizer; sharded
 * gradients are accumulated as they come.
 *
 * bf16: of an f32 gradient a rounded copy is communicated, and the sum is copied back into f32; a bf16 gradient is communicated as it is.
 * Either is summed in f32 and rounded once (by a GPU's library after each addition: rule 5 of src/device/collectives.h).
 * Replicas: the owned block is all-reduced over the ranks that own the same block, in the last micro-batch.
 *
 * Offloaded gradients: where this rank alone has the samples, a unit's gradients are loaded before their first writer (with overlap as
 * early as its parameters), added to in place, and saved after the last. Sharded ones are loaded, added to and saved after each
 * reduce-scatter. A save is waited for before the next one starts.
 *
 * A reduction with work left after its wait (all but f32 in place) is finished just before the next one starts, so that at most one
 * buffer is in flight besides the one being filled.
 */
#include "parallel/zero/zero.h"

#include "base/mem.h"

/* The ranks with the same shard; NULL without shards. */
static ls_comm *replicas(const struct pass *a, const struct unit *u) { return unit_zero(a, u) ? u->groups->replicas : NULL; }

static ls_placement_kind after(const struct pass *a, const struct unit *u)
{
    return !unit_zero(a, u) ? LS_REPLICATE : replicas(a, u) ? LS_PARTIAL : LS_SHARD;
}

static bool is_sharded(const struct pass *a, const struct unit *u) { return data_parallel_shards(a, u->groups, STORE_GRAD); }

/* True if micro-batches add to a buffer of the unit, not to the store. */
static bool has_buffer(const struct pass *a, const struct unit *u) { return is_sharded(a, u) || offload_has(a, u, STORE_GRAD); }

/* True if its gradients are added to in the buffer to which they are loaded. */
static bool is_loaded_first(const struct pass *a, const struct unit *u) { return !u->groups->all && offload_has(a, u, STORE_GRAD); }

static ls_dtype gradient_type(const struct pass *a, const struct unit *u) { return store_unit_type(a->p->store, u->index, STORE_GRAD); }

/* True if a rounded copy of the gradient is communicated. */
static bool is_rounded(const struct pass *a, const struct unit *u)
{
    return a->d->o.reduce == LS_BF16 && ls_dtype_bytes(gradient_type(a, u)) > ls_dtype_bytes(LS_BF16);
}

/* True if nothing is left to do after the wait: a sum in place. */
static bool is_in_place(const struct pass *a, const struct unit *u) { return !is_sharded(a, u) && !is_rounded(a, u) && !replicas(a, u); }

/* When work that is done once per step runs: always in the optimizer's segment, else in the last micro-batch. */
static ls_when once(const struct pass *a) { return a->p->builder.cursor.segment == SEG_OPTIMIZER ? LS_WHEN_ALWAYS : LS_WHEN_LAST; }

static ls_when when_of(const struct pass *a, const struct unit *u) { return is_sharded(a, u) ? LS_WHEN_ALWAYS : once(a); }

/* True if work done once per step is left to the program that has the optimizer. */
static bool is_put_off(const struct pass *a, const struct unit *u) { return (u->class & CLASS_JOINT) && !a->p->list[SEG_OPTIMIZER].n; }

/* ---- the steps of one unit ---- */

/* The buffer in which micro-batches are accumulated before communication: [total]. */
static ls_value source(struct pass *a, struct unit *u)
{
    ls_value v = is_sharded(a, u) ? u->full : unit_gradient(a, u);

    value_set_place(a->p, v, LS_PARTIAL);
    return v;
}

/* Adds what the backward has computed of this unit's gradient. */
static void add_early(struct pass *a, struct unit *u)
{
    const struct store_unit *g = unit_stored(a, u);

    for (int k = 0; k < g->n && program_ok(a->p); k++) {
        ls_value early = a->early[g->params[k]];

        if (!early.id) continue;
        emit_call(a->p, OP_ACCUMULATE, LS_WHEN_ALWAYS, early,
                  emit_part(a->p, u->full, g->at[k], value_count(program_value(a->p, early)), LS_PARTIAL));
    }
}

static void reduce_begin(struct pass *a, struct unit *u)
{
    if (is_loaded_first(a, u)) {
        u->full = offload_load(a, u, STORE_GRAD, NULL, true);
        offload_wait(a, u);
        return;
    }
    if (!is_sharded(a, u)) return;
    u->full = unit_value(a, u, "gradient", gradient_type(a, u), unit_stored(a, u)->total);
    value_set_place(a->p, u->full, LS_PARTIAL);
    unit_mark_sums(a->p, u, u->full);
    emit_call(a->p, OP_FILL, LS_WHEN_ALWAYS, LS_NONE, u->full);
    add_early(a, u);
}

/* The activation in which the gradient of parameter `param`, [count], waits for the weights segment; zeroed when it is made. */
static ls_value early_gradient(struct pass *a, struct unit *u, int param)
{
    ls_value *early = &a->early[param];

    if (early->id) return *early;
    *early = program_new_value(a->p, "early_gradient", gradient_type(a, u), 1, (size_t[]){ store_local_count(a->p->store, (size_t)param) });
    value_set_place(a->p, *early, LS_PARTIAL);
    unit_mark_sums(a->p, u, *early);
    emit_call(a->p, OP_FILL, LS_WHEN_ALWAYS, LS_NONE, *early);
    return *early;
}

/* The bf16 copy of x that is communicated, or x itself. */
static ls_value rounded_gradient(struct pass *a, struct unit *u, ls_value x, ls_when when)
{
    if (!x.id || !is_rounded(a, u)) return x;
    ls_value copy = unit_value(a, u, "gradient.bf16", LS_BF16, value_count(program_value(a->p, x)));
    value_set_place(a->p, copy, value_place(a->p, x));
    unit_mark_sums(a->p, u, copy);
    emit_call(a->p, OP_COPY, when, x, copy);
    return copy;
}

static void reduce_start(struct pass *a, struct unit *u)
{
    const struct store_unit *g = unit_stored(a, u);
    bool scatter = unit_zero(a, u) > 0;
    struct exchange e = { .op = scatter ? LS_COLLECTIVE_REDUCE_SCATTER : LS_COLLECTIVE_ALL_REDUCE,
                          .axis = LS_AXIS_DP,
                          .comm = scatter ? u->groups->shard : u->groups->all,
                          .total = g->total,
                          .counts = scatter ? unit_counts_of_ranks(a, u) : NULL,
                          .redop = LS_SUM };
    ls_value in = rounded_gradient(a, u, source(a, u), when_of(a, u));

    in = emit_part(a->p, in, 0, g->total, LS_PARTIAL);
    ls_value out = emit_part(a->p, in, unit_begin(a, u), unit_end(a, u) - unit_begin(a, u), after(a, u));
    if (out.id) emit_start(a->p, &u->reduction, &e, when_of(a, u), in, out);
    u->reduced = out;
    if (offload_has(a, u, STORE_GRAD)) offload_load(a, u, STORE_GRAD, NULL, true);
}

/* Reduces over the replicas; x is this rank's block in the store. */
static void start_replicas(struct pass *a, struct unit *u, ls_value x)
{
    size_t count = unit_end(a, u) - unit_begin(a, u);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_REDUCE, .axis = LS_AXIS_DP, .comm = replicas(a, u), .total = count, .redop = LS_SUM };
    ls_value in = rounded_gradient(a, u, x, once(a)), out = emit_part(a->p, in, 0, count, LS_SHARD);

    if (!out.id) return;
    emit_start(a->p, &u->reduction, &e, once(a), in, out);
    u->reduced = out;
    if (in.id == x.id) return;
    emit_wait(a->p, &u->reduction);
    u->reduced = emit_part(a->p, x, 0, count, LS_SHARD);
    emit_call(a->p, OP_COPY, once(a), out, u->reduced);
}

static void save_begin(struct pass *a, struct unit *u)
{
    if (a->saving) offload_end(a, a->saving);
    offload_save(a, u, STORE_GRAD, NULL);
    a->saving = u;
    if (!a->d->o.overlap) offload_end(a, u);
}

static void save_finish(struct pass *a)
{
    if (a->saving) offload_end(a, a->saving);
    a->saving = NULL;
}

/* Waits, and copies or adds the sum to the store's gradient. */
static void reduce_finish(struct pass *a, struct unit *u)
{
    bool offloaded = offload_has(a, u, STORE_GRAD);
    ls_value sum = u->reduced, kept = offloaded ? offload_load(a, u, STORE_GRAD, NULL, true) : unit_gradient(a, u);

    emit_wait(a->p, &u->reduction);
    if (offloaded) offload_wait(a, u);
    if (!kept.id) return;
    if (is_sharded(a, u)) {
        value_set_place(a->p, kept, after(a, u));
        emit_call(a->p, OP_ACCUMULATE, LS_WHEN_ALWAYS, sum, kept);
    } else {
        kept = emit_part(a->p, kept, unit_begin(a, u), unit_end(a, u) - unit_begin(a, u), after(a, u));
        if (is_rounded(a, u)) emit_call(a->p, OP_COPY, once(a), sum, kept);
    }
    u->reduced = kept;
    if (replicas(a, u) && !is_put_off(a, u)) start_replicas(a, u, kept);
    if (!offloaded) return;
    emit_wait(a->p, &u->reduction);
    save_begin(a, u);
}

/* ---- the walk ---- */

static struct unit *written_unit(const struct pass *a, ls_value v)
{
    const struct value *root = &a->p->values[a->p->values[v.id].root];

    return v.id && root->role == LS_ROLE_GRADIENT ? unit_of(a, root) : NULL;
}

static void find_writers(struct pass *a)
{
    const ls_program *p = a->p;

    for (int s = SEG_BACKWARD, at = 0, begin = 0; s <= SEG_WEIGHTS; s++, begin = at)
        for (int k = 0; k < p->list[s].n; k++, at++)
            for (int o = 0; o < p->list[s].at[k].nout; o++) {
                struct unit *u = written_unit(a, p->list[s].at[k].out[o]);

                if (!u) continue;
                u->first = u->last < begin ? at : u->first;
                u->last = at;
            }
}

/* The value that writer number `at` writes: the parameter's gradient in the store, its place in the unit's buffer, or an activation if
 * another segment completes the unit. */
static ls_value target(struct pass *a, int at, ls_value v)
{
    ls_program *p = a->p;
    struct unit *u = written_unit(a, v);
    int param = p->values[p->values[v.id].root].param, k = 0;

    if (!u) return v;
    if (u->groups->all) value_set_place(p, v, LS_PARTIAL);
    if (!has_buffer(a, u)) return v;
    ls_value into = at < u->first ? early_gradient(a, u, param) : u->full;
    if (!into.id) return v;
    while (unit_stored(a, u)->params[k] != param) k++;
    size_t begin = at < u->first ? 0 : unit_stored(a, u)->at[k];
    struct value x = *program_value(p, v);
    return program_view(p, into, (struct view_rule){ VIEW_SLICE, 0, 0, begin }, x.ndim, x.size, x.stride, (ptrdiff_t)begin + x.offset);
}

static struct unit *settle(struct pass *a, struct unit *pending)
{
    if (pending) reduce_finish(a, pending);
    return NULL;
}

/* Starts the reductions that instruction number `at` completes. Returns the unit that still has to be finished. */
static struct unit *after_instruction(struct pass *a, int at, struct unit *pending)
{
    for (int g = 0; g < a->nunits && program_ok(a->p); g++) {
        struct unit *u = &a->unit[g];

        if (u->last != at) continue;
        if (is_loaded_first(a, u)) save_begin(a, u);
        if (!u->groups->all || (is_put_off(a, u) && !is_sharded(a, u))) continue;
        pending = settle(a, pending);
        a->order[a->ordered++] = g;
        reduce_start(a, u);
        if (!is_in_place(a, u)) pending = u;
        if (!a->d->o.overlap) {
            pending = settle(a, pending);
            emit_wait(a->p, &u->reduction);
        }
    }
    return pending;
}

/* A program with slots is a stage of a pipeline: others wait for what its backward computes, so reductions are waited for when it has run
 * all its micro-batches. */
static bool waits_later(const struct pass *a) { return a->p->list[SEG_OPTIMIZER].n || a->p->arguments.options.slots > 0; }

static void wait_all(struct pass *a)
{
    for (int k = 0; k < a->ordered; k++) emit_wait(a->p, &a->unit[a->order[k]].reduction);
}

void reduce_wait(struct pass *a)
{
    struct cursor before = program_cursor_segment(a->p, SEG_OPTIMIZER, LS_PHASE_COMMUNICATE);

    wait_all(a);
    program_cursor_end(a->p, before);
}

/* Gradients are loaded as early as the parameters of their unit. */
static void load_ahead(struct pass *a, const struct instruction *i, int at)
{
    struct unit *u = instruction_is_load(i) && instruction_state(i)->kind == STORE_VALUE ? &a->unit[instruction_state(i)->unit] : NULL;

    if (u && a->d->o.overlap && is_loaded_first(a, u) && u->first > at) offload_load(a, u, STORE_GRAD, NULL, true);
}

/* Walks a segment whose instructions are numbered from `at`. */
static void reduce_walk(struct pass *a, enum segment s, int at)
{
    ls_program *p = a->p;
    struct rewrite w = rewrite_begin(p, s, LS_PHASE_COMMUNICATE);
    struct unit *pending = NULL;
    struct cursor before;

    for (int k = 0; k < w.old.n && program_ok(p); k++, at++) {
        struct instruction i = w.old.at[k];

        before = program_cursor_block(p, i.block);
        for (int g = 0; g < a->nunits; g++)
            if (a->unit[g].first == at) reduce_begin(a, &a->unit[g]);
        for (int o = 0; o < i.nout; o++) i.out[o] = target(a, at, i.out[o]);
        program_push(p, &i);
        load_ahead(a, &i, at);
        pending = after_instruction(a, at, pending);
        program_cursor_end(p, before);
    }
    before = program_cursor_block(p, w.old.n ? w.old.at[w.old.n - 1].block : 0);
    settle(a, pending);
    save_finish(a);
    if (!waits_later(a)) wait_all(a);
    program_cursor_end(p, before);
    rewrite_end(p, &w);
}

static void reduce_put_off(struct pass *a, struct unit *u)
{
    ls_value kept = unit_gradient(a, u);

    if (!is_sharded(a, u)) {
        reduce_start(a, u);
        if (!is_in_place(a, u)) reduce_finish(a, u);
    } else if (replicas(a, u) && kept.id) {
        value_set_place(a->p, kept, LS_PARTIAL);
        start_replicas(a, u, kept);
    }
}

void reduce_joint(struct pass *a)
{
    for (int g = 0; g < a->nunits && program_ok(a->p); g++)
        if ((a->unit[g].class & CLASS_JOINT) && a->unit[g].groups->all && a->unit[g].last < 0) reduce_put_off(a, &a->unit[g]);
}

ls_status reduce_gradients(struct pass *a)
{
    int split = a->p->list[SEG_BACKWARD].n;

    a->early = mem_array(MEM_OTHER, ls_store_count(a->p->store) + 1, sizeof *a->early);
    if (!a->early) return LS_ENOMEM;
    find_writers(a);
    if (split) reduce_walk(a, SEG_BACKWARD, 0);
    if (a->p->list[SEG_WEIGHTS].n) reduce_walk(a, SEG_WEIGHTS, split);
    return ls_program_status(a->p);
}
