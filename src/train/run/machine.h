/* machine.h - what this machine has, and how fast it multiplies. */
#ifndef LS_TRAIN_RUN_MACHINE_H
#define LS_TRAIN_RUN_MACHINE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include "lockstep/machine.h"

/* ls_machine_this() without its peaks; bound, processors: see cores_of_job(). */
void machine_find(bool bound, ls_machine *out, cpu_set_t *processors);

/* Bytes that this process can still take: the least of the kernel's MemAvailable and what the control groups
 * above it leave. 0 when neither can be read. */
size_t machine_free_memory(void);

size_t machine_peak_rss(void); /* bytes; the most that this process ever had resident */

/* Seconds of y[m,n] = x[m,k] w[n,k]^T, the shortest of some runs, by the table's entry of the name *kernel, or by the
 * one that a program would choose when that is NULL; *kernel becomes its name. 0 seconds: that entry does not take the
 * product. */
ls_status machine_time_linear(ls_dtype type, size_t m, size_t n, size_t k, const char **kernel, double *seconds);

/* FLOP/s of large matmuls in `type` on all threads of the team: the best that any entry of the kernel table reached over several
 * shapes, the winner repeated. Takes about a second. Its matrices do not count against the memory limit. See peak.h. */
ls_status machine_peak_flops(ls_dtype type, double *flops);

#endif
