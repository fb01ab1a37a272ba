/* pulse.h - heartbeats: a thread that others wait for shows that it is making progress.
 *
 * Code that works for long without communicating (reading, tokenizing, hashing, writing, computing) calls pulse() at natural points: after
 * a block of bytes, a merge, an instruction. A pulse is a time, stored where other ranks can read it (comm/failure/board.h); without a
 * watcher it is a no-op. Only the thread that called pulse_watch() is watched: another thread of the same process must not pulse for it. So
 * a pulse proves progress, and a process that is stopped or stuck in a lock or system call has none. The work between two pulses must be
 * far shorter than launch.timeout.
 */
#ifndef LS_BASE_PULSE_H
#define LS_BASE_PULSE_H

void pulse_watch(_Atomic double *at);   /* this thread's pulses go to *at, as base_now_coarse(), unless there is a watcher already */
void pulse_unwatch(_Atomic double *at); /* no-op for another watcher's */
void pulse_delegate(void);              /* the calling thread works for the watched one, which waits for it */
void pulse(void);

#endif
