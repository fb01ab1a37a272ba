/* sim_groups.c - see sim_groups.h.
 *
 * Classes by refinement: ranks begin with a color of their stage, speed and slowed groups, and get new colors from their own and those of
 * the ranks that they communicate with, until the number of colors no longer grows. Two ranks of one color then communicate with as many
 * ranks of each other color. Colors are 64-bit hashes.
 */
#include "train/plan/sim_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static uint64_t mixed_real(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return mixed(bits);
}

/* ---- paths between pods ---- */

/* The flows that a kind of group sends out of pods: flow f leaves pod `pod` by the adapters at place `plane` of their nodes. */
struct flows {
    const struct sim_division *d;
    ls_group g;
    int planes, pods, ranks;
    int *load; /* [pods][planes][paths] */
};

static int *load_of(const struct flows *f, int rank, int pod)
{
    int plane = rank % f->planes, paths = f->d->cluster->paths;
    char name[64];

    snprintf(name, sizeof name, "paths.%s", ls_group_name(f->g));
    uint64_t stream = rng_stream(name);
    int path = (int)(rng_uniform(f->d->seed, stream, (uint64_t)rank) * paths);
    return &f->load[((size_t)pod * (size_t)f->planes + (size_t)plane) * (size_t)paths + (size_t)path];
}

/* The last rank of each pod that a group spans: the group's ring leaves the pod there, on as many planes as it has ranks in the node. */
static bool leaves_pod(const struct flows *f, const struct mesh_position *at, int rank)
{
    int in_pod = f->d->cluster->pod * f->planes, next = rank + at->stride, last = at->first + (at->size - 1) * at->stride;

    if (next > last) next = at->first;
    if (at->stride >= f->planes) return rank / in_pod != next / in_pod;
    /* several ranks per node: all ranks of the pod's last node send, each by its own adapter */
    int past = (rank / f->planes + 1) * f->planes;
    if (past > last) past = at->first;
    return rank / in_pod != past / in_pod;
}

/* The factor by which the flow of a rank takes longer than planned. */
static double flow_slowed(const struct flows *f, const struct mesh_position *at, int rank)
{
    const struct cluster *c = f->d->cluster;
    struct seconds_group group = seconds_group_of(c, at);
    double k = (double)group.ranks / group.nodes, planned = MIN(c->network.bandwidth, group.ranks / k / group.pods * c->spine.bandwidth);
    double path = c->pod * c->spine.bandwidth / c->paths / *load_of(f, rank, rank / (c->pod * f->planes));

    return MAX(1, planned / MIN(c->network.bandwidth, path));
}

static ls_status slow_groups(const struct sim_division *d, ls_group g, int ranks, double *slowed)
{
    struct flows f = { .d = d, .g = g, .planes = d->cluster->processors, .ranks = ranks };

    f.pods = (ranks - 1) / (d->cluster->pod * f.planes) + 1;
    f.load = mem_array(MEM_OTHER, (size_t)f.pods * (size_t)f.planes * (size_t)d->cluster->paths, sizeof *f.load);
    if (!f.load) return LS_ENOMEM;
    for (int pass = 0; pass < 2; pass++)
        for (int r = 0; r < ranks; r++) {
            struct mesh_position at = mesh_position_of(&d->shape, g, r);

            if (at.size < 2 || !leaves_pod(&f, &at, r)) continue;
            if (pass == 0)
                ++*load_of(&f, r, r / (d->cluster->pod * f.planes));
            else
                slowed[at.first] = MAX(slowed[at.first], flow_slowed(&f, &at, r));
        }
    mem_free(f.load);
    return LS_OK;
}

/* ---- colors ---- */

struct colors {
    const struct sim_division *d;
    int ranks, per_stage;
    uint64_t *own, *next, *sorted, *sum; /* [ranks]; sum: the sum of a group's colors, at its first rank */
    double *slowed[LS_GROUPS];           /* [ranks] the factor of a group, at its first rank; NULL: no group is slowed */
};

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int colors_count(struct colors *k)
{
    int count = 0;

    memcpy(k->sorted, k->own, (size_t)k->ranks * sizeof *k->own);
    qsort(k->sorted, (size_t)k->ranks, sizeof *k->sorted, by_value);
    for (int i = 0; i < k->ranks; i++) count += i == 0 || k->sorted[i] != k->sorted[i - 1];
    return count;
}

static void colors_begin(struct colors *k, const double *seconds)
{
    for (int r = 0; r < k->ranks; r++) {
        k->own[r] = mixed((uint64_t)(r / k->per_stage)) + mixed_real(seconds[r]);
        for (int g = 0; g < LS_GROUPS; g++)
            if (k->slowed[g]) k->own[r] = mixed(k->own[r] + mixed_real(k->slowed[g][mesh_position_of(&k->d->shape, (ls_group)g, r).first]));
        if (k->d->unfolded) k->own[r] = (uint64_t)r;
    }
}

