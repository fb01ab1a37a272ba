/* peak.h - the peak FLOP/s that MFU is a share of: the fastest large matmul of this machine, measured once and cached.
 *
 * The peak is measured for all processors of the job on this machine first, then for as many threads as its ranks use together,
 * in a thread of its own that may run on any of those processors, whatever this rank is bound to. So layouts that use the same
 * processors have the same peak. The result is kept in
 *     $XDG_CACHE_HOME/lockstep/peak-HASH.json    or ~/.cache/lockstep/peak-HASH.json
 * where HASH is of what decides it: processor model, its features, number of processors, instruction set (run.isa) and the version
 * of the measurement; the file repeats them, and an entry a data type and number of threads:
 *     { "version": 1, "processor": "..", "features": "avx2 fma", "processors": 2, "isa": "avx512",
 *       "peaks": [ { "type": "f32", "threads": 2, "flops": 2.4e11, "busy": 0.01, "when": 1763784000 } ] }
 * A file that cannot be read, is damaged or describes another machine is ignored and replaced; where no file can be written the
 * peak is measured in every run. Neither is a failure. A peak that was measured while other processes had more than a tenth of the
 * processors is measured again by a run that starts a minute later or more, and the larger of the two stays.
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
    double flops;       /* per second; of peak_of_ranks(): all machines together. NaN: run.measure_peak=off */
    int threads;        /* that it was measured with, on this machine */
    ls_machine machine; /* this one; its flops in the type are those of all its processors */
    double busy;        /* share of them that other processes had meanwhile: 0 to 1 */
    int64_t when;       /* seconds since 1970 */
    bool measured;      /* by this process, not read from the cache */
    bool machines;      /* the ranks are on several; threads and machine are those of rank 0's */
    char path[512];     /* of the cache file; "": not cached */
    char note[384];     /* why it was not read from the cache or not kept there, one line; "": it was */
};

/* Calls `measure` for what is not in the cache. threads: of all ranks on this machine. bound: see cores_of_job(). */
typedef ls_status peak_measure_fn(ls_dtype type, double *flops);
ls_status peak_find(ls_dtype type, int threads, bool bound, enum peak_mode mode, peak_measure_fn *measure, struct peak *out);

/* The peak of all ranks: the first rank of each machine finds its machine's. Collective, one outcome. */
ls_status peak_of_ranks(const struct config *c, const struct ranks *r, struct peak *out);

#endif
