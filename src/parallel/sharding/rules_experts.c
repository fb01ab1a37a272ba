/* rules_experts.c - partition rules for mixtures of experts: routing, dispatch, grouped matmuls and combine.
 *
 *     routing     R logits over tp                              the same on all ranks of tp; each rank of ep routes its own tokens
 *     loads       S index over cp     -> P                      per sample, summed over cp: the sample's tokens are on cp's ranks
 *     dispatch    ~R x                -> ~R rows [M,C]           over ep: followed by sending rows to the ranks of their experts
 *     matmuls     ~R, w sharded by rows -> S along the last dim  experts over ep, F over tp
 *                 S,  w sharded by columns -> P
 *     combine     P rows, ~R weights  -> P, reduced              over ep: preceded by receiving the rows back
 *
 * Over ep only the experts' weights are sharded: its ranks have different tokens, as over dp. A layer's forward has two exchanges of rows.
 * The counts are known at run time; buffers are allocated for the largest possible counts, which a capacity lowers, or in training for
 * receive_factor times the counts of an even load. Over cp rows are sharded as their tokens are.
 * With a capacity, the tokens of a sample compete for room: all ranks of cp gather its logits, route the full sample in the same way, and
 * keep the choices of their tokens.
 */
#include "parallel/sharding/partition.h"

#include <math.h>
#include "base/mem.h"

static bool distribute_over(const struct partitioner *c) { return c->n[LS_AXIS_EP] > 1; }

/* ---- routings ---- */

/* Finds the routing that produced v as its index, rows or counts; NULL: none. Valid until the next routing is added. */
static struct routing *routing_find(struct partitioner *c, ls_value v)
{
    for (int k = 0; k < c->nroutings; k++) {
        struct routing *r = &c->routing[k];

        if (v.id && (r->index.id == v.id || r->rows.id == v.id || r->counts.id == v.id)) return r;
    }
    return NULL;
}

/* Finds the routing of an operand of the current instruction; NULL: the program has failed. */
static struct routing *routing_of(struct partitioner *c, ls_value v)
{
    struct routing *r = program_ok(c->p) ? routing_find(c, v) : NULL;

    if (program_ok(c->p) && !r) partition_error(c, LS_AXIS_EP, v, "it does not come from a routing of this program");
    return r;
}

static struct routing *routing_new(struct partitioner *c, ls_value index)
{
    struct routing *grown = c->routing;

    if (c->nroutings == c->routings_room) {
        grown = mem_resize(c->routing, (size_t)(c->routings_room + 8) * sizeof *grown);
        if (!grown) {
            program_fail_by(c->p, LS_ENOMEM);
            return NULL;
        }
        c->routing = grown;
        c->routings_room += 8;
    }
    grown[c->nroutings] = (struct routing){ .index = index };
    return &grown[c->nroutings++];
}

/* ---- routing ---- */

static void no_gradient(struct partitioner *c, ls_value v) { sharding_of(c, v)->needs_grad = false; }

/* The choices have the placement of the logits. */
static void place_as_logits(struct partitioner *c, ls_value out, ls_value logits)
{
    for (int a = 0; a < LS_AXES; a++) place_as(c, out, logits, (ls_axis)a, place_of(c, logits, (ls_axis)a)->dim);
    value_resize(c, out, 1, program_value(c->p, logits)->size[1]);
}

/* All ranks of cp route full samples; each keeps the choices of its tokens, and counts a share of them all for the bias. */
static void route_whole_samples(struct partitioner *c, struct instruction *i)
{
    struct dim_split split = dim_split_of(c, i->in[0], LS_AXIS_CP);
    ls_value own[2] = { i->out[0], i->out[1] };

    i->in[0] = require_replicated(c, i->in[0], LS_AXIS_CP);
    i->out[0] = value_like(c, "expert_weight", own[0]);
    i->out[1] = value_like(c, "expert_index", own[1]);
    if (!program_ok(c->p)) return;
    i->attr.route.share = c->rank[LS_AXIS_CP];
    i->attr.route.shares = c->n[LS_AXIS_CP];
    for (int k = 0; k < 2; k++) place_as_logits(c, i->out[k], i->in[0]);
    emit_local(c, i);
    for (int k = 0; k < 2; k++) move_value(c, MOVE_SHARD, LS_AXIS_CP, i->out[k], 1, split, own[k]);
}

