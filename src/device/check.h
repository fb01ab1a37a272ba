/* check.h - the checking device: a device that finds, on a machine without an accelerator, bugs that would show only on one.
 *
 * Its memory has two mappings of the same bytes. The addresses that it hands out can't be touched: a host access ends the process with one
 * line and exit code 1. The operations of its queues are given addresses in the other mapping while they run. Its streams are queues that a
 * scheduler drains in a random order, one of those that streams and events allow; some operations run when they are enqueued, some only
 * when the host waits. Its kernels are the cpu's, so a program must leave the same bits as on the cpu. A program that lacks a wait leaves
 * others under some seeds; and at each enqueue vector clocks tell whether an earlier operation that touches the same bytes, one of the two
 * writing, comes before it: if not, the process ends with a line that names both.
 *
 *   check.c         the row: queues, the scheduler
 *   check_memory.c  the two mappings
 *   check_race.c    the clocks
 */
#ifndef LS_DEVICE_CHECK_H
#define LS_DEVICE_CHECK_H

#include <stdint.h>
#include "device/device.h"

/* How the scheduler chooses. */
enum check_order {
    CHECK_RANDOM, /* any stream; when something is enqueued, one operation after another while a coin says so */
    CHECK_EAGER,  /* any stream; all that can run runs when something is enqueued */
    CHECK_LAZY,   /* any stream; nothing runs before the host waits */
    CHECK_RANKED, /* as lazy; always the stream that was drawn to be first */
    CHECK_DEMAND, /* as lazy; only what the host's wait needs */
    CHECK_ORDERS, /* how many a seed chooses from */
    CHECK_PROGRAM /* each operation ends before the next is enqueued: what it does is right without any wait */
};

/* The order and the streams that are drawn are a function of the seed (0 at first); when collectives end is not. */
void check_set_seed(uint64_t seed);
void check_set_order(enum check_order order);

/* Tests: fn is called with a line for each unordered pair, instead of ending the process. NULL: ends the process again. */
typedef void check_race_fn(void *ctx, const char *line);
void check_on_race(check_race_fn *fn, void *ctx);

/* Tests: what the host enqueues and what it waits for, in its order. */
enum check_kind { CHECK_OPERATION, CHECK_RECORD, CHECK_WAIT, CHECK_HOST_WAIT };
struct check_action {
    enum check_kind kind;
    const struct device_stream *stream; /* for CHECK_HOST_WAIT: the host waits for it, for the event, or (both NULL) for all streams */
    const struct device_event *event;   /* NULL: none */
    const struct device_operation *operation; /* for CHECK_OPERATION */
    bool implied;                             /* for CHECK_WAIT: everything that the event stands for is ordered before already */
};
/* False for a CHECK_WAIT: the stream waits, so nothing goes wrong, but the clocks do not count it. fn NULL: stops. */
typedef bool check_action_fn(void *ctx, const struct check_action *a);
void check_on_action(check_action_fn *fn, void *ctx);

/* For a device on top of this one that polls instead of waiting: runs an operation if one can run; true: e, or s if e is NULL, has nothing
 * left to wait for. */
bool check_poll(struct device_stream *s, const struct device_event *e);
/* A file of the block's bytes from now on, which other processes may open as /proc/PID/fd/N and map with check_map(). */
struct check_block;
int check_file(struct check_block *b);
void *check_map(int file,
                size_t bytes); /* device memory that is shared with other processes until check_release(); NULL with the message set */
/* Runs what can run; false: a stream is waiting for an operation that is still under way. */
bool check_run_all(void);

/* ---- between the files ---- */

enum { CHECK_STREAMS = 64, CHECK_NAME = 40 };

/* at[s]: number of the last operation of stream s that comes before. */
struct check_clock {
    uint32_t at[CHECK_STREAMS];
};

struct check_record {
    const char *name;
    size_t begin, end;
    uint32_t number;
    int stream;
    bool write;
};
struct check_records {
    struct check_record *at;
    int n, room;
};

struct check_block {
    char *visible, *shadow;
    size_t bytes, mapped;
    enum mem_category category;
    int file; /* holds its bytes, if other processes may map them; -1: they may not */
    struct check_records records;
};

/* check_memory.c */
void *check_alloc(enum mem_category c, size_t bytes);
void check_release(void *p);
struct check_block *check_block_of(const void *p, size_t bytes); /* NULL: not, or not all, in device memory */
struct check_block *check_block_at(int i);                       /* NULL past the last */

/* check_race.c */
void check_clock_merge(struct check_clock *to, const struct check_clock *from);
bool check_clock_covers(const struct check_clock *c, const struct check_clock *what);
void check_streams_named(const char *const *names); /* [CHECK_STREAMS] */
/* The operation `number` of a stream, before which all of *before has run, touches a. */
ls_status check_touch(const char *name, int stream, uint32_t number, const struct check_clock *before, const struct check_clock *host,
                      const struct device_access *a);
void check_forget_all(void); /* all that was enqueued is over */

void check_die(const char *fmt, ...) LS_PRINTF(1, 2);

#endif
