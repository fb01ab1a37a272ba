/* cores.h - the processors that this process may use, and how several processes share them.
 *
 * A processor is what the kernel schedules on: a hardware thread. The usable processors are those of the affinity mask (which a cgroup's
 * cpuset also restricts), but no more than the processor time that the cgroup grants (cpu.max), rounded up.
 */
#ifndef LS_BASE_CORES_H
#define LS_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

int cores_count(void); /* >= 1 */

/* Threads of each of `ranks` ranks that share this machine: an equal share of cores_count(), at least 1. */
int cores_per_rank(int ranks);

/* out: the processors of this machine that the whole job may use; returns how many, limited by cpu.max. This is the affinity mask, or the
 * launcher's mask if a launcher bound this process to a share (bound: this process is one of several ranks). */
int cores_of_job(bool bound, cpu_set_t *out);

/* out[n]: share k of n of the processors in the affinity mask, in the machine's own order, so that a share consists of neighbors (hardware
 * threads of a core, cores of a cache, of a node). No core is split if there are at least n cores. False, and nothing is written, if there
 * are more shares than processors, or the topology is unknown. */
bool cores_share(int n, cpu_set_t out[]);

/* Bytes of the data cache of a level (1: nearest) that the processor of the first call has, perhaps together with others; 0: unknown. */
size_t cores_cache(int level);

/* Processors that a cpu.max file of a cgroup grants: "150000 100000" is 2; 0: no limit, or malformed text. */
int cores_quota(const char *cpu_max);

#endif