/* Adds to every rank's new color those of its groups of one kind; along cp also that of the rank before it, whose messages it receives. */
static void colors_meet(struct colors *k, ls_group g)
{
    memset(k->sum, 0, (size_t)k->ranks * sizeof *k->sum);
    for (int r = 0; r < k->ranks; r++) k->sum[mesh_position_of(&k->d->shape, g, r).first] += mixed(k->own[r]);
    for (int r = 0; r < k->ranks; r++) {
        struct mesh_position at = mesh_position_of(&k->d->shape, g, r);
        int before = at.first + (at.index + at.size - 1) % at.size * at.stride;

        k->next[r] = mixed(k->next[r] + k->sum[at.first] + (uint64_t)g);
        if (g == LS_GROUP_CP) k->next[r] = mixed(k->next[r] + k->own[before]);
    }
}

static void colors_refine(struct colors *k)
{
    int count = colors_count(k), before;

    do {
        uint64_t *swap = k->own;

        before = count;
        memcpy(k->next, k->own, (size_t)k->ranks * sizeof *k->own);
        for (int g = 0; g < LS_GROUPS; g++)
            if (k->d->used >> g & 1 && g != LS_GROUP_WORLD) colors_meet(k, (ls_group)g);
        for (int r = 0; r < k->ranks; r++) /* the other stages' ranks at the same place */
            for (int other = r % k->per_stage; other < k->ranks; other += k->per_stage) k->next[r] = mixed(k->next[r] + k->own[other]);
        k->own = k->next;
        k->next = swap;
        count = colors_count(k);
    } while (count > before);
}

/* ---- classes ---- */

struct colored {
    uint64_t color;
    int rank;
};