void rule_route(struct partitioner *c, struct instruction *i)
{
    ls_value logits = i->in[0] = require_replicated(c, i->in[0], LS_AXIS_TP);

    align_weight(c, i, 1, logits, LS_AXIS_CP);
    align_weight(c, i, 1, logits, LS_AXIS_TP);
    if (!program_ok(c->p)) return;
    struct routing *r = routing_new(c, i->out[1]);
    if (!r) return;
    r->capacity = i->attr.route.capacity;
    if (i->attr.route.capacity && value_is_sharded(c, logits, LS_AXIS_CP)) {
        route_whole_samples(c, i);
        return;
    }
    for (int k = 0; k < 2; k++) place_as_logits(c, i->out[k], logits);
    emit_local(c, i);
}

/* Loads count this rank's tokens. */
void rule_route_load(struct partitioner *c, struct instruction *i)
{
    no_gradient(c, i->out[0]);
    if (value_is_sharded(c, i->in[0], LS_AXIS_CP)) *place_of(c, i->out[0], LS_AXIS_CP) = (ls_placement){ .kind = LS_PARTIAL };
    emit_local(c, i);
}

void rule_route_rows(struct partitioner *c, struct instruction *i)
{
    struct routing *r = routing_find(c, i->in[0]);

    if (!r) r = routing_new(c, i->in[0]); /* choices that are given, not routed: no capacity */
    if (!r) return;
    r->rows = i->out[0];
    r->counts = i->out[1];
    r->chosen = program_value(c->p, i->in[0])->size[2];
    r->experts = program_value(c->p, i->out[1])->size[1];
    place_like(c, i->out[0], i->in[0]);
    emit_local(c, i);
}

/* Partial over cp: each rank counts its tokens. A load that the data-parallel pass sums over all samples (partial over dp) includes cp. */
void rule_router_loss(struct partitioner *c, struct instruction *i)
{
    i->in[0] = require_replicated(c, i->in[0], LS_AXIS_TP);
    if (program_ok(c->p) && !value_is_partial(c, i->in[1], LS_AXIS_DP)) i->in[1] = require_replicated(c, i->in[1], LS_AXIS_CP);
    if (!program_ok(c->p)) return;
    if (value_is_sharded(c, i->in[0], LS_AXIS_CP)) *place_of(c, i->out[0], LS_AXIS_CP) = (ls_placement){ .kind = LS_PARTIAL };
    emit_local(c, i);
}

/* ---- rows ---- */

/* The largest number of tokens on a rank of ep. */
static size_t most_tokens(struct partitioner *c, ls_value rows)
{
    size_t b = program_value(c->p, rows)->size[0], t = program_value(c->p, rows)->size[1], most = 0;

    if (!value_is_sharded(c, rows, LS_AXIS_CP)) return b * t;
    struct dim_split split = dim_split_of(c, rows, LS_AXIS_CP);
    for (int r = 0; r < c->n[LS_AXIS_CP]; r++) most = MAX(most, shard_size(split.full, split.grain, split.zigzag, r, c->n[LS_AXIS_CP]));
    return b * most;
}

/* An evaluation or generation has other samples than a step, and too few for an even load. */
static double receive_factor(const struct partitioner *c) { return c->p->builder.backward ? c->d->o.receive_factor : 0; }

/* The number of different samples on the ranks of ep, in units of a micro-batch: ranks that differ in cp alone have the same ones. */
static size_t micro_batches_of_ep(const struct partitioner *c)
{
    int cp = c->n[LS_AXIS_CP], n = c->n[LS_AXIS_EP];
    int first = (ls_mesh_index(c->d->mesh, LS_GROUP_DP) * cp + c->rank[LS_AXIS_CP]) / n * n;

    return (size_t)((first + n - 1) / cp - first / cp + 1);
}

/* The number of rows that arrive at this rank for which there is room: the largest possible one, or receive_factor times an even load. */
static size_t room_for_rows(struct partitioner *c, const struct routing *r, ls_value rows)
{
    int n = c->n[LS_AXIS_EP], rank = c->rank[LS_AXIS_EP];
    size_t own = shard_begin(r->experts, 1, rank + 1, n) - shard_begin(r->experts, 1, rank, n),
           samples = program_value(c->p, rows)->size[0];
    size_t tokens = (size_t)n * most_tokens(c, rows), most = tokens * MIN(r->chosen, own);
    double even = (double)tokens * (double)r->chosen * (double)own / (double)r->experts;

    if (r->capacity) most = MIN(most, own * MIN(micro_batches_of_ep(c) * samples * r->capacity, tokens));
    return receive_factor(c) > 0 ? (size_t)fmin((double)most, ceil(receive_factor(c) * even)) : most;
}

/* The largest number of rows of this rank's tokens. */
static size_t own_rows(struct partitioner *c, const struct routing *r, ls_value rows)
{
    const struct value *v = program_value(c->p, rows);

    return program_route_rows(v->size[0], v->size[1], r->experts, r->chosen, r->capacity);
}

