/* machine.h - the processors and memory of this machine, and how fast it computes matmuls. */
#ifndef LS_TRAIN_RUN_MACHINE_H
#define LS_TRAIN_RUN_MACHINE_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include "lockstep/machine.h"

/* As ls_machine_this(), but without peak FLOP/s. bound, processors: see cores_of_job(). */
void machine_find(bool bound, ls_machine *out, cpu_set_t *processors);

/* Bytes that this process can still allocate: the smaller of the kernel's MemAvailable and what the process's control groups leave. 0 if
 * neither can be read. */
size_t machine_free_memory(void);

size_t machine_peak_rss(void); /* the largest resident size of this process so far, in bytes */

struct device;
/* Times y[m,n] = x[m,k] w[n,k]^T of random numbers on a device and keeps the shortest of several runs; on one with streams of its own a run
 * is many launches, for which the host waits once. *kernel: name of the entry of the kernel table to time; NULL: the one that a program
 * would choose. It becomes the name of the kernel that ran: another one if a library does not take the matmul after all. *seconds is 0 if
 * the device has no such entry, or it does not accept the matmul. */
ls_status machine_time_linear(const struct device *d, ls_dtype type, size_t m, size_t n, size_t k, const char **kernel, double *seconds);

/* FLOP/s of large matmuls in `type` on all threads of the team: the best that any entry of the kernel table reaches over several
 * shapes; the best one is timed again. Takes about a second. The matrices do not count towards the memory limit. See peak.h. */
ls_status machine_peak_flops(ls_dtype type, double *flops);

#endif
