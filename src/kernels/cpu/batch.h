/* batch.h - batch norm's statistics and the values computed from them.
 *
 *   stats[2C+1] f64   sum of x over valid samples and positions, per channel; sum of x^2, per channel; number of elements per channel. Sums
 *                     over ranks are the statistics of the ranks' samples together, however many each has.
 *   sums[2C] f64      per channel: sum of dy, sum of dy n, over all samples, with n = (x - mean) rstd
 *
 * The sums are formed in f64 so that mean of x^2 - mean^2 keeps 7 digits up to |mean| of 10^4 standard deviations.
 */
#ifndef LS_KERNELS_CPU_BATCH_H
#define LS_KERNELS_CPU_BATCH_H

#include <math.h>

/* The statistics of one channel. Without elements: mean 0, variance 0. */
struct moments {
    double mean, var, count;
};

static inline struct moments moments_of(double sum, double squares, double count)
{
    struct moments m = { 0, 0, count };

    if (count > 0) {
        m.mean = sum / count;
        m.var = fmax(squares / count - m.mean * m.mean, 0);
    }
    return m;
}

static inline double moments_rstd(const struct moments *m, double eps) { return 1 / sqrt(m->var + eps); }

#endif
