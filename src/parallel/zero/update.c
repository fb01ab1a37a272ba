/* update.c - restricts the optimizer segment to the elements that this rank updates.
 *
 *     gradient sums over more than data (model_axis_grads.c)
 *     squares of the own gradients, unit by unit as their reductions complete;  their sum over the shards;  norm, clip factor
 *     LAMB, LARS: moments and squares of the own elements, parameter by parameter;  their sum over the shards
 *     updates of the own elements;  zero 1, 2: a unit's parameters are all-gathered in place after its last update (carry.c)
 *
 * Every instruction that works on a parameter is rewritten for the elements that this rank holds, as one-dim tensors; if it holds none,
 * the instruction is dropped. Every element counts once in every sum: without shards each rank has all elements and no sum over ranks is
 * needed. If ranks hold different parameters (tp, pp, ep) the sum is over the whole mesh, and of the ranks that update the same elements
 * only one counts them.
 */
#include "parallel/zero/zero.h"

#include <string.h>
#include "base/mem.h"
#include "ir/op_info.h"

/* The segment being rewritten. */
struct update {
    struct pass *a;
    struct rewrite rewrite;
    ls_value norms, summed; /* [P,2] of LAMB and LARS, local and summed over all shards; or LS_NONE */
    bool carries;
    int *use; /* [a->ordered] the units in the order in which the next step reads them */
};

static enum optimizer_stage update_stage_of(const struct instruction *i) { return op_info(i->op)->stage; }

static const struct value *root_of(const ls_program *p, ls_value v) { return &p->values[p->values[v.id].root]; }

static bool is_of_store(const struct value *root)
{
    return root->param >= 0 && (root->role == LS_ROLE_PARAMETER || root->role == LS_ROLE_GRADIENT || root->role == LS_ROLE_OPTIMIZER);
}

/* The parameter on which an instruction of a stage works. */
static int param_of(const ls_program *p, const struct instruction *i)
{
    for (int k = 0; k < i->nin + i->nout; k++) {
        ls_value v = k < i->nin ? i->in[k] : i->out[k - i->nin];

        if (v.id && is_of_store(root_of(p, v))) return root_of(p, v)->param;
    }
    return -1;
}

static struct unit *instruction_unit(const struct pass *a, const struct instruction *i)
{
    int param = update_stage_of(i) == OPTIMIZER_NONE ? -1 : param_of(a->p, i);
    int g = param < 0 ? -1 : store_unit_of(a->p->store, (size_t)param);

    return g < 0 ? NULL : &a->unit[g];
}

/* ---- sums over shards ---- */

/* The ranks over which squares are summed; NULL: this rank has all of them. */
static ls_comm *norm_ranks(const struct pass *a)
{
    if (!data_is_distributed(a) || a->d->method->apart) return NULL;
    return a->d->mixed ? a->d->world : a->d->o.zero ? a->d->groups[GROUPS_DENSE].shard : NULL;
}

/* The clip factor is computed from the sum of squares over all shards. */
static void emit_clip(struct update *w, struct instruction i)
{
    struct pass *a = w->a;

    if (norm_ranks(a)) {
        value_set_place(a->p, i.in[0], LS_PARTIAL);
        i.in[0] = emit_sum(a->p, norm_ranks(a), i.in[0]);
    }
    program_push(a->p, &i);
}

/* Sums the norms of stage NORMS over the shards. */
static void sum_norms(struct update *w)
{
    ls_program *p = w->a->p;

    for (int n = 0; n < w->rewrite.old.n; n++) {
        const struct instruction *i = &w->rewrite.old.at[n];

        if (update_stage_of(i) == OPTIMIZER_NORMS && i->out[i->nout - 1].id) w->norms.id = p->values[i->out[i->nout - 1].id].root;
    }
    if (!w->norms.id || !norm_ranks(w->a)) return;
    value_set_place(p, w->norms, LS_PARTIAL);
    w->summed = emit_sum(p, norm_ranks(w->a), w->norms);
}

/* ---- one parameter's elements ---- */

