/* mesh.c - a grid of ranks: every group is a digit of the rank number.
 *
 * rank = ((pp * DP + dp) * CP + cp) * TP + tp is a number of mixed radix, and each group except one is a contiguous run of its digits: the
 * `size` ranks first, first + stride, .., of which this rank is number (rank / stride) % size. Groups within dp x cp (a copy, its
 * replicas, experts) split that digit further. The exception is LS_GROUP_ENDS, the first and the last stage.
 *
 * Comms: the world is borrowed. Among the groups over which gradients are summed (DATA, SHARD, REPLICAS, DP, EXPERT_DATA, EXPERT_SHARD)
 * those with the same ranks share a comm, and use the world's if they contain all ranks, so a purely data-parallel mesh splits nothing.
 * PP, PP_BACK, CP, TP, EP and ENDS have comms of their own, so that the traffic of each axis is counted separately. Every rank makes the
 * same splits in the same order.
 */
#include "parallel/mesh/mesh.h"

#include <stdint.h>
#include "base/base.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "parallel/layout.h"

struct ls_mesh {
    ls_mesh_shape shape;
    int rank;
    ls_comm *comm[LS_GROUPS]; /* NULL: the group has one rank */
    bool own[LS_GROUPS];      /* closed with the mesh */
};

static const ls_mesh_shape alone = { 1, 1, 1, 1, 1, 1 };

/* ---- groups as digits ---- */

struct mesh_position mesh_position_of(const ls_mesh_shape *m, ls_group g, int rank)
{
    int data = m->dp * m->cp, copy = data / m->replicate, stage = data * m->tp, pp = rank / stage;
    struct mesh_position s = { .stride = 1, .size = 1 };

    switch (g) {
    case LS_GROUP_WORLD: s.size = m->pp * stage; break;
    case LS_GROUP_PP:
    case LS_GROUP_PP_BACK: s.stride = stage, s.size = m->pp; break;
    case LS_GROUP_DP: s.stride = m->cp * m->tp, s.size = m->dp; break;
    case LS_GROUP_CP: s.stride = m->tp, s.size = m->cp; break;
    case LS_GROUP_TP: s.size = m->tp; break;
    case LS_GROUP_EP: s.stride = m->tp, s.size = m->ep; break;
    case LS_GROUP_DATA: s.stride = m->tp, s.size = data; break;
    case LS_GROUP_SHARD: s.stride = m->tp, s.size = copy; break;
    case LS_GROUP_REPLICAS: s.stride = copy * m->tp, s.size = m->replicate; break;
    case LS_GROUP_EXPERT_DATA: s.stride = m->ep * m->tp, s.size = data / m->ep; break;
    case LS_GROUP_EXPERT_SHARD: s.stride = m->ep * m->tp, s.size = copy / m->ep; break;
    case LS_GROUP_ENDS:
        if (m->pp > 1 && (pp == 0 || pp == m->pp - 1))
            return (struct mesh_position){ .first = rank % stage, .stride = (m->pp - 1) * stage, .size = 2, .index = pp > 0 };
        break;
    case LS_GROUPS: break;
    }
    s.index = rank / s.stride % s.size;
    s.first = rank - s.index * s.stride;
    return s;
}

const char *ls_group_name(ls_group g)
{
    static const char *const names[LS_GROUPS] = { "world", "pp",    "pp_back",  "dp",          "cp",           "tp",  "ep",
                                                  "data",  "shard", "replicas", "expert_data", "expert_shard", "ends" };

    return g < LS_GROUPS ? names[g] : "?";
}

void ls_mesh_place(const ls_mesh_shape *shape, int rank, int place[5])
{
    static const ls_group axis[5] = { LS_GROUP_PP, LS_GROUP_DP, LS_GROUP_CP, LS_GROUP_TP, LS_GROUP_EP };

    for (int i = 0; i < 5; i++) place[i] = mesh_position_of(shape, axis[i], rank).index;
}

/* ---- checking ---- */

ls_status ls_mesh_check(ls_mesh_shape *shape, int ranks)
{
    ls_layout l = layout_of_mesh(shape);

    if (shape->dp == -1) l.dp = 1;
    LS_TRY(layout_check_axes(&l));
    if (ranks < 1) return ls_fail(LS_EINVAL, "mesh: %d ranks; use at least 1", ranks);
    if (shape->dp == -1) l.dp = MAX(ranks / (int)ls_layout_ranks(&l), 1);
    LS_TRY(layout_check_ranks(&l, ranks));
    LS_TRY(layout_check_axes(&l));
    LS_TRY(layout_check_groups(&l));
    shape->dp = l.dp;
    return LS_OK;
}

/* ---- comms ---- */

static bool summed(ls_group g)
{
    return g == LS_GROUP_WORLD || g == LS_GROUP_DP || g == LS_GROUP_DATA || g == LS_GROUP_SHARD || g == LS_GROUP_REPLICAS ||
           g == LS_GROUP_EXPERT_DATA || g == LS_GROUP_EXPERT_SHARD;
}

/* Finds an existing comm of the same ranks. */
static ls_comm *shared(const ls_mesh *m, ls_group g)
{
    struct mesh_position s = mesh_position_of(&m->shape, g, m->rank);

    for (int k = 0; k < LS_GROUPS; k++) {
        struct mesh_position t = mesh_position_of(&m->shape, (ls_group)k, m->rank);

        if (m->comm[k] && summed((ls_group)k) && s.size == t.size && s.stride == t.stride) return m->comm[k];
    }
    return NULL;
}

