/* pulse.h - heartbeats: a thread that others wait for shows that it is getting on with its work.
 *
 * Whoever works long without talking to other ranks (reading, tokenizing, hashing, writing, computing) calls pulse() at the
 * natural points of that work: a block of bytes, a merge, an instruction. A pulse is a time, stored where the others can read it
 * (comm/board.h); without a watcher it is a no-op. Only the thread that called pulse_watch() is witnessed: another thread of the
 * same process must not vouch for it. So a pulse proves progress, and a process that is stopped, stuck in a lock or in a
 * system call has none. A single piece of work must be far shorter than launch.timeout.
 */
#ifndef LS_BASE_PULSE_H
#define LS_BASE_PULSE_H

void pulse_watch(_Atomic double *at);   /* this thread's pulses go to *at, as base_now(), unless there is a watcher already */
void pulse_unwatch(_Atomic double *at); /* no-op for another watcher's */
void pulse_delegate(void);              /* the calling thread works for the witnessed one, which waits for its end */
void pulse(void);

#endif
