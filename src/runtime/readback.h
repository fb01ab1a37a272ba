/* readback.h - outputs that are read once per step, not once per micro-batch: each read is enqueued where the output is made, and all are
 * waited for together where their sums are used.
 *
 * The parts are added on the host, in double and in the order of readback_add(), so the sums do not depend on the device. On a device whose
 * memory the host can read they are added at once.
 *
 *     for each micro-batch: run; LS_TRY(readback_add(&r, p, "loss", &sum, 1));
 *     LS_TRY(readback_finish(&r));          // now sum is complete
 */
#ifndef LS_RUNTIME_READBACK_H
#define LS_RUNTIME_READBACK_H

#include "ir/program.h"

enum { READBACK_MOST = 256 }; /* reads under way; one more waits for them */

struct pending_read {
    void *host; /* [room] */
    size_t room, count;
    ls_dtype type;
    double *sum;
};

/* Zeroed: nothing has been read. */
struct readback {
    const struct device *device;
    struct device_event *copied; /* recorded after the last copy */
    struct pending_read read[READBACK_MOST];
    int n; /* reads under way */
};

/* sum[count] += the value, an output of p, once it is there: on return of readback_finish() at the latest. */
ls_status readback_add(struct readback *r, ls_program *p, const char *name, double *sum, size_t count);
ls_status readback_finish(struct readback *r);
/* Reads under way are waited for and not added to any sum: after a run that failed. */
void readback_drop(struct readback *r);
void readback_close(struct readback *r); /* before the store is released */

#endif
