/* machine.h - the machine that a job runs on, as far as it is known: what memory limits, MFU and benchmarks are computed from. */
#ifndef LS_MACHINE_H
#define LS_MACHINE_H

#include "lockstep/dtype.h"
#include "lockstep/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_machine {
    char name[128];          /* name of its processors, as they report it; "unknown" if they do not */
    char features[256];      /* instruction set extensions that kernels look for, "avx2 fma f16c"; "": not known */
    char isa[32];            /* the widest instruction set that kernels use: "avx512" */
    int processors;          /* hardware threads that the job may use; 1 or more */
    size_t memory;           /* bytes that the job can still take; 0: not known */
    double flops[LS_DTYPES]; /* FLOP/s of large matmuls in that type on all processors together, as measured; 0: unknown */
} ls_machine;

/* This machine, of which a job may be granted a part. Measures nothing: flops are read from the user's cache, where earlier runs (train,
 * bench) stored what they measured on this machine. Fails only if the launcher's environment is wrong. */
ls_status ls_machine_this(ls_machine *out);

#ifdef __cplusplus
}
#endif
#endif
