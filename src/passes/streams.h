/* streams.h - the streams pass, and what the executor does with its result.
 *
 * The pass (streams.c) gives each instruction a stream and the instructions whose ends it waits for: compute; copies of offloaded state;
 * one stream per comm for its collectives; per comm and peer, one stream for messages to the peer and one for messages from it. Two
 * instructions of different streams must be ordered if they touch the same bytes and one of them writes, be it because one reads what the
 * other makes or because the memory pass has given the bytes to another value. Vector clocks tell which waits follow from others; those are
 * left out.
 *
 * The list is ordered as it stands, all segments one after another. A run that does not continue where the one before it ended - the next
 * micro-batch, another program of the store - begins with a join of all streams (stream_run.c); so does what the host does to the store. An
 * instruction that does not run in this micro-batch (`when`) ended in an earlier one.
 */
#ifndef LS_PASSES_STREAMS_H
#define LS_PASSES_STREAMS_H

#include "ir/program.h"
#include "runtime/stream_set.h"

/* Bytes [begin, end) of a space: an arena, a tensor. */
struct stream_access {
    int space;
    size_t begin, end;
    bool write;
};

enum { STREAM_VARIANTS = 2 }; /* a micro-batch, and the last one of a step */

/* stream -1: it runs on none, touches nothing and waits for nothing. variants: bit v: it runs in variant v. */
struct stream_step {
    int stream;
    unsigned variants;
    int first_access, accesses;
    int first_wait, waits; /* result */
};

/* Fills the results of step[n]; *wait: the steps that are waited for, by their index; freed by mem_free. */
ls_status stream_waits(const struct stream_access *access, struct stream_step *step, int n, int streams, int **wait);

ls_status streams_pass(ls_program *p); /* after the memory pass; nothing for an immediate device */
void streams_clear(ls_program *p);

/* stream_run.c */
ls_status streams_bind(ls_program *p); /* streams of the store's set, events */
void streams_unbind(ls_program *p);
ls_status streams_enter(ls_program *p, enum segment s, int segments); /* before the first instruction of a segment */
ls_status streams_before(ls_program *p, const struct instruction *i);
ls_status streams_after(ls_program *p, const struct instruction *i);
void streams_used(ls_program *p, const struct instruction *i); /* records that its stream was given something */

#endif
