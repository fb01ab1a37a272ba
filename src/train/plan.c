/* plan.c - bytes of ranks that need not exist. */
#include "train/plan.h"

#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/text.h"
#include "checkpoint/agree.h"
#include "parallel/mesh.h"
#include "parallel/partition.h"
#include "program/store.h"

static size_t total_of(const ls_cost *c)
{
    return c->parameters + c->gradients + c->optimizer + c->activations + c->communication + c->offload;
}

/* A run holds the evaluation's activations beside the step's. */
static ls_status price(const struct config *c, const struct step *s, struct plan_bytes *out)
{
    ls_cost evaluation = { 0 };

    if (c->data.val_fraction > 0) LS_TRY(evaluation_plan(c, s, &evaluation));
    out->cost = step_cost(s);
    out->cost.activations += evaluation.activations;
    out->cost.communication += evaluation.communication;
    out->total = total_of(&out->cost);
    return LS_OK;
}

/* Elements of this rank's sharded buffers that `rank` would hold, which has the same parameters. */
static size_t share_of(const struct step *s, const ls_mesh_shape *shape, int rank)
{
    const ls_comm *experts = ls_mesh_comm(s->ranks.mesh, LS_GROUP_EXPERT_SHARD);
    size_t sum = 0;

    for (int g = 0; g < store_groups(s->store); g++) {
        const struct store_group *group = store_group_at(s->store, g);
        struct mesh_seat seat = mesh_seat_of(shape, group->comm == experts ? LS_GROUP_EXPERT_SHARD : LS_GROUP_SHARD, rank);

        if (group->sharded) sum += part_size(group->total, 1, 0, seat.index, seat.size);
    }
    return sum;
}

/* Of the ranks that differ from `rank` in their samples alone, the one with the largest shares. */
static int largest_share(const struct config *c, const struct step *s, int rank)
{
    ls_mesh_shape m = config_mesh(c);
    struct mesh_seat dp = mesh_seat_of(&m, LS_GROUP_DP, rank);
    int expert = mesh_seat_of(&m, LS_GROUP_EP, rank).index, best = rank;
    size_t most = share_of(s, &m, rank);

    for (int d = 0; d < dp.size; d++) {
        int other = dp.first + d * dp.stride;
        size_t share = mesh_seat_of(&m, LS_GROUP_EP, other).index == expert ? share_of(s, &m, other) : 0;

        if (share <= most) continue;
        most = share;
        best = other;
    }
    return best;
}

/* What saving a checkpoint takes for a moment: a chunk of a parameter, and the file's buffer. */
static size_t saving_bytes(const struct step *s)
{
    enum { CHUNK = 4 << 20, BUFFER = 256 << 10 };
    size_t most = 0;

    for (size_t i = 0; i < ls_store_count(s->store); i++) most = MAX(most, store_local_count(s->store, i) * sizeof(float));
    return BUFFER + MIN((size_t)CHUNK, most);
}

/* better: NULL, or the rank that it is to be compared with. */
static ls_status plan_rank(const struct config *c, const ls_model *model, int rank, struct plan_bytes *out, int *better)
{
    enum { TOKEN_COPIES = 4, TOKEN_BYTES = 8 };  /* of the step, of evaluation, and two that the loader has ready; token and target */
    size_t saving = 0;
    struct plan_bytes found = { .rank = rank };
    struct mem_stats before, after;
    struct ranks ranks;
    struct step s;

    pulse();
    mem_reset_peak();
    mem_read(&before);
    LS_TRY(ranks_plan(c, rank, &ranks));
    ls_status st = step_open(c, model, &ranks, true, &s);
    if (st == LS_OK) {
        st = price(c, &s, &found);
        if (better) *better = largest_share(c, &s, rank);
        saving = saving_bytes(&s);
        step_close(&s);
    }
    ranks_close(&ranks);
    mem_read(&after);
    found.other = saving + after.peak[MEM_OTHER] - before.now[MEM_OTHER] +
                  TOKEN_COPIES * TOKEN_BYTES * (size_t)c->train.accumulate * (size_t)c->train.micro_batch * (size_t)c->data.seq_len;
    if (st == LS_OK) *out = found;
    return st;
}

ls_status plan_of_rank(const struct config *c, const ls_model *model, int rank, struct plan_bytes *out)
{
    return plan_rank(c, model, rank, out, NULL);
}

/* ---- the largest ---- */

enum { PLACES = 10, PLACES_CP = 8 };

/* Places along an axis of n ranks that may hold the most, in ascending order; returns how many. */
static int places_of(int n, int out[PLACES])
{
    out[0] = 0;
    out[1] = n - 1;
    return n > 1 ? 2 : 1;
}

