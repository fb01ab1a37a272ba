/* check.h - the checking device: a device that finds what only an accelerator would punish, on a machine without one.
 *
 * Its memory has two mappings of the same bytes. The addresses that it hands out can't be touched: a host that tries ends with one line
 * and exit code 1. The operations of its queues are given addresses in the other mapping while they run. Its streams are queues that a
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

extern const struct device device_check;

/* Orders are functions of the seed; 0 at first. */
void check_set_seed(uint64_t seed);

/* Tests: fn is called with a line for each pair that is in no order, instead of ending the process. NULL: that again. */
typedef void check_race_fn(void *ctx, const char *line);
void check_on_race(check_race_fn *fn, void *ctx);

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
    struct check_records records;
};

/* check_memory.c */
void *check_alloc(enum mem_category c, size_t bytes);
void check_release(void *p);
struct check_block *check_block_of(const void *p, size_t bytes); /* NULL: not, or not all, in device memory */
struct check_block *check_block_at(int i);                       /* NULL past the last */

/* check_race.c */
void check_clock_merge(struct check_clock *to, const struct check_clock *from);
void check_streams_named(const char *const *names); /* [CHECK_STREAMS] */
/* The operation `number` of a stream, before which all of *before has run, touches a. */
ls_status check_touch(const char *name, int stream, uint32_t number, const struct check_clock *before, const struct check_clock *host,
                      const struct device_access *a);
void check_forget_all(void); /* all that was enqueued is over */

void check_die(const char *fmt, ...) LS_PRINTF(1, 2);

#endif
