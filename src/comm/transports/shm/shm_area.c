/* shm_area.c - the part of the region that one link's members share. */
#include "comm/transports/shm/shm_link.h"

#include <stdio.h>
#include "base/mem.h"

static size_t shm_area_round_up(size_t x, size_t to) { return (x + to - 1) / to * to; }

/* Where the parts start, in bytes from the area's start, for a link of n. */
struct layout {
    size_t seats, posts, tables, stages, rings, end;
};

static struct layout shm_area_layout_of(int members)
{
    size_t n = (size_t)members;
    struct layout at;

    at.seats = shm_area_round_up(sizeof(struct area), SHM_LINE);
    at.posts = at.seats + n * sizeof(struct seat);
    at.tables = at.posts + 2 * n * sizeof(struct post);
    at.stages = shm_area_round_up(at.tables + 2 * n * (n + 1) * sizeof(uint64_t), SHM_PAGE);
    at.rings = at.stages + n * STAGES * STAGE_BYTES;
    at.end = at.rings + n * n * CHANNELS * ring_bytes(members);
    return at;
}

static unsigned char *part(const struct link *l, size_t at) { return (unsigned char *)l->area + at; }

struct ring *area_ring(const struct link *l, int from, int to, int channel)
{
    size_t n = (size_t)l->base.n, i = ((size_t)from * n + (size_t)to) * CHANNELS + (size_t)channel;

    return (struct ring *)(void *)part(l, shm_area_layout_of(l->base.n).rings + i * ring_bytes(l->base.n));
}

/* Waits until an atomic word, of this or another rank, has the value. */
static ls_status wait_word(struct region *s, const _Atomic uint64_t *word, uint64_t want, int rank, double deadline)
{
    while (atomic_load(word) != want) {
        LS_TRY(wait_idle(s, 0.01));
        if (rank_left(s, rank)) return wait_left(s, rank);
        if (base_now() >= deadline)
            return ls_fail(LS_ETIMEOUT, "rank %d %shas not opened the comm within %g s", rank,
                           rank_doing(s, rank) == PROCESS_STOPPED ? "was stopped, and " : "", s->timeout);
    }
    wait_moved(s);
    return LS_OK;
}

/* Writes the area's offset into every other member's cell, once that is empty. */
static ls_status publish_to_members(struct link *l, double deadline)
{
    struct region *s = l->region;

    for (int i = 1; i < l->base.n; i++) {
        struct cell *c = &s->cell[l->member[i]];
        LS_TRY(wait_word(s, &c->box_group, 0, l->member[i], deadline));
        atomic_store(&c->box_at, region_offset(s, l->area));
        atomic_store(&c->box_group, l->base.group);
        wait_ring(s, l->member[i]);
    }
    atomic_store(&l->area->announced, 1);
    for (int i = 1; i < l->base.n; i++) wait_ring(s, l->member[i]);
    return LS_OK;
}

/* Frees areas of closed links that all members have left; the others stay on the list. */
static void free_gone(struct region *s)
{
    int kept = 0;

    for (int i = 0; i < s->gone_n; i++) {
        struct gone g = s->gone[i];
        if (atomic_load(&((struct area *)g.area)->left) == g.members)
            heap_free(s, g.area);
        else
            s->gone[kept++] = g;
    }
    s->gone_n = kept;
}

static ls_status make_area(struct link *l)
{
    struct region *s = l->region;
    size_t bytes = shm_area_layout_of(l->base.n).end;

    free_gone(s);
    struct gone *more = mem_resize(s->gone, (size_t)(s->gone_n + s->users + 1) * sizeof *more); /* so that closing cannot fail */
    if (!more) return LS_ENOMEM;
    s->gone = more;
    return (l->area = heap_alloc(s, bytes, false)) ? LS_OK : LS_ENOMEM;
}

static ls_status find_area(struct link *l, double deadline)
{
    struct region *s = l->region;
    struct cell *c = &s->cell[s->rank];

    LS_TRY(wait_word(s, &c->box_group, l->base.group, l->member[0], deadline));
    l->area = region_at(s, atomic_load(&c->box_at));
    atomic_store(&c->box_group, 0);
    wait_ring(s, l->member[0]);
    return wait_word(s, &l->area->announced, 1, l->member[0], deadline);
}

ls_status area_open(struct link *l, double deadline)
{
    if (l->base.rank == 0) {
        LS_TRY(make_area(l));
        ls_status st = publish_to_members(l, deadline);
        if (st < 0) return st; /* the area stays: members may use it already, and the job has ended anyway */
    } else {
        LS_TRY(find_area(l, deadline));
    }
    struct layout at = shm_area_layout_of(l->base.n);
    l->seat = (struct seat *)(void *)part(l, at.seats);
    l->post = (struct post *)(void *)part(l, at.posts);
    l->table = (uint64_t *)(void *)part(l, at.tables);
    l->stage = part(l, at.stages);
    return LS_OK;
}

void area_close(struct link *l)
{
    struct region *s = l->region;

    if (!l->area) return;
    atomic_fetch_add(&l->area->left, 1);
    if (l->base.rank == 0) s->gone[s->gone_n++] = (struct gone){ l->area, (uint32_t)l->base.n };
    free_gone(s);
}