ls_value unit_reduced(struct pass *a, struct unit *u)
{
    bool partial = u->groups->all && u->last >= 0;
    size_t begin = unit_begin(a, u), count = unit_end(a, u) - begin;

    if (offload_has(a, u, STORE_GRAD)) return offload_value(u, STORE_GRAD, NULL);
    if (u->reduced.id) return u->reduced;
    return u->reduced = emit_part(a->p, unit_gradient(a, u), data_parallel_shards(a, u->groups, STORE_GRAD) ? 0 : begin, count,
                                  partial           ? LS_PARTIAL
                                  : unit_zero(a, u) ? LS_SHARD
                                                    : LS_REPLICATE);
}

static ls_value unit_elements(struct pass *a, struct unit *u, enum store_kind kind, const char *state)
{
    return offload_has(a, u, kind) ? offload_value(u, kind, state) : program_unit_value(a->p, u->index, kind, state);
}

/* Elements [lo, hi) of the unit's flat buffer of v's kind. */
static ls_value update_range(struct pass *a, struct unit *u, ls_value v, size_t lo, size_t hi)
{
    ls_program *p = a->p;
    struct value root = *root_of(p, v);
    ls_placement_kind place = unit_zero(a, u) ? LS_SHARD : LS_REPLICATE;
    ls_value flat;
    size_t begin = unit_begin(a, u);

    switch (root.role) {
    case LS_ROLE_GRADIENT:
        flat = unit_reduced(a, u);
        place = flat.id ? value_place(p, flat) : place;
        break;
    case LS_ROLE_OPTIMIZER: flat = unit_elements(a, u, STORE_STATE, root.state); break;
    default: flat = unit_elements(a, u, STORE_VALUE, NULL); begin = data_parallel_shards(a, u->groups, STORE_VALUE) ? begin : 0;
    }
    return emit_part(p, flat, lo - begin, hi - lo, place);
}

/* Replaces a norm that is read by its sum over all shards. */
static ls_value summed(struct update *w, ls_value v)
{
    ls_program *p = w->a->p;
    size_t at = (size_t)p->values[v.id].offset;

    if (!w->summed.id || p->values[v.id].root != w->norms.id) return v;
    return emit_part(p, w->summed, at, value_count(&p->values[v.id]), LS_REPLICATE);
}

static bool has_output(const struct instruction *i)
{
    for (int o = 0; o < i->nout; o++)
        if (i->out[o].id) return true;
    return false;
}

/* The elements of i are those of the rank's part from `first` on. */
static void place_rounding(ls_program *p, int param, struct instruction *i, size_t first)
{
    struct rounding *r = &i->attr.optim.rounding;

    if (!r->run) return;
    r->first = first;
    if (!store_box_lines(p->store, (size_t)param, &r->begin, &r->run, &r->stride))
        program_fail(p, "optimizer: parameter '%s' is sharded along two dims after the first, which stochastic rounding does not support",
                     ls_store_name(p->store, (size_t)param));
}

static void emit_shard(struct update *w, struct unit *u, struct instruction i)
{
    struct pass *a = w->a;
    ls_program *p = a->p;
    const struct store_unit *g = unit_stored(a, u);
    int param = param_of(p, &i), k = 0;

    while (g->params[k] != param) k++;
    size_t lo = MAX(g->at[k], unit_begin(a, u));
    size_t hi = MIN(g->at[k + 1], unit_end(a, u));
    if (lo >= hi) return;
    place_rounding(p, param, &i, lo - g->at[k]);
    if (update_stage_of(&i) == OPTIMIZER_NORMS && !unit_counts(a, u)) {
        i.out[i.nout - 1] = LS_NONE; /* LAMB's moments are updated all the same */
        if (!has_output(&i)) return;
    }
    for (int o = 0; o < i.nin && program_ok(p); o++)
        if (i.in[o].id) i.in[o] = is_of_store(root_of(p, i.in[o])) ? update_range(a, u, i.in[o], lo, hi) : summed(w, i.in[o]);
    for (int o = 0; o < i.nout && program_ok(p); o++)
        if (i.out[o].id && is_of_store(root_of(p, i.out[o]))) i.out[o] = update_range(a, u, i.out[o], lo, hi);
    program_push(p, &i);
}

/* ---- one stage, unit by unit ---- */

