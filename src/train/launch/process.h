/* process.h - other processes on this machine, read from /proc. */
#ifndef LS_TRAIN_LAUNCH_PROCESS_H
#define LS_TRAIN_LAUNCH_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Process numbers are reused; number and start time identify a process. */
struct process {
    pid_t parent;
    char state;     /* 'T' stopped by a signal, 't' by a debugger */
    uint64_t start; /* ticks since boot */
};

bool process_find(int64_t pid, struct process *out);       /* false: there is none */
bool process_lives(const struct process *p);               /* false: it has ended, and its parent has not reaped it yet */
double process_started(const struct process *p);           /* base_now() of then */
int64_t process_variable(pid_t pid, const char *name);     /* of its first environment, a number; -1: unset, or not ours to read */
int process_children(pid_t parent, pid_t out[], int most); /* returns how many it found */

#endif