static int by_color(const void *a, const void *b)
{
    const struct colored *x = a, *y = b;

    if (x->color != y->color) return x->color < y->color ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Classes of a stage, numbered in the order of their first ranks. */
static ls_status stage_classes(struct sim_ranks *r, const uint64_t *color, int stage)
{
    struct sim_stage *s = &r->stage[stage];
    int first = stage * r->per_stage, n = r->per_stage;
    struct colored *list = mem_array(MEM_OTHER, (size_t)n, sizeof *list);
    int *head = mem_array(MEM_OTHER, (size_t)n, sizeof *head); /* for each rank, the first rank with its color */

    s->rank = mem_array(MEM_OTHER, (size_t)n, sizeof *s->rank);
    s->ranks = mem_array(MEM_OTHER, (size_t)n, sizeof *s->ranks);
    ls_status st = list && head && s->rank && s->ranks ? LS_OK : LS_ENOMEM;
    for (int i = 0; st == LS_OK && i < n; i++) list[i] = (struct colored){ color[first + i], i };
    if (st == LS_OK) qsort(list, (size_t)n, sizeof *list, by_color);
    for (int i = 0; st == LS_OK && i < n; i++)
        head[list[i].rank] = i > 0 && list[i].color == list[i - 1].color ? head[list[i - 1].rank] : list[i].rank;
    for (int i = 0; st == LS_OK && i < n; i++) {
        if (head[i] == i) {
            s->rank[s->classes] = first + i;
            r->class_of[first + i] = s->classes++;
        }
        r->class_of[first + i] = r->class_of[first + head[i]];
        s->ranks[r->class_of[first + i]]++;
    }
    mem_free(head);
    mem_free(list);
    return st;
}

static int stage_first(const struct sim_ranks *r, int rank) { return rank / r->per_stage * r->per_stage; }

/* Lists the classes of a group, each once. seen[class]: the last group that listed it. */
static int group_members(const struct sim_ranks *r, const struct mesh_position *at, int id, int *seen, int *out)
{
    int n = 0;

    for (int i = 0; i < at->size; i++) {
        int member = r->class_of[at->first + i * at->stride];

        if (seen[member] == id + 1) continue;
        seen[member] = id + 1;
        out[n++] = member;
    }
    return n;
}

struct group_scratch {
    int *id, *seen, *list; /* id [per_stage]: 1 + the group whose first rank it is; seen: see group_members(); list: its result */
};

/* Numbers the groups of a stage's classes, and lists their members if there is room; *members: the room needed. */
static void group_fill(const struct sim_division *d, const struct sim_ranks *r, struct sim_stage *s, ls_group g, struct group_scratch *x,
                       int *members)
{
    struct sim_group *out = &s->group[g];

    out->count = *members = 0;
    memset(x->id, 0, (size_t)r->per_stage * sizeof *x->id);
    memset(x->seen, 0, (size_t)r->per_stage * sizeof *x->seen);
    for (int c = 0; c < s->classes; c++) {
        struct mesh_position at = mesh_position_of(&d->shape, g, s->rank[c]);
        int *id = &x->id[at.first - stage_first(r, s->rank[c])];

        if (!*id) {
            int n = group_members(r, &at, out->count, x->seen, x->list);

            if (out->member) memcpy(out->member + *members, x->list, (size_t)n * sizeof *x->list);
            *members += n;
            out->begin[out->count + 1] = *members;
            out->first[out->count] = at.first;
            *id = ++out->count;
        }
        out->of[c] = *id - 1;
        out->before[c] = r->class_of[at.first + (at.index + at.size - 1) % at.size * at.stride];
    }
}

static ls_status stage_group(const struct sim_division *d, const struct sim_ranks *r, struct sim_stage *s, ls_group g, const double *slowed)
{
    struct sim_group *out = &s->group[g];
    size_t n = (size_t)s->classes, all = (size_t)r->per_stage;
    int *scratch = mem_array(MEM_OTHER, 3 * all, sizeof *scratch), members;
    struct group_scratch x = { scratch, scratch + all, scratch + 2 * all };
    ls_status st = LS_ENOMEM;

    out->most = 1;
    out->of = mem_array(MEM_OTHER, n, sizeof(int));
    out->before = mem_array(MEM_OTHER, n, sizeof(int));
    out->first = mem_array(MEM_OTHER, n, sizeof(int));
    out->begin = mem_array(MEM_OTHER, n + 1, sizeof(int));
    if (!scratch || !out->of || !out->before || !out->first || !out->begin) goto free_scratch;
    group_fill(d, r, s, g, &x, &members);
    if (!(out->member = mem_array(MEM_OTHER, (size_t)members, sizeof(int)))) goto free_scratch;
    group_fill(d, r, s, g, &x, &members);
    if (slowed && !(out->slowed = mem_array(MEM_OTHER, n, sizeof(double)))) goto free_scratch;
    for (int i = 0; slowed && i < out->count; i++) {
        out->slowed[i] = slowed[out->first[i]];
        out->most = MAX(out->most, out->slowed[i]);
    }
    st = LS_OK;
free_scratch:
    mem_free(scratch);
    return st;
}

/* ---- all ---- */

static bool within_stage(const struct sim_ranks *r, int g)
{
    if (g == LS_GROUP_PP || g == LS_GROUP_PP_BACK) return false;
    return r->stages == 1 || (g != LS_GROUP_WORLD && g != LS_GROUP_ENDS);
}

static ls_status sim_groups_divide(const struct sim_division *d, struct colors *k, struct sim_ranks *r)
{
    size_t n = (size_t)r->ranks;
    bool collides = d->collide && d->cluster->pod && d->cluster->paths;

    for (int g = 0; collides && g < LS_GROUPS; g++) {
        if (!(d->used >> g & 1) || !within_stage(r, g)) continue;
        if (!(k->slowed[g] = mem_array(MEM_OTHER, n, sizeof(double)))) return LS_ENOMEM;
        for (size_t i = 0; i < n; i++) k->slowed[g][i] = 1;
        LS_TRY(slow_groups(d, (ls_group)g, r->ranks, k->slowed[g]));
    }
    colors_begin(k, r->seconds);
    if (!d->unfolded) colors_refine(k);
    for (int s = 0; s < r->stages; s++) {
        LS_TRY(stage_classes(r, k->own, s));
        r->classes += r->stage[s].classes;
        for (int g = 0; g < LS_GROUPS; g++)
            if (d->used >> g & 1 && within_stage(r, g)) LS_TRY(stage_group(d, r, &r->stage[s], (ls_group)g, k->slowed[g]));
    }
    return LS_OK;
}

ls_status sim_ranks_divide(const struct sim_division *d, double *seconds, struct sim_ranks *out)
{
    const ls_mesh_shape *shape = &d->shape;
    int ranks = shape->pp * shape->dp * shape->cp * shape->tp;
    size_t n = (size_t)ranks;
    uint64_t *words = mem_array(MEM_OTHER, 4 * n, sizeof *words);
    struct colors k = { .d = d, .ranks = ranks, .per_stage = ranks / shape->pp };

    *out = (struct sim_ranks){ .stages = shape->pp, .ranks = ranks, .per_stage = ranks / shape->pp, .seconds = seconds };
    out->class_of = mem_array(MEM_OTHER, n, sizeof *out->class_of);
    out->stage = mem_array(MEM_OTHER, (size_t)shape->pp, sizeof *out->stage);
    ls_status st = words && out->class_of && out->stage ? LS_OK : LS_ENOMEM;
    if (st == LS_OK) {
        k.own = words, k.next = words + n, k.sorted = words + 2 * n, k.sum = words + 3 * n;
        st = sim_groups_divide(d, &k, out);
    }
    for (int g = 0; g < LS_GROUPS; g++) mem_free(k.slowed[g]);
    mem_free(words);
    if (st < 0) sim_ranks_free(out);
    return st;
}

void sim_ranks_free(struct sim_ranks *r)
{
    for (int s = 0; r->stage && s < r->stages; s++) {
        struct sim_stage *x = &r->stage[s];

        for (int g = 0; g < LS_GROUPS; g++) {
            mem_free(x->group[g].slowed);
            mem_free(x->group[g].member);
            mem_free(x->group[g].begin);
            mem_free(x->group[g].first);
            mem_free(x->group[g].before);
            mem_free(x->group[g].of);
        }
        mem_free(x->ranks);
        mem_free(x->rank);
    }
    mem_free(r->stage);
    mem_free(r->class_of);
    mem_free(r->seconds);
    *r = (struct sim_ranks){ 0 };
}
