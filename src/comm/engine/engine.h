/* engine.h - shared by the files of the engine: the struct of a comm, operations, the driver.
 *
 *   comm.c      opening, splitting, closing; names and accessors
 *   operations.c the public calls: check arguments, make a request, post it
 *   engine.c    which thread drives (a caller that waits, or the progress thread), in which order, and how it sleeps
 *   run.c       one operation from its queue to its end: a native collective of the transport, a list of steps, a message
 *   step_cache.c  step lists of earlier calls
 *   enqueue.c   calls in a device's queue: staged through the host, or made by the device's own library (native)
 *   native.c    the groups of that library that belong to a comm
 *   lanes.c     one step in progress: what is sent and received, in chunks, and the sums
 *   verdict.c   what ends a job: timeouts, mismatches seen on the boards of other ranks
 *   cause.c     the ranks as this one sees them; waits.c: the wait graph; board.c: the status that each rank publishes
 *   counts.c    counters of calls and bytes
 *
 * Threads. One thread at a time drives: it holds the engine (engine_enter .. engine_leave), and only it accesses links, queues and
 * operations that have not ended. An operation enters by a comm's `posted` queue, under the engine's lock; its `ended` flag returns it to
 * its owner. Counters belong to the thread that uses the comm: an operation is counted when it is reaped. After fork() a child must not use
 * the comms of its parent.
 */
#ifndef LS_COMM_ENGINE_ENGINE_H
#define LS_COMM_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include "base/base.h"
#include "comm/comm.h"
#include "comm/algorithms/steps.h"
#include "comm/transports/transport.h"

enum { NAME_ROOM = 32, LINE_ROOM = 1024, LISTS_KEPT = 64, CHUNK_BYTES = 256 << 10 };

/* The start of every struct link. */
static inline struct link_base *link_base(struct link *l) { return (struct link_base *)(void *)l; }

/* What this rank has seen of another rank's process: since when it has been stopped (0: it runs), when it was last blocked (0: never). */
struct sighting {
    double stopped, blocked;
};

/* The failure that ended communication, shared by all comms that come from one open. line is written once, before status. */
struct job {
    int comms;
    atomic_int status;
    char line[LINE_ROOM];
    int here;                 /* ranks of the world on this machine */
    struct board *board;      /* this rank's board, or NULL */
    struct sighting *sighted; /* [ranks of the world]; NULL until needed */
};

struct comm_block {
    char *at;
    size_t bytes;
};

struct queue {
    ls_work *head, *tail;
};

/* A step list and its call. */
struct cached_list {
    const struct algorithm *algorithm; /* NULL: none */
    int root;
    bool in_place;
    size_t chunk;
    size_t *at; /* [2 * (n + 1)], recv_at after at; zeros where unused */
    struct step_list list;
    uint64_t used; /* the cache's clock when it was last used */
};

/* One direction of a step: its bytes are sent as messages of CHUNK_BYTES, one at a time. */
struct lane {
    struct transfer t;   /* the message in flight */
    char *data;          /* the complete span */
    size_t total, begun; /* bytes */
    unsigned messages;   /* messages begun */
    bool on, flying;
};

struct ls_work {
    struct lane out, in; /* set when a step or a message begins */
    ls_comm *comm;       /* this and all members below start as 0 */
    ls_work *next;
    ls_work *made;    /* the comm's work that was allocated before this one */
    ls_collective op; /* the signature may carry an injected fault */
    struct request request;
    size_t *borders; /* [2 * (n + 1)]: request.at, request.recv_at */
    atomic_bool ended;
    ls_status status;
    bool hidden;              /* internal, not counted */
    bool native;              /* the device runs the call; the engine only watches it */
    atomic_int passed;        /* for a native call: see engine_passed() */
    _Atomic double asked;     /* for a native call: when its caller last asked whether it has ended */
    bool lazy;                /* a receive that nobody needs to drive before its caller waits */
    bool begun, by_transport; /* by_transport: its native collective runs, not a list of steps */
    uint64_t call, bytes;     /* number in the flight recorder; payload that left this rank */
    double queued, finished;  /* base_now() */
    double taken;           /* base_now() when it begins, if it is the first of its queue; else 0: the clock is read when its turn comes */
    double due;             /* when it may begin, set by an injected fault (comm_delay_fault); 0: at once */
    _Atomic double started; /* base_now(); written by the driver, shown by any thread */
    bool stirred;           /* there was progress after `moved`; run_look() then updates it */
    double moved, looked, judged; /* the last sign of progress; the last checks of the peers and of the wait graph */
    struct cached_list *list;
    int step;
    bool step_begun;
};

/* The groups of a device's library that belong to a comm. */
struct native {
    const struct device_collectives *table; /* NULL: there are none */
    struct native_spec spec;
    struct device_group *all;      /* collectives; NULL: none */
    struct device_group *out, *in; /* messages to rank + step and from rank - step, modulo n; NULL: none */
};

