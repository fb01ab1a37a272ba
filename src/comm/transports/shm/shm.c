/* shm.c - the shared-memory transport: processes of one machine. shm.h and shm_link.h describe the memory layout. */
#include <limits.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cores.h"
#include "base/mem.h"
#include "comm/transports/shm/shm_link.h"

/* "fd:N": the descriptor that the launcher passed on. Ours is a copy; programs that we start inherit neither. */
static ls_status attach_inherited(const char *text, struct region **out)
{
    char *end;

    errno = 0;
    long fd = strtol(text, &end, 10);
    if (end == text || *end || errno || fd < 0 || fd > INT_MAX)
        return ls_fail(LS_EINVAL, "shm:fd:%s: expected the number of a descriptor after fd:", text);
    int copy = fcntl((int)fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) return ls_fail(LS_EINVAL, "shm:fd:%ld: no such open descriptor", fd);
    fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    return region_attach(copy, out);
}

static void link_free(struct link *l)
{
    mem_free(l->member);
    mem_free(l->out);
    mem_free(l->in);
    mem_free(l->from);
    mem_free(l->into);
    mem_free(l->term);
    mem_free(l);
}

/* Bytes of the largest cache; if unknown, the least that server processors have had. */
static size_t largest_cache(void)
{
    enum { LEVELS = 4, UNKNOWN = 8 << 20 };
    size_t most = 0;

    for (int level = 1; level <= LEVELS; level++) most = MAX(most, cores_cache(level));
    return most ? most : UNKNOWN;
}

/* Makes a link of the members, whose area is not open yet. NULL with the message set. */
static struct link *link_new(struct region *s, int n, const int *member, int me, uint64_t group)
{
    struct link *l = mem_zalloc(MEM_OTHER, sizeof *l);
    size_t count = (size_t)n;

    if (!l) return NULL;
    l->base = (struct link_base){
        .transport = &transport_shm, .rank = me, .n = n, .group = group, .world_n = s->control->n, .eager = ring_eager(n)
    };
    l->region = s;
    l->keeps = largest_cache() / 2 / (size_t)s->control->n; /* the other half: what the ranks compute with */
    l->member = mem_array(MEM_OTHER, count, sizeof *l->member);
    l->out = mem_array(MEM_OTHER, count * CHANNELS, sizeof *l->out);
    l->in = mem_array(MEM_OTHER, count * CHANNELS, sizeof *l->in);
    l->from = mem_array(MEM_OTHER, count, sizeof *l->from);
    l->into = mem_array(MEM_OTHER, count, sizeof *l->into);
    l->term = mem_array(MEM_OTHER, count, sizeof *l->term);
    if (!l->member || !l->out || !l->in || !l->from || !l->into || !l->term) {
        link_free(l);
        return NULL;
    }
    for (int i = 0; i < n; i++) l->member[i] = member ? member[i] : i;
    l->base.member = l->member;
    return l;
}

static ls_status link_open(struct region *s, int n, const int *member, int me, uint64_t group, double deadline, struct link **out)
{
    struct link *l = link_new(s, n, member, me, group);

    if (!l) return LS_ENOMEM;
    ls_status st = area_open(l, deadline);
    if (st < 0) {
        link_free(l);
        return st;
    }
    ring_open(l);
    s->users++;
    *out = l;
    return LS_OK;
}

static ls_status shm_open_link(const char *rest, int rank, int n, double timeout, struct link **out)
{
    double deadline = base_now() + timeout;
    struct region *s;

    if (n < 1 || n > SHM_RANKS_MOST || rank < 0 || rank >= n)
        return ls_fail(LS_EINVAL, "shm: rank %d of %d; 1 to %d ranks are possible, numbered from 0", rank, n, SHM_RANKS_MOST);
    if (strncmp(rest, "fd:", 3) == 0)
        LS_TRY(attach_inherited(rest + 3, &s));
    else
        LS_TRY(region_rendezvous(rest, rank, n, deadline, &s));

    s->timeout = timeout;
    ls_status st = region_join(s, rank, n, deadline);
    if (st < 0) goto close_region;
    if ((st = link_open(s, n, NULL, rank, s->round, deadline, out)) < 0) goto leave;
    snprintf((*out)->base.name, sizeof(*out)->base.name, "world");
    return LS_OK;

leave:
    region_leave(s);
close_region:
    region_close(&s);
    return st;
}

