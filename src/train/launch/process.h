/* process.h - information about processes on this machine, from /proc. */
#ifndef LS_TRAIN_LAUNCH_PROCESS_H
#define LS_TRAIN_LAUNCH_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The kernel reuses process numbers: only number and start time together identify a process. */
struct process {
    pid_t parent;
    char state;     /* 'T' stopped by a signal, 't' by a debugger */
    uint64_t start; /* ticks since boot */
};

bool process_find(int64_t pid, struct process *out);       /* false: there is no such process */
bool process_lives(const struct process *p);               /* false: it has ended but has not been reaped */
double process_started(const struct process *p);           /* start time on the clock of base_now() */
int64_t process_variable(pid_t pid, const char *name);     /* a number in its initial environment; -1: unset or not readable */
int process_children(pid_t parent, pid_t out[], int most); /* returns the number of children in out[most] */

#endif