static void emit_squares(struct update *w, struct unit *u, ls_value acc)
{
    struct pass *a = w->a;
    const struct store_unit *g = unit_stored(a, u);

    if (unit_end(a, u) == unit_begin(a, u) || !unit_counts(a, u)) return;
    if (u->groups->all || !a->d->o.offload_parameters) {
        emit_call(a->p, OP_SUM_SQUARES, LS_WHEN_ALWAYS, unit_reduced(a, u), acc);
        return;
    }
    for (int k = 0; k < g->n; k++) /* as without offload, so that the sum has the same bits */
        emit_call(a->p, OP_SUM_SQUARES, LS_WHEN_ALWAYS,
                  emit_part(a->p, unit_reduced(a, u), g->at[k], g->at[k + 1] - g->at[k], LS_REPLICATE), acc);
}

static void start_gather(const struct update *w, struct unit *u)
{
    struct pass *a = w->a;
    const struct store_unit *g = unit_stored(a, u);
    struct exchange e = {
        .op = LS_COLLECTIVE_ALL_GATHER,
        .axis = LS_AXIS_DP,
        .comm = g->comm,
        .total = g->total,
        .counts = unit_counts_of_ranks(a, u),
        .carried = w->carries ? u->index + 1 : 0,
    };
    ls_value flat = program_unit_value(a->p, u->index, STORE_VALUE, NULL);
    ls_value own = emit_part(a->p, flat, g->begin, g->end - g->begin, LS_SHARD);
    ls_value gathered = emit_part(a->p, flat, 0, g->total, LS_REPLICATE);

    if (!gathered.id) return;
    emit_start(a->p, &u->gather, &e, LS_WHEN_ALWAYS, own, gathered);
    if (!a->d->o.overlap) emit_wait(a->p, &u->gather);
    if (w->carries) u->gather.open = false; /* wait_at_first_use() */
}

/* ---- what is offloaded ---- */

/* A kind of a unit that a stage uses. */
struct use {
    enum store_kind kind;
    const char *state;
    bool read, written;
};

static enum store_kind update_kind_of(const struct value *root)
{
    return root->role == LS_ROLE_PARAMETER ? STORE_VALUE : root->role == LS_ROLE_GRADIENT ? STORE_GRAD : STORE_STATE;
}

/* Adds an operand. An update reads what it writes, except a value that it rounds from the master copy. */
static int add_use(const struct pass *a, const struct unit *u, ls_value x, bool written, struct use *use, int n)
{
    const struct value *root = root_of(a->p, x);
    struct use new = { .written = written };
    int k = 0;

    if (!x.id || !is_of_store(root) || !offload_has(a, u, update_kind_of(root))) return n;
    new.kind = update_kind_of(root);
    new.state = new.kind == STORE_STATE ? root->state : NULL;
    new.read = new.kind != STORE_VALUE || !store_has_master(a->p->store, (size_t)root->param);
    while (k < n && !(use[k].kind == new.kind && (!new.state || strcmp(use[k].state, new.state) == 0))) k++;
    if (k == n) use[n++] = new;
    use[k].read = use[k].read || new.read;
    use[k].written = use[k].written || written;
    return n;
}

/* Lists what the instructions of a stage use of u that is offloaded; returns how many. */
static int stage_uses(const struct update *w, enum optimizer_stage stage, const struct unit *u, struct use use[LOADED])
{
    const struct pass *a = w->a;
    int n = 0;

    if (!offload_has(a, u, STORE_VALUE) && !offload_has(a, u, STORE_GRAD) && !offload_has(a, u, STORE_STATE)) return 0;
    if (unit_end(a, u) == unit_begin(a, u) || (stage == OPTIMIZER_SQUARES && !unit_counts(a, u))) return 0;
    for (int k = 0; k < w->rewrite.old.n; k++) {
        const struct instruction *i = &w->rewrite.old.at[k];

        if (update_stage_of(i) != stage || instruction_unit(a, i) != u) continue;
        for (int o = 0; o < i->nin; o++) n = add_use(a, u, i->in[o], false, use, n);
        for (int o = 0; o < i->nout; o++) n = add_use(a, u, i->out[o], true, use, n);
    }
    return n;
}

static void load_uses(const struct update *w, enum optimizer_stage stage, struct unit *u)
{
    struct use use[LOADED];
    int n = stage_uses(w, stage, u, use);

    for (int k = 0; k < n; k++) offload_load(w->a, u, use[k].kind, use[k].state, use[k].read);
}

static void save_uses(const struct update *w, enum optimizer_stage stage, struct unit *u)
{
    struct use use[LOADED];
    int n = stage_uses(w, stage, u, use);

    for (int k = 0; k < n; k++)
        if (use[k].written) offload_save(w->a, u, use[k].kind, use[k].state);
}