static ls_status shm_split(struct link *parent, int n, const int *members, int me, uint64_t group, struct link **out)
{
    int *ranks = mem_array(MEM_OTHER, (size_t)n, sizeof *ranks);

    if (!ranks) return LS_ENOMEM;
    for (int i = 0; i < n; i++) ranks[i] = parent->member[members[i]];
    ls_status st = link_open(parent->region, n, ranks, me, group, base_now() + parent->region->timeout, out);
    mem_free(ranks);
    return st;
}

static void shm_close(struct link **l)
{
    if (!l || !*l) return;

    struct link *old = *l;
    struct region *s = old->region;
    *l = NULL;
    area_close(old);
    link_free(old);
    if (--s->users > 0) return;
    region_leave(s);
    region_close(&s);
}

static ls_status shm_idle(struct link *l, double seconds) { return wait_idle(l->region, seconds); }

static ls_status shm_failed(struct link *l) { return region_ended(l->region); }

static void shm_fail(struct link *l, ls_status st, const char *message) { region_end(l->region, st, message); }

static void shm_wake(struct link *l) { wait_ring_self(l->region); }

static void *shm_alloc(struct link *l, size_t bytes) { return heap_alloc(l->region, bytes, true); }

static void shm_free(struct link *l, void *p)
{
    if (p) heap_free(l->region, p);
}

static void shm_note(struct link *l, const struct call_record *r)
{
    struct cell *c = &l->region->cell[l->region->rank];
    uint32_t turn = atomic_load_explicit(&c->turn, memory_order_relaxed);

    atomic_store_explicit(&c->turn, turn + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    c->record = *r;
    atomic_store_explicit(&c->turn, turn + 2, memory_order_release);
}

static ls_status shm_peek(struct link *l, int rank, struct call_record *out)
{
    const struct cell *c = &l->region->cell[rank];

    for (int tries = 0; tries < 100; tries++) {
        uint32_t turn = atomic_load_explicit(&c->turn, memory_order_acquire);
        struct call_record r = c->record;
        atomic_thread_fence(memory_order_acquire);
        if (turn % 2 || turn != atomic_load_explicit(&c->turn, memory_order_relaxed)) continue;
        *out = r;
        return LS_OK;
    }
    return LS_BUSY; /* stopped while it wrote */
}

static ls_status shm_see(struct link *l, int rank, struct board_seen *out)
{
    board_copy(&l->region->cell[rank].board, out);
    return LS_OK;
}

static struct board *shm_board(struct link *l) { return &l->region->cell[l->region->rank].board; }

static int shm_here(struct link *l) { return l->region->control->n; }

static enum process_doing shm_doing(struct link *l, int rank) { return rank_doing(l->region, rank); }

const struct transport transport_shm = {
    .name = "shm",
    .yield_seconds = 20e-6,
    .open = shm_open_link,
    .split = shm_split,
    .close = shm_close,
    .start = ring_start,
    .poll = ring_poll,
    .begin = shm_collective_begin,
    .advance = shm_collective_advance,
    .alloc = shm_alloc,
    .free = shm_free,
    .idle = shm_idle,
    .peek = shm_peek,
    .see = shm_see,
    .doing = shm_doing,
    .here = shm_here,
    .board = shm_board,
    .fail = shm_fail,
    .failed = shm_failed,
    .note = shm_note,
    .wake = shm_wake,
};
