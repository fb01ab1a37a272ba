/* shm_link.h - one comm over the region: its area, and this process's side of it.
 *
 * The area, in the heap of the comm's first member; all parts start on a cache line:
 *     struct area
 *     seats   [n]         how many chunks of native collectives each member has done
 *     posts   [2][n]      the call that each member entered; call c in half c % 2
 *     tables  [2][n][n+1] u64, for all_to_all: the borders of what each member sends
 *     stages  [n][STAGES] of STAGE_BYTES: chunks of buffers that are in no heap
 *     rings   [from][to][channel]
 */
#ifndef LS_COMM_TRANSPORTS_SHM_SHM_LINK_H
#define LS_COMM_TRANSPORTS_SHM_SHM_LINK_H

#include "comm/transports/shm/shm.h"

enum {
    CHANNELS = 2,
    SMALL_MOST = 8192, /* bytes of a buffer that fit in a post */
    STAGE_BYTES = 128 << 10,
    STAGES = 4, /* chunks of one member in flight at once */
};

/* announced: every member's cell has had the offset; until then no member opens another link. left: members that closed it. */
struct area {
    _Atomic uint64_t announced;
    _Atomic uint32_t left;
};

/* Chunks are numbered consecutively over all calls of the link. */
struct seat {
    _Alignas(SHM_LINE) _Atomic uint64_t in; /* up to this chunk our stage was filled */
    _Atomic uint64_t sums;                  /* our part of the sums is in our stage */
    _Atomic uint64_t out;                   /* we need no more data from any rank */
};

enum offer {
    OFFER_INLINE = 1, /* the data is in the post */
    OFFER_SEND = 2,   /* the buffer is in the heap, and nothing is written there while others read it */
    OFFER_RECV = 4,
    OFFER_SWAP = 8, /* for an in-place all-to-all: its one buffer is in the heap */
};

struct post {
    _Alignas(SHM_LINE) _Atomic uint64_t call; /* written last */
    struct signature signature;
    uint32_t offers;
    _Alignas(SHM_LINE) uint64_t send, recv; /* offsets in the region */
    _Alignas(SHM_LINE) unsigned char data[SMALL_MOST];
};

/* One direction of one pair on one channel: this process's side of the ring, and the transfers that wait for it, in order. `seen` saves
 * most looks at the other side's position, whose line is in its cache. */
struct lane {
    struct ring *ring;
    uint64_t seen; /* the other side's position when it was last looked at */
    struct transfer *first, *last;
};

/* The native collective in progress. */
enum way { WAY_INLINE, WAY_DIRECT, WAY_SWAP, WAY_STAGED };
struct shm_collective {
    enum way way;
    int met;                        /* members whose post was checked */
    uint32_t offers;                /* offers (OFFER_*) that all members make */
    size_t chunk;                   /* elements of a block in one chunk */
    uint64_t chunks, in, sums, out; /* chunks of this call; chunks filled, summed and taken here */
};

struct link {
    struct link_base base;
    struct region *region;
    int *member; /* [n] ranks of the job */
    struct area *area;
    struct seat *seat; /* [n] */
    struct post *post; /* [2][n] */
    uint64_t *table;   /* [2][n][n + 1] */
    unsigned char *stage;
    struct lane *out, *in; /* [n][CHANNELS] */
    uint64_t begun, ended; /* native collectives that have begun, and that have ended */
    uint64_t chunks;       /* chunks of ended calls */
    struct shm_collective now;
    const unsigned char **from; /* [n] each member's send buffer, here */
    unsigned char **into;       /* [n] and recv buffer, where it is in a heap */
    const void **term;          /* [n] terms of one sum */
    size_t keeps;               /* bytes that each rank may read and write in a call whose data is to stay in the cache */
};

/* shm_area.c: the first member makes the area; the others find it through their cells. */
ls_status area_open(struct link *l, double deadline);
void area_close(struct link *l);
static inline struct post *area_post(const struct link *l, uint64_t call, int member)
{
    return l->post + (call % 2) * (uint64_t)l->base.n + (uint64_t)member;
}
static inline uint64_t *area_table(const struct link *l, uint64_t call, int member)
{
    size_t n = (size_t)l->base.n;

    return l->table + ((call % 2) * n + (size_t)member) * (n + 1);
}
static inline unsigned char *area_stage(const struct link *l, uint64_t chunk, int member)
{
    return l->stage + ((size_t)member * STAGES + chunk % STAGES) * STAGE_BYTES;
}
struct ring *area_ring(const struct link *l, int from, int to, int channel);

/* shm_ring.c */
struct ring;
size_t ring_bytes(int n); /* bytes of one ring of a link of n ranks, with its words */
size_t ring_eager(int n); /* struct link_base.eager */
void ring_open(struct link *l);
ls_status ring_start(struct link *l, struct transfer *t);
ls_status ring_poll(struct link *l, struct transfer *t);

/* shm_collectives.c */
ls_status shm_collective_begin(struct link *l, struct request *r);
ls_status shm_collective_advance(struct link *l, struct request *r);

#endif
