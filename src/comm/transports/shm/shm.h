/* shm.h - internals of the shared-memory transport: the contents of the region, and the functions that its files share.
 *
 * The region is one sparse memfd, mapped completely by every rank, at a different address in each; offsets are the same for all:
 *     0                       struct control
 *     CELLS_AT                struct cell, one a rank, the launcher's after them
 *     heap_at + r*heap_bytes  heap of rank r: only r allocates and frees there, all ranks read and write it
 * Untouched pages take no memory. A link (one comm) has an area in the heap of its first member (shm_link.h).
 *
 * Words that several processes use are C11 atomics; whatever they guard is written before a release store and read after
 * an acquire load. A word that others wait for has one writer.
 */
#ifndef LS_COMM_TRANSPORTS_SHM_SHM_H
#define LS_COMM_TRANSPORTS_SHM_SHM_H

#include <stdatomic.h>
#include <stdbool.h>
#include "base/base.h"
#include "comm/transports/shm/region.h"
#include "comm/transports/transport.h"

enum {
    REGION_VERSION = 3,
    SHM_RANKS_MOST = 512,
    SHM_LINE = 64, /* a cache line; words that different ranks write are on different lines */
    SHM_PAGE = 4096,
    SHM_HUGE = 2 << 20,
    CELLS_AT = SHM_PAGE,
    MESSAGE_MOST = 1024,
};

struct control {
    char magic[8]; /* "LSSHM\0\0\0" */
    uint32_t version;
    int32_t n;
    uint64_t bytes, heap_at, heap_bytes;
    int32_t launcher;                           /* the launcher's pid, which knows how a rank ended; 0: the ranks connected by name */
    _Alignas(SHM_LINE) _Atomic int32_t verdict; /* 1 + the cell that has the message; 0: none. Set once. */
};

/* One rank's words. A rank opens the region in rounds, normally one: it is in the job while joined > left. */
struct cell {
    _Alignas(SHM_LINE) _Atomic uint32_t bell; /* futex of its sleep: rung with asleep set */
    _Atomic uint32_t asleep;
    _Alignas(SHM_LINE) _Atomic uint32_t joined;
    _Atomic uint32_t left;
    _Atomic int32_t pid;
    _Atomic uint64_t box_group, box_at;       /* written by the first member of a link that is being made: where its area is */
    _Alignas(SHM_LINE) _Atomic uint32_t turn; /* sequence lock of the record: odd while it is written */
    struct call_record record;                /* its latest call */
    struct board board;
    int32_t status; /* its verdict, valid once control.verdict names this cell */
    char message[MESSAGE_MOST];
};

/* Extents of this rank's heap, in bytes from its start, ascending; used and free ones together cover it. */
struct extent {
    size_t at, bytes;
    bool used;
};
struct heap {
    struct extent *extent;
    int n, room;
};

struct gone {
    void *area;
    uint32_t members;
};

struct region {
    int fd;
    unsigned char *base;
    struct control *control;
    struct cell *cell; /* [n + 1] */
    int rank;          /* -1: the launcher */
    uint32_t round;    /* our joined */
    int users;         /* links of this process */
    int socket;        /* holds the name; -1 */
    struct heap heap;
    int *watch;        /* [n] pidfds; -1: none */
    struct gone *gone; /* [gone_n] areas of closed links that others still use; ours to free */
    int gone_n;
    /* how this process waits */
    bool armed;     /* asleep is set and everything was checked once more since `heard` */
    uint32_t heard; /* bell at that time */
    double looked;  /* when peers were last checked */
    double timeout; /* for splits: the timeout that opening was given */
    double dead;    /* since when the launcher's report on a dead peer is awaited; else 0 */
};

static inline void *region_at(const struct region *s, uint64_t at) { return s->base + at; }
static inline uint64_t region_offset(const struct region *s, const void *p) { return (uint64_t)((const unsigned char *)p - s->base); }

/* region.c */
ls_status region_make(int n, bool launcher, struct region **out);
ls_status region_attach(int fd, struct region **out); /* owns fd from then on, also on failure */
/* Joins as `rank` of n and waits for all the others. On failure the caller keeps the region. */
ls_status region_join(struct region *s, int rank, int n, double deadline);
void region_leave(struct region *s);
void region_end(struct region *s, ls_status st, const char *message); /* the verdict; the first is kept */
ls_status region_ended(const struct region *s);                       /* LS_OK, or the verdict with its message */

/* shm_rendezvous.c: the region by name. Rank 0 creates it, and holds the name until region_close. */
ls_status region_rendezvous(const char *name, int rank, int n, double deadline, struct region **out);

/* shm_wait.c */
void wait_moved(struct region *s); /* something moved here: the next wait_idle() only sets the flag again */
/* Called again and again, with everything checked between two calls: sets the flag, then sleeps. */
ls_status wait_idle(struct region *s, double seconds);
void wait_ring(struct region *s, int rank);         /* after the store that `rank` may wait for */
bool wait_sleeps(const struct region *s, int rank); /* after a fence */
void wait_ring_self(struct region *s);
/* LS_EPEER and the verdict if `rank` closed its side while it is still needed. */
ls_status wait_left(struct region *s, int rank);
bool rank_left(const struct region *s, int rank);
enum process_doing rank_doing(const struct region *s, int rank);
/* Field 3 of /proc/PID/stat: Z and X of a process that has ended, otherwise see process_doing_of(); 0: unknown. */
char process_state(int pid);

/* shm_heap.c: memory of this rank's heap, in whole pages. NULL with the message set. */
ls_status heap_open(struct region *s);
/* buffer: the caller will write all of it; else most of it may never be touched. */
void *heap_alloc(struct region *s, size_t bytes, bool buffer);
void heap_free(struct region *s, void *p); /* pages go back to the system */
bool heap_holds(const struct region *s, const void *p, size_t bytes);
void heap_close(struct region *s);

#endif
