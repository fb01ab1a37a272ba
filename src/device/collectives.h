/* collectives.h - collectives and messages among the processors of several ranks, on their streams: a part of a device's row.
 *
 * A device has a table for each way to make them, in order of preference; without any they are staged through the host: device_operation of
 * device.h. A group is one communicator, of which each rank holds its end. Here too one thread at a time.
 *   1. All ranks of a group enqueue the same calls in the same order. A call on a stream starts when the stream has come to it.
 *   2. A group takes the calls of its kind. A group for messages has two ranks and takes those from its rank 0 to its rank 1, so no
 *      message waits for one of another pair, or of the other direction.
 *   3. Calls of different groups may wait for each other in any order: each group keeps no more of the device's processors busy than its
 *      share, so there is room for the calls of all groups at once.
 *   4. After a failure of the device all groups are aborted: what was enqueued ends, and nothing more is enqueued. Nothing here waits for
 *      that, nor for a rank that does not answer.
 *   5. Sums are the table's own: it may round bf16 and f16 after each addition, multiply by 1/n before it sums (DEVICE_AVG), and leave
 *      out NaNs (DEVICE_MAX), where include/lockstep/comm.h promises f32, one rounding, x / n and NaN. Every rank still gets the same
 *      bits. Sums in f32 differ from the host's in their order alone.
 */
#ifndef LS_DEVICE_COLLECTIVES_H
#define LS_DEVICE_COLLECTIVES_H

#include "device/device.h"
#include "lockstep/dtype.h"

struct device_group;

enum device_collective {
    DEVICE_ALL_REDUCE,
    DEVICE_ALL_GATHER,
    DEVICE_REDUCE_SCATTER,
    DEVICE_BROADCAST,
    DEVICE_ALL_TO_ALL,
    DEVICE_SEND,
    DEVICE_RECV
};
enum device_redop { DEVICE_SUM, DEVICE_AVG, DEVICE_MAX };

enum device_group_kind {
    DEVICE_GROUP_COLLECTIVES, /* all collectives but all_to_all */
    DEVICE_GROUP_EXCHANGES,   /* all collectives */
    DEVICE_GROUP_MESSAGES
};

struct device_group_spec {
    enum device_group_kind kind;
    int rank, n;
    int share, shares; /* its share of the device's processors in units of 1 / shares, the same on all ranks; all open groups together have
                          at most `shares` */
};

/* A call as include/lockstep/comm.h defines it, rule 5 above aside; its arguments are valid. */
struct device_call {
    enum device_collective op;
    const void *send;
    void *recv;
    size_t count;               /* elements, of calls without blocks */
    const size_t *at, *recv_at; /* [n + 1] block borders in elements; recv_at: of all_to_all */
    ls_dtype type;
    enum device_redop redop;
    int root;
};

/* The functions that follow a call. data[bytes] is copied. */
struct device_watch {
    void *data;
    size_t bytes;
    /* Called once the stream has come to the call, and then again and again until it returns something other than LS_BUSY; a failure
     * becomes the device's. */
    ls_status (*run)(void *data);
    /* The stream is past the call (run will end), or ended is false: the device has failed, and run is not called any more. Once. */
    void (*over)(void *data, bool ended);
    /* The library reports that the call cannot end, with this thread's message: returns the status and message of the failure. */
    ls_status (*broken)(void *data, ls_status st);
    /* The host begins or stops to wait for something that may be after this call. */
    void (*waits)(void *data, bool on);
};

enum { DEVICE_GROUP_ID = 128 };

struct device_collectives {
    const char *name;   /* "NCCL" */
    const char *choice; /* its name in launch.comm: "nccl" */
    bool one_machine;   /* all ranks of a group are on one machine */
    int most;           /* ranks that a group can have; 0: any number */
    bool shares;        /* ranks of a group may be on the same processor */
    /* *out: a group may have this rank and one on another processor of this machine, whose device_facts.identity is given. NULL: always. */
    ls_status (*reaches)(const char *identity, bool *out);
    /* Loads what it needs and writes its name and version, "NCCL 2.28.9". If it cannot be used, the message says why. */
    ls_status (*load)(char *version, size_t room);
    bool (*takes)(const struct device_call *c); /* depends on the call's op, type and redop only: the same on all ranks */
    ls_status (*id)(char id[DEVICE_GROUP_ID]);  /* made by one rank, for all of the group */
    ls_status (*open)(const char id[DEVICE_GROUP_ID], const struct device_group_spec *s, struct device_group **out); /* begins to open it */
    ls_status (*opened)(struct device_group *g);                                                                     /* LS_BUSY: not yet */
    /* Bytes of the device's memory that were taken for the groups as they were opened; those of a group until it is closed. */
    size_t (*taken)(void);
    ls_status (*finish)(struct device_group *g); /* before close(), of all ranks: what was enqueued is over. LS_BUSY: not yet */
    void (*close)(struct device_group *g);       /* aborts what is not finished; NULL is a no-op */
    /* The device owns the watch from here on, whatever is returned. */
    ls_status (*enqueue)(struct device_group *g, struct device_stream *s, const struct device_call *c, const struct device_watch *w);
};

#endif
