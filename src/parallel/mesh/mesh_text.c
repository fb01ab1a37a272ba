/* mesh_text.c - a mesh as text: the equation, its axes, the ranks of every group. */
#include "parallel/mesh/mesh.h"

#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"

enum { LISTED_RANKS = 8, LISTED_GROUPS = 16 };

/* The number of ranks; 0: too many for an int. */
static int ranks_of(const ls_mesh_shape *m)
{
    int n = m->pp;
    bool over = __builtin_mul_overflow(n, m->dp, &n) || __builtin_mul_overflow(n, m->cp, &n) || __builtin_mul_overflow(n, m->tp, &n);

    return over ? 0 : n;
}

/* "0-7", "0,2,4", "0,4,..,60". */
static void put_group(struct text *t, struct mesh_position s)
{
    int last = s.first + (s.size - 1) * s.stride;

    if (s.size == 1)
        text_put(t, "%d", s.first);
    else if (s.stride == 1 && s.size > 2)
        text_put(t, "%d-%d", s.first, last);
    else if (s.size > LISTED_RANKS)
        text_put(t, "%d,%d,..,%d", s.first, s.first + s.stride, last);
    else
        for (int k = 0; k < s.size; k++) text_put(t, "%s%d", k ? "," : "", s.first + k * s.stride);
}

/* True if some ranks of the group are on different machines of `local` ranks each. */
static bool crosses(const ls_mesh_shape *m, ls_group g, int local)
{
    for (int r = 0; r < ranks_of(m); r++) {
        struct mesh_position s = mesh_position_of(m, g, r);

        if (s.first / local != (s.first + (s.size - 1) * s.stride) / local) return true;
    }
    return false;
}

struct mesh_row {
    ls_group group;
    const char *says;
};

static const struct mesh_row axes[] = {
    { LS_GROUP_PP, "blocks of the model" }, { LS_GROUP_DP, "samples" }, { LS_GROUP_CP, "tokens of the same samples" },
    { LS_GROUP_TP, "parts of each layer" }, { LS_GROUP_EP, "experts" },
};

static const struct mesh_row groups[] = {
    { LS_GROUP_DATA, "dp x cp: sums of gradients" },    { LS_GROUP_SHARD, "one copy of what zero shards" },
    { LS_GROUP_REPLICAS, "copies of one shard" },       { LS_GROUP_EXPERT_DATA, "sums of experts' gradients" },
    { LS_GROUP_EXPERT_SHARD, "one copy of an expert" }, { LS_GROUP_ENDS, "first and last stage" },
};

static void put_axis(struct text *t, const ls_mesh_shape *m, const struct mesh_row *row, int local)
{
    struct mesh_position s = mesh_position_of(m, row->group, 0);

    text_put(t, "  %-13s%5d%8d   ", ls_group_name(row->group), s.size, s.stride);
    if (local) text_put(t, "%-22s", s.size == 1 ? "-" : crosses(m, row->group, local) ? "across machines" : "within a machine");
    text_put(t, "%s\n", row->says);
}

/* An earlier axis or group with the same ranks; LS_GROUPS: none. */
static ls_group like(const ls_mesh_shape *m, ls_group g)
{
    struct mesh_position s = mesh_position_of(m, g, 0);

    for (size_t i = 0; i < COUNT_OF(axes) + COUNT_OF(groups); i++) {
        ls_group other = i < COUNT_OF(axes) ? axes[i].group : groups[i - COUNT_OF(axes)].group;
        struct mesh_position o = mesh_position_of(m, other, 0);

        if (other == g) break;
        if (o.size == s.size && o.stride == s.stride) return other;
    }
    return LS_GROUPS;
}

/* Lists every group once, at its first rank. */
static void put_groups(struct text *t, const ls_mesh_shape *m, const struct mesh_row *row)
{
    int listed = 0, more = 0, ranks = ranks_of(m);
    ls_group same = like(m, row->group);

    if (mesh_position_of(m, row->group, 0).size == 1) return;
    text_put(t, "  %-13s", ls_group_name(row->group));
    if (same != LS_GROUPS) {
        text_put(t, "as %s\n", ls_group_name(same));
        return;
    }
    for (int r = 0; r < ranks; r++) {
        struct mesh_position s = mesh_position_of(m, row->group, r);

        if (s.first != r || s.size == 1) continue;
        if (listed == LISTED_GROUPS) {
            more++;
            continue;
        }
        if (listed++) text_put(t, "  ");
        put_group(t, s);
    }
    if (more) text_put(t, "  and %d more like these", more);
    text_put(t, "\n");
}

ls_status ls_mesh_text(const ls_mesh_shape *shape, int local, char **text)
{
    ls_mesh_shape m = *shape;
    struct text t = { 0 };

    LS_TRY(ls_mesh_check(&m, ranks_of(&m)));
    if (local < 0) return ls_fail(LS_EINVAL, "mesh: %d ranks per machine; use at least 1, or 0 if unknown", local);
    text_put(&t, "mesh  pp %d * dp %d * cp %d * tp %d = %d rank%s", m.pp, m.dp, m.cp, m.tp, ranks_of(&m), ranks_of(&m) == 1 ? "" : "s");
    if (m.replicate > 1) text_put(&t, "; dp = %d replicas * %d", m.replicate, m.dp / m.replicate);
    if (m.ep > 1) text_put(&t, "; ep %d inside dp x cp", m.ep);
    text_put(&t, "\n      rank = ((pp * %d + dp) * %d + cp) * %d + tp\n\n", m.dp, m.cp, m.tp);
    text_put(&t, "  %-13s%5s%8s   %s%s\n", "axis", "ranks", "stride", local ? "where                 " : "", "what its ranks divide");
    for (size_t i = 0; i < COUNT_OF(axes); i++) put_axis(&t, &m, &axes[i], local);
    text_put(&t, "\n  ranks of each group%s\n", ranks_of(&m) == 1 ? ": one rank, alone in all of them" : "");
    for (size_t i = 0; i < COUNT_OF(axes); i++) put_groups(&t, &m, &axes[i]);
    for (size_t i = 0; i < COUNT_OF(groups); i++) put_groups(&t, &m, &groups[i]);
    ls_status st = text_status(&t);
    if (st < 0)
        text_free(&t);
    else
        *text = t.data;
    return st;
}