struct ls_comm {
    const struct transport *transport; /* NULL: alone, n == 1 */
    struct link *link;
    struct job *job;
    ls_comm *next; /* next of the engine's comms */
    int rank, n;
    char name[NAME_ROOM];
    uint64_t group, sequence, splits;
    uint64_t *pair_sequence; /* [2 * n]: sends, receives */
    double timeout;
    int place; /* on the board; -1: none */
    /* the engine's lock */
    struct queue posted;
    /* owned by the driver */
    struct queue collectives, *pairs; /* pairs[2 * n]: sends, receives */
    int messages;                     /* messages in pairs */
    atomic_bool news;                 /* posted is not empty */
    void *scratch, *bounce;
    size_t scratch_bytes;
    struct cached_list lists[LISTS_KEPT];
    uint64_t clock;
    uint64_t *to; /* [n] bytes to each peer */
    /* owned by the user's thread */
    ls_work *spare, *made;     /* made: all works, until the comm is closed, because after a failure some are not waited for */
    struct comm_block *blocks; /* memory from ls_comm_alloc */
    size_t blocks_n, blocks_room;
    ls_comm_count count[LS_COLLECTIVES];
    struct native native;
};

/* engine.c */
void engine_enter(void); /* waits until no other thread drives */
void engine_leave(void);
void engine_add(ls_comm *c); /* this and engine_remove(): between enter and leave */
void engine_remove(ls_comm *c);
double engine_spin_seconds(const ls_comm *c);                 /* how long a wait for another rank of c spins; 0: it does not */
void engine_set_timeout(const struct job *j, double seconds); /* for all comms of the job; also between enter and leave */
ls_status engine_post(ls_work *w); /* the progress thread advances it; a lazy one is advanced by its caller, when it waits */
void engine_run(ls_work *w);       /* waits until it has ended */
void engine_wait(ls_work *w);
int engine_wait_any(ls_work *const *works, int n); /* waits until one has ended: the index of the first; NULLs are skipped */
bool engine_test(ls_work *w);                      /* true when it has ended */
void engine_ended(ls_work *w);                     /* called by the driver, which must not use w afterwards: its owner may reap it */
void engine_drain(ls_comm *c);                     /* waits until nothing is in flight */
/* The owner of a native call reports that it has ended or, with done false, that the device has failed and it will never end. */
void engine_passed(ls_work *w, bool done);
/* ls_work_test() for a native call; also records that its owner still asks. */
ls_status engine_ask(ls_work **w);
/* Shows other ranks that the calling thread waits for w, a call of c; w NULL: that it no longer waits. */
void engine_show_wait(const ls_comm *c, const ls_work *w);
/* Reports a native call that cannot end, with the message of the device's library as this thread's. Ends the job with that message, or with
 * what the transport knows of a peer that died, and returns the status and message with which the job has ended. */
ls_status engine_broken(ls_comm *c, ls_status st);

/* run.c: the driver's */
void run_take(ls_comm *c, struct queue *posted, double now); /* now: base_now(), or 0: it is read when needed */
bool run_comm(ls_comm *c);                                   /* polls everything in flight; true if anything moved */
void run_look(ls_comm *c, double now);                       /* nothing moved: checks for a timeout or a deadlock */
void run_fail(ls_comm *c, ls_status st);                     /* ends the job with this thread's message */
void queue_push(struct queue *q, ls_work *w);
struct queue queue_move(struct queue *q); /* leaves q empty */

/* lanes.c: the step of w. LS_BUSY, LS_OK or a failure. */
ls_status step_advance(ls_work *w, bool *moved);

/* step_cache.c */
ls_status list_for(ls_work *w, struct cached_list **out); /* also makes the comm's scratch large enough for it */
size_t request_bytes(const ls_work *w);                   /* bytes of the complete buffer, by which algorithms are chosen */
bool transport_preferred(const ls_work *w);               /* the transport's native collective is preferred */
void lists_free(ls_comm *c);

/* native.c */
void native_close(ls_comm *c);

/* verdict.c */
ls_status verdict_look(ls_comm *c, ls_work *w, double now); /* LS_OK, or the failure that ends the job; asks peers now and then */

/* counts.c */
void count_reaped(ls_work *w, double exposed);  /* exposed: seconds that its caller waited and count_exposed() has not counted */
void count_exposed(ls_work *w, double seconds); /* counts seconds that its caller waits as they pass: a step may end before the call does */
uint64_t count_transport(const ls_work *w, int peer); /* bytes that the peer reads in a native collective */

/* operations.c */
struct buffers {
    size_t send, recv, own;
}; /* bytes; own: where the small buffer may be within the large one */
struct buffers operation_buffers(const ls_work *w);
ls_status operation_work(ls_comm *c, const struct call_args *a,
                         ls_work **out); /* checked, with the bounds of blocks; without a number, and not begun */
/* A native call, checked; *out is NULL if an injected fault skips it. */
ls_status operation_native(ls_comm *c, const struct call_args *a, ls_work **out);
ls_status operation_post_native(ls_work *w); /* the stream has reached the call */
void work_drop(ls_work *w);
void works_free(ls_comm *c);

#endif
