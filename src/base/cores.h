/* cores.h - the processors that this process may use, and how several processes share them.
 *
 * A processor is what the kernel schedules on: a hardware thread. What may be used is the affinity mask (which a cpuset of a
 * cgroup narrows too), and no more than the processor time that the cgroup grants (cpu.max), rounded up.
 */
#ifndef LS_BASE_CORES_H
#define LS_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>

int cores_count(void); /* >= 1 */

/* Threads of each of `ranks` ranks that share this machine: an equal share of cores_count(), at least 1. */
int cores_per_rank(int ranks);

/* out: the processors of this machine that the whole job may use; returns how many, cpu.max counted. That is the affinity mask,
 * or, where a launcher bound this process to a share (bound: this process is one of several ranks), the launcher's. */
int cores_of_job(bool bound, cpu_set_t *out);

/* out[n]: share k of n of the processors in the affinity mask, in the machine's own order, so that a share has neighbours
 * (hardware threads of a core, cores of a cache, of a node). No core is split where there are n whole cores. False, and
 * nothing is written, when there are more shares than processors, or the machine does not say how it is made. */
bool cores_share(int n, cpu_set_t out[]);

/* Processors that a cpu.max file of a cgroup grants: "150000 100000" is 2; 0: no limit, or no such text. */
int cores_quota(const char *cpu_max);

#endif
