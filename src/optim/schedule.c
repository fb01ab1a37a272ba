/* schedule.c - learning rates: linear warm-up, then constant, linear, cosine, or constant with a linear end (WSD).
 *
 * With w warm-up steps of S, step s (from 0), u = (s - w) / (S - w) the fraction of the steps after the warm-up:
 *   warm-up    lr (s + 1) / w
 *   constant   lr
 *   linear     lr + u (min_lr - lr)
 *   cosine     min_lr + (lr - min_lr) (1 + cos(pi u)) / 2
 *   wsd        lr until the last `decay` steps, of which step d (from 0) has lr + (d + 1) / decay (min_lr - lr)
 */
#include "lockstep/optim.h"

#include <math.h>

static double after_warmup(const ls_schedule *s, uint64_t step)
{
    double u = (double)(step - s->warmup) / (double)(s->steps - s->warmup);

    switch (s->kind) {
    case LS_CONSTANT: return s->lr;
    case LS_LINEAR: return s->lr + u * (s->min_lr - s->lr);
    case LS_COSINE: return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1.0 + cos(acos(-1.0) * u));
    case LS_WSD:
        if (step + s->decay < s->steps) return s->lr;
        return s->lr + (double)(step + s->decay - s->steps + 1) / (double)s->decay * (s->min_lr - s->lr);
    }
    return s->lr;
}

double ls_schedule_lr(const ls_schedule *s, uint64_t step)
{
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    if (s->kind == LS_CONSTANT) return s->lr;
    return step < s->steps ? after_warmup(s, step) : s->min_lr;
}
