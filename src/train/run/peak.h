/* peak.h - the peak FLOP/s that MFU is a share of: the fastest large matmul of this machine, measured once and cached.
 *
 * The peak is measured with all processors of the job on this machine, then with as many threads as its ranks use together, in a
 * thread of its own that may run on any of those processors, even if this rank is bound to some of them. So layouts that use the
 * same processors have the same peak. The result is cached in
 *     $XDG_CACHE_HOME/lockstep/peak-HASH.json    or ~/.cache/lockstep/peak-HASH.json
 * where HASH is a hash of what the peak depends on: processor model, its features, number of processors, instruction set (run.isa) and
 * the version of the measurement. The file repeats these and has an entry for each data type and number of threads:
 *     { "version": 1, "processor": "..", "features": "avx2 fma", "processors": 2, "isa": "avx512",
 *       "peaks": [ { "type": "f32", "threads": 2, "flops": 2.4e11, "busy": 0.01, "when": 1763784000 } ] }
 * A file that cannot be read, is damaged or describes another machine is ignored and replaced; if no file can be written, every run
 * measures the peak. Neither is a failure. A peak that was measured while other processes used more than a tenth of the processors is
 * measured again by a run that starts at least a minute later, and the larger of the two is kept. A peak that is more than the processor
 * can reach (peak_bound() of peak_cache.h) is neither used nor kept.
 */
#ifndef LS_TRAIN_RUN_PEAK_H
#define LS_TRAIN_RUN_PEAK_H

#include <stdbool.h>
#include <stdint.h>
#include "lockstep/dtype.h"
#include "lockstep/machine.h"
#include "train/run/ranks.h"

enum peak_mode { PEAK_AUTO, PEAK_AGAIN, PEAK_OFF }; /* run.measure_peak */

struct peak {
    double flops;       /* FLOP/s; peak_of_ranks() adds up all machines. NaN: run.measure_peak=off, or peak_bound() exceeded */
    int threads;        /* threads on this machine with which the peak was measured */
    ls_machine machine; /* this machine; its flops in the type are those of all its processors */
    double busy;        /* share of the processors that other processes used during the measurement: 0 to 1 */
    int64_t when;       /* time of the measurement, seconds since 1970 */
    bool measured;      /* true if this process measured it, false if it was read from the cache */
    bool machines;      /* true if the ranks are on several machines; threads and machine are then those of rank 0's machine */
    char path[512];     /* path of the cache file; "": not cached */
    char note[384];     /* one line that says why the cache could not be read or written; "": it could */
};

/* Calls `measure` for a peak that is not in the cache. threads: number of threads of all ranks on this machine. bound: see
 * cores_of_job(). */
typedef ls_status peak_measure_fn(ls_dtype type, double *flops);
ls_status peak_find(ls_dtype type, int threads, bool bound, enum peak_mode mode, peak_measure_fn *measure, struct peak *out);

/* The peak of all ranks: the first rank of each machine finds the peak of its machine. Collective; all ranks succeed or all fail. */
ls_status peak_of_ranks(const struct config *c, const struct ranks *r, struct peak *out);

#endif