/* Gives y [M,C] the placement of x [B,T,C]; tokens become rows. */
static void place_as_rows(struct partitioner *c, ls_value y, ls_value x, size_t rows)
{
    for (int a = 0; a < LS_AXES; a++) place_as(c, y, x, (ls_axis)a, 0);
    value_resize(c, y, 0, rows);
}

static void shuffle(struct partitioner *c, const struct routing *r, bool back, ls_value x, ls_value y)
{
    struct shuffle s = { c->comm[LS_AXIS_EP], back, r->expected, c->d->o.overlap, receive_factor(c) };

    program_shuffle(c->p, &s, x, r->counts, r->there, y);
    shardings_grow(c);
}

void rule_rows_permute(struct partitioner *c, struct instruction *i)
{
    ls_value y = i->out[0], rows = i->in[1];
    struct routing *r = routing_of(c, rows);

    i->in[0] = require_partial_gradient(c, i->in[0], LS_AXIS_TP);
    if (distribute_over(c)) i->out[0] = value_like(c, "rows_permute", y);
    if (!program_ok(c->p)) return;
    r->expected = value_count(program_value(c->p, rows));
    r->buffer = own_rows(c, r, rows);
    place_as_rows(c, i->out[0], i->in[0], r->buffer);
    emit_local(c, i);
    if (!distribute_over(c)) return;
    r->there = program_shuffle_counts(c->p, c->comm[LS_AXIS_EP], r->counts);
    shardings_grow(c);
    if (!program_ok(c->p)) return;
    place_as_rows(c, y, i->in[0], room_for_rows(c, r, rows));
    shuffle(c, r, false, i->out[0], y);
}

void rule_rows_unpermute(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_TP;
    bool partial = value_is_partial(c, i->in[0], a);
    ls_value x = i->out[0], rows = i->in[1], home;
    struct routing *r = routing_of(c, rows);

    if (distribute_over(c)) {
        home = value_like(c, "rows_home", i->in[0]);
        if (!program_ok(c->p)) return;
        value_resize(c, home, 0, r->buffer);
        shuffle(c, r, true, i->in[0], home);
        i->in[0] = home;
    }
    if (partial) {
        i->in[2] = require_partial_gradient(c, i->in[2], a);
        i->out[0] = value_like(c, "rows_unpermute.part", x);
    }
    if (!program_ok(c->p)) return;
    for (int k = 0; k < LS_AXES; k++) place_as(c, i->out[0], rows, (ls_axis)k, place_of(c, rows, (ls_axis)k)->dim);
    value_resize(c, i->out[0], 1, program_value(c->p, rows)->size[1]);
    if (partial) *place_of(c, i->out[0], a) = (ls_placement){ .kind = LS_PARTIAL };
    emit_local(c, i);
    if (partial) reduce_partial(c, i->out[0], x);
}

/* ---- matmuls ---- */

void rule_grouped_linear(struct partitioner *c, struct instruction *i)
{
    ls_axis a = LS_AXIS_TP;
    ls_value x = i->in[0], w = i->in[1], y = i->out[0];
    const struct routing *r = routing_of(c, i->in[2]);

    if (!r) return;
    if (distribute_over(c)) i->in[2] = r->there;
    if (value_is_sharded_along(c, w, a, 2) && !value_is_sharded_along(c, x, a, 1))
        partition_error(c, a, x, "the experts' columns are sharded, so it must be sharded like them");
    else if (!value_is_sharded_along(c, w, a, 2) && (value_is_sharded(c, x, a) || value_is_partial(c, x, a)))
        partition_error(c, a, x, "the experts' columns are not sharded");
    align_weight(c, i, 1, x, LS_AXIS_CP);
    if (!program_ok(c->p)) return;
    place_as_rows(c, y, x, program_value(c->p, x)->size[0]);
    value_resize(c, y, 1, program_value(c->p, w)->size[1]);
    if (value_is_sharded_along(c, w, a, 1)) {
        *place_of(c, y, a) = (ls_placement){ .kind = LS_SHARD, .dim = 1, .grain = place_of(c, w, a)->grain };
        sharding_of(c, y)->full[a] = sharding_of(c, w)->full[a];
    } else if (value_is_sharded_along(c, w, a, 2)) {
        *place_of(c, y, a) = (ls_placement){ .kind = LS_PARTIAL };
    }
    i->attr.grouped.filled = (double)r->expected / (double)MAX(program_value(c->p, x)->size[0], 1);
    emit_local(c, i);
}