/* ---- a stage ---- */

static struct unit *unit_at(const struct update *w, enum optimizer_stage stage, int k)
{
    return k < 0 || k >= w->a->ordered ? NULL : &w->a->unit[stage == OPTIMIZER_UPDATE && w->carries ? w->use[k] : w->a->order[k]];
}

/* Loads what unit k needs. With overlap the next unit's is loaded while this one is updated, and the one before has been saved by then, so
 * that two units are in memory. */
static void stage_load(const struct update *w, enum optimizer_stage stage, int k)
{
    struct pass *a = w->a;
    struct unit *before = unit_at(w, stage, k - 1), *next = unit_at(w, stage, k + 1);

    load_uses(w, stage, unit_at(w, stage, k));
    if (before) offload_end(a, before);
    if (a->d->o.overlap && next) load_uses(w, stage, next);
    offload_wait(a, unit_at(w, stage, k));
}

static void emit_stage(struct update *w, enum optimizer_stage stage, ls_value acc)
{
    struct pass *a = w->a;

    if (stage == OPTIMIZER_SQUARES) {
        reduce_joint(a);
        sum_over_mesh(a);
    }
    if (stage == OPTIMIZER_UPDATE) sum_norms(w);
    for (int k = 0; k < a->ordered && program_ok(a->p); k++) {
        struct unit *u = unit_at(w, stage, k);

        stage_load(w, stage, k);
        emit_wait(a->p, &u->reduction);
        if (stage == OPTIMIZER_SQUARES) emit_squares(w, u, acc);
        for (int n = 0; n < w->rewrite.old.n && stage != OPTIMIZER_SQUARES && program_ok(a->p); n++)
            if (update_stage_of(&w->rewrite.old.at[n]) == stage && instruction_unit(a, &w->rewrite.old.at[n]) == u)
                emit_shard(w, u, w->rewrite.old.at[n]);
        save_uses(w, stage, u);
        if (!a->d->o.overlap || k + 1 == a->ordered) offload_end(a, u);
        if (stage == OPTIMIZER_UPDATE && unit_zero(a, u) && !data_parallel_shards(a, u->groups, STORE_VALUE) && !a->d->method->apart)
            start_gather(w, u);
    }
}

/* ---- the segment ---- */

static void rewrite(struct update *w)
{
    ls_program *p = w->a->p;
    unsigned done = 0;

    for (int n = 0; n < w->rewrite.old.n; n++)
        if (instruction_is_view(&w->rewrite.old.at[n])) program_push(p, &w->rewrite.old.at[n]);
    for (int n = 0; n < w->rewrite.old.n && program_ok(p); n++) {
        const struct instruction *i = &w->rewrite.old.at[n];
        enum optimizer_stage stage = update_stage_of(i);

        if (stage == OPTIMIZER_CLIP)
            emit_clip(w, *i);
        else if (stage == OPTIMIZER_NONE && !instruction_is_view(i))
            program_push(p, i);
        else if (!instruction_is_view(i) && !(done >> stage & 1)) {
            done |= 1u << stage;
            emit_stage(w, stage, stage == OPTIMIZER_SQUARES ? i->out[0] : LS_NONE);
        }
    }
    for (int k = 0; k < w->a->ordered; k++) emit_wait(p, &w->a->unit[w->a->order[k]].gather);
}

/* Units without a reduction come after those with one. */
static void complete_order(struct pass *a)
{
    for (int g = 0; g < a->nunits; g++) {
        bool seen = false;

        for (int k = 0; k < a->ordered; k++) seen = seen || a->order[k] == g;
        if (!seen) a->order[a->ordered++] = g;
    }
}

ls_status update_shards(struct pass *a)
{
    struct update w = { .a = a, .carries = gathers_carry(a) };

    if (!a->p->list[SEG_OPTIMIZER].n) return LS_OK;
    complete_order(a);
    w.use = mem_array(MEM_OTHER, (size_t)a->ordered + 1, sizeof *w.use);
    if (!w.use) return LS_ENOMEM;
    if (w.carries) order_by_use(a, w.use);
    w.rewrite = rewrite_begin(a->p, SEG_OPTIMIZER, LS_PHASE_OPTIMIZER);
    rewrite(&w);
    rewrite_end(a->p, &w.rewrite);
    mem_free(w.use);
    return ls_program_status(a->p);
}
