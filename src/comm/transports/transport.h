/* transport.h - the interface of a transport: one row of the table and one file each (shm_*.c, mpi.c). A GPU's own
 * collectives are in device/collectives.h.
 *
 * A link is one transport's side of one comm. All its functions are called by one thread at a time (the engine holds a
 * lock) and only open, split and close block: the others start work and are polled. The engine (engine.c) runs step lists over start() and
 * poll(), or a native collective if the transport has a better one.
 *
 * Messages between two ranks of a link keep their order per channel (0: collectives, 1: sends and receives of the user).
 * Each carries the signature of the call that it belongs to and its own length; a receiver that expects something else returns LS_EPEER
 * with the message of comm_mismatch(), and notifies the others by fail().
 */
#ifndef LS_COMM_TRANSPORTS_TRANSPORT_H
#define LS_COMM_TRANSPORTS_TRANSPORT_H

#include "comm/failure/board.h"
#include "lockstep/comm.h"

struct link; /* the transport's own; starts with struct link_base */

/* What a process does: STOPPED by a signal; BLOCKED in the kernel, where only its storage or its device wakes it. */
enum process_doing { PROCESS_RUNS, PROCESS_STOPPED, PROCESS_BLOCKED };

/* state: the letter in /proc/PID/stat. */
static inline enum process_doing process_doing_of(char state)
{
    return state == 'T' || state == 't' ? PROCESS_STOPPED : state == 'D' ? PROCESS_BLOCKED : PROCESS_RUNS;
}

struct link_base {
    const struct transport *transport;
    int rank, n;
    uint64_t group;    /* the same number on all ranks of the comm, another for each comm */
    char name[32];     /* "world", "world/0" */
    const int *member; /* [n] ranks of the world; NULL: of no use (plan) */
    int world_n;
    size_t eager; /* bytes of the largest message that its sender can finish before the receiver looks; 0: none */
};

/* One message in flight. The caller fills the first part and keeps it unchanged until poll() reports the end. */
struct transfer {
    int peer, channel;
    bool sending;
    void *data; /* const for sends */
    size_t bytes;
    const struct signature *signature;
    /* the transport's */
    size_t done;
    void *request;
    int state;
};

/* A call as the engine runs it. */
struct request {
    struct signature signature;
    const void *send;
    void *recv;
    size_t count;               /* elements of one block, or of everything if there are no blocks */
    const size_t *at, *recv_at; /* [n + 1] block borders in elements, see steps.h; NULL where unused */
    ls_dtype type;
    ls_redop redop;
    int root;
    void *state; /* state of a native collective, owned by the transport */
    int phase;
};

/* What every message says, after the rank's name, of a rank that ended by itself. */
#define EXITED_WITH "exited with code %d"

struct transport {
    const char *name;     /* "shm"; where is "NAME:rest" */
    double yield_seconds; /* how long to yield before the first idle(): longer if a message does not end a sleep */
    ls_status (*open)(const char *rest, int rank, int n, double timeout, struct link **out);
    /* members[n]: ranks of `parent` that form the new link, in order; me: this rank's index. All members call it. */
    ls_status (*split)(struct link *parent, int n, const int *members, int me, uint64_t group, struct link **out);
    void (*close)(struct link **l);

    ls_status (*start)(struct link *l, struct transfer *t);
    ls_status (*poll)(struct link *l, struct transfer *t); /* LS_BUSY, LS_OK, or a failure */

    /* A native collective; NULL: none. begin returns LS_EUNSUPPORTED (no message needed) if a step list is better for this call; all ranks
     * must decide the same. */
    ls_status (*begin)(struct link *l, struct request *r);
    ls_status (*advance)(struct link *l, struct request *r); /* LS_BUSY, LS_OK, or a failure */

    void *(*alloc)(struct link *l, size_t bytes); /* NULL member: plain memory */
    void (*free)(struct link *l, void *p);

    /* Called if nothing moved for a while: may sleep until something may have moved (at most `seconds`), and must check that peers are
     * alive: LS_EPEER names the one that died. */
    ls_status (*idle)(struct link *l, double seconds);
    /* The last call of `rank` (of the world) as far as this process knows, and its board. LS_BUSY: it has not answered (yet). Times are on
     * this process's clock. */
    ls_status (*peek)(struct link *l, int rank, struct call_record *out);
    ls_status (*see)(struct link *l, int rank, struct board_seen *out);
    /* What the process of `rank` does. NULL, and on other machines: unknown, so it runs. */
    enum process_doing (*doing)(struct link *l, int rank);
    /* Number of the world's ranks on this machine, with this one. A rank whose machine is unknown counts. NULL member: no rank waits. */
    int (*here)(struct link *l);
    /* This process's own board. NULL member: there is none. */
    struct board *(*board)(struct link *l);
    /* Ends the job's communication: every rank's next call on any link gives st and this message. The first one wins. */
    void (*fail)(struct link *l, ls_status st, const char *message);
    ls_status (*failed)(struct link *l); /* LS_OK, or the status of fail(), with the message set */

    /* Publishes this rank's latest call for the others' peek(): when the call begins and when it has ended. NULL: not used. */
    void (*note)(struct link *l, const struct call_record *r);
    /* Ends a sleep of this process in idle(). The only function that is called without the lock. NULL: idle() ends by itself. */
    void (*wake)(struct link *l);
};

ls_status transport_find(const char *where, const struct transport **out); /* by "NAME:". LS_EINVAL, or what transport_mpi() returns */
extern const struct transport transport_shm, transport_plan;
/* The MPI row is built as a module per implementation and loaded when first used: see mpi_load.c. */
const char *mpi_module_name(size_t i);                   /* "openmpi", "mpich"; NULL past the end */
bool mpi_module_find(size_t i, char *path, size_t room); /* path of its module; false: not found. Loads nothing */
/* LS_EINVAL for an unknown LOCKSTEP_MPI; LS_EUNSUPPORTED if there is no module, or it cannot be loaded. */
ls_status transport_mpi(const struct transport **out);

/* Writes the line for two signatures that differ (!signature_agrees): which rank called what. */
ls_status comm_mismatch(const struct link_base *l, int mine, const struct signature *a, int other, const struct signature *b);

#endif