/* Of cp the first ones, each of which sends and receives in another order, and the one with the longest part of the sequence. */
static int places_of_cp(const struct config *c, int out[PLACES])
{
    int n = (int)c->parallel.cp, best = 0, count = 0;
    bool ring = n > 1 && c->parallel.context == LS_CONTEXT_RING;
    size_t T = (size_t)c->data.seq_len;

    for (int r = 1; r < n; r++)
        if (part_size(T, 1, ring, r, n) > part_size(T, 1, ring, best, n)) best = r;
    for (int r = 0; r < n; r++)
        if (r < PLACES_CP || r == best || r == n - 1) out[count++] = r;
    return count;
}

ls_status plan_of_largest(const struct config *c, const ls_model *model, struct plan_bytes *out, int *compiled)
{
    ls_mesh_shape m = config_mesh(c);
    int dp[PLACES], cp[PLACES], tp[PLACES], looked = 0;
    int ndp = places_of(m.dp, dp), ncp = places_of_cp(c, cp), ntp = places_of(m.tp, tp);
    struct plan_bytes best = { .rank = -1 }, one;

    for (int k = 0; k < m.pp * ndp * ncp * ntp; k++) {  /* in ascending order of ranks */
        int t = k % ntp, s = k / ntp % ncp, d = k / ntp / ncp % ndp, p = k / ntp / ncp / ndp, better;
        int rank = ((p * m.dp + dp[d]) * m.cp + cp[s]) * m.tp + tp[t];

        LS_TRY(plan_rank(c, model, rank, &one, &better));
        if (best.rank < 0 || one.total > best.total) best = one;
        looked++;
        if (better == rank) continue;
        LS_TRY(plan_rank(c, model, better, &one, NULL));
        if (one.total > best.total) best = one;
        looked++;
    }
    *out = best;
    if (compiled) *compiled = looked;
    return LS_OK;
}

/* ---- before a run ---- */

static const char *largest_part(const ls_cost *c, size_t *bytes)
{
    const struct { const char *name; size_t bytes; } part[] = {
        { "parameters", c->parameters }, { "gradients", c->gradients }, { "optimizer", c->optimizer }, { "activations", c->activations },
        { "communication", c->communication }, { "offload", c->offload },
    };
    size_t most = 0;

    for (size_t i = 1; i < COUNT_OF(part); i++)
        if (part[i].bytes > part[most].bytes) most = i;
    *bytes = part[most].bytes;
    return part[most].name;
}

static void put_remedies(const struct config *c, const ls_model *model, size_t limit, struct text *out)
{
    struct remedy remedy[REMEDIES];
    char size[16];
    int n = 0;

    if (plan_remedies(c, model, limit, remedy, &n) < 0 || n == 0) {
        text_put(out, "; nothing that was tried fits: give it more machines, or a smaller model");
        return;
    }
    text_put(out, "; what fits: ");
    for (int i = 0; i < n; i++) text_put(out, "%s%s (%s)", i ? ", or " : "", remedy[i].options, text_bytes(size, remedy[i].total));
}

static ls_status fail_memory(const struct config *c, const ls_model *model, const struct plan_bytes *own, size_t held, size_t limit)
{
    char need[16], have[16], room[16], part[16];
    struct text remedies = { 0 };
    size_t most;
    const char *name = largest_part(&own->cost, &most);

    put_remedies(c, model, limit > held ? limit - held : 0, &remedies);
    ls_fail(LS_ENOMEM, "out of memory: the step needs %s beside %s held, limit %s (%s); most is in %s: %s%s", text_bytes(need, own->total),
            text_bytes(have, held), text_bytes(room, limit), c->run.memory_limit ? "run.memory_limit" : "a rank's share of what is free",
            name, text_bytes(part, most), remedies.data ? remedies.data : "");
    text_free(&remedies);
    return LS_ENOMEM;
}

/* The rank with the largest excess tells it, the lowest of several; the others wait until it has. */
ls_status plan_check_memory(const struct config *c, const ls_model *model, const struct ranks *ranks)
{
    struct plan_bytes own = { 0 };
    struct mem_stats now;
    size_t limit = mem_limit();

    LS_TRY(agree(ranks->comm, plan_of_rank(c, model, ranks->rank, &own)));
    mem_read(&now);
    double over = limit ? (double)own.total + (double)now.total_now - (double)limit : 0, most = over, first;
    LS_TRY(ranks_most(ranks, &most, 1));
    if (most <= 0) return LS_OK;
    first = over == most ? ranks->size - ranks->rank : 0;
    LS_TRY(ranks_most(ranks, &first, 1));
    int teller = ranks->size - (int)first;
    bool tells = teller == ranks->rank;
    ls_status st = agree(ranks->comm, tells ? fail_memory(c, model, &own, now.total_now, limit) : LS_OK);
    return tells || st != LS_ENOMEM ? st : ls_fail(st, "stopped by rank %d, which says why", teller);
}