static ls_status group_open(ls_mesh *m, ls_group g)
{
    struct mesh_position s = mesh_position_of(&m->shape, g, m->rank);

    if (summed(g) && (m->comm[g] = shared(m, g))) return LS_OK;
    LS_TRY(comm_split_regular(m->comm[LS_GROUP_WORLD], s.first, s.stride, s.size, &m->comm[g]));
    if (m->comm[g]) comm_name(m->comm[g], ls_group_name(g));
    m->own[g] = m->comm[g] != NULL;
    return LS_OK;
}

/* The widest sums first: groups that equal one of them share its comm. native: what the device's own library carries, and for each of its
 * groups the weight of its share of the device's processors. Over pp go messages alone: activations to the next stage, their gradients to
 * the one before; over cp keys and values go to the next of a ring, unless heads are exchanged; over ep rows of experts are exchanged. Only
 * the norm, a few numbers per step, is summed over the world. */
static const struct {
    ls_group group;
    struct native_spec native;
} mesh_order[] = {
    { LS_GROUP_DATA, { .collectives = true, .share = 4 } },
    { LS_GROUP_SHARD, { .collectives = true, .share = 4 } },
    { LS_GROUP_REPLICAS, { .collectives = true, .share = 4 } },
    { LS_GROUP_DP, { .collectives = true, .share = 4 } },
    { LS_GROUP_EXPERT_DATA, { .collectives = true, .share = 4 } },
    { LS_GROUP_EXPERT_SHARD, { .collectives = true, .share = 4 } },
    { LS_GROUP_EP, { .exchanges = true, .share = 4 } },
    { LS_GROUP_CP, { .collectives = true, .step = 1, .share = 2 } },
    { LS_GROUP_TP, { .collectives = true, .share = 4 } },
    { LS_GROUP_PP, { .step = 1, .share = 2 } },
    { LS_GROUP_PP_BACK, { .step = -1, .share = 2 } },
    { LS_GROUP_ENDS, { .collectives = true, .share = 2 } },
    { LS_GROUP_WORLD, { .collectives = true, .share = 1 } },
};

/* Rank 0 is in a group of ENDS if any rank is. */
static int group_largest(const ls_mesh *m, ls_group g) { return mesh_position_of(&m->shape, g, 0).size; }

ls_status ls_mesh_open(ls_comm *world, const ls_mesh_shape *shape, ls_mesh **out)
{
    ls_mesh_shape whole = *shape;
    ls_status st = LS_OK;
    ls_mesh *m;

    LS_TRY(ls_mesh_check(&whole, world ? ls_comm_size(world) : 1));
    if (!(m = mem_zalloc(MEM_OTHER, sizeof *m))) return LS_ENOMEM;
    m->shape = whole;
    m->rank = world ? ls_comm_rank(world) : 0;
    if (world && ls_comm_size(world) > 1) m->comm[LS_GROUP_WORLD] = world;
    for (size_t i = 0; i < COUNT_OF(mesh_order) && st >= 0; i++)
        if (group_largest(m, mesh_order[i].group) > 1) st = group_open(m, mesh_order[i].group);
    if (st < 0)
        ls_mesh_close(&m);
    else
        *out = m;
    return st;
}

/* True if the groups of number i of mesh_order have a comm that no earlier one has. */
static bool native_first(const ls_mesh *m, size_t i)
{
    const ls_comm *c = m->comm[mesh_order[i].group];

    for (size_t k = 0; c && k < i; k++)
        if (m->comm[mesh_order[k].group] == c) return false;
    return true;
}

static struct native_spec native_spec_of(size_t i, bool cp_exchanges)
{
    bool exchanges = mesh_order[i].group == LS_GROUP_CP && cp_exchanges;

    return exchanges ? (struct native_spec){ .exchanges = true, .share = mesh_order[i].native.share } : mesh_order[i].native;
}

/* The sum of the weights of all groups of the device's library that a rank opens, as if it were in all of them: the same on all ranks. */
static int native_shares(const ls_mesh *m, bool cp_exchanges)
{
    int sum = 0;

    for (size_t i = 0; i < COUNT_OF(mesh_order); i++) {
        struct native_spec s = native_spec_of(i, cp_exchanges);

        if (group_largest(m, mesh_order[i].group) > 1 && native_first(m, i))
            sum += s.share * ((s.collectives || s.exchanges) + 2 * (s.step != 0));
    }
    return sum;
}

ls_status mesh_open_native(ls_mesh *m, const struct device *d, const struct device_collectives *by, bool cp_exchanges)
{
    int shares = native_shares(m, cp_exchanges);

    for (size_t i = 0; i < COUNT_OF(mesh_order); i++) {
        struct native_spec s = native_spec_of(i, cp_exchanges);

        s.shares = shares;
        if (m->comm[mesh_order[i].group]) LS_TRY(comm_open_native(m->comm[mesh_order[i].group], d, by, &s));
    }
    return LS_OK;
}

void ls_mesh_close(ls_mesh **m)
{
    if (!m || !*m) return;
    for (int g = LS_GROUPS; g-- > 0;)
        if ((*m)->own[g]) ls_comm_close(&(*m)->comm[g]);
    mem_free(*m);
    *m = NULL;
}

ls_mesh_shape ls_mesh_get_shape(const ls_mesh *m) { return m ? m->shape : alone; }
ls_comm *ls_mesh_comm(const ls_mesh *m, ls_group g) { return m ? m->comm[g] : NULL; }
int ls_mesh_size(const ls_mesh *m, ls_group g) { return m ? mesh_position_of(&m->shape, g, m->rank).size : 1; }
int ls_mesh_index(const ls_mesh *m, ls_group g) { return m ? mesh_position_of(&m->shape, g, m->rank).index : 0; }
