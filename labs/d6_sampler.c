/* D6 - each rank sees a different part of the batch. Without the sampler every rank starts at the first sample and all do the same
 * work: K times the cost for the gradient of a batch that is K times smaller. */
#include "lab_train.h"

enum { RANKS_MOST = 8, PART_MOST = 8, ROOM = 1 << 15 };

struct shared { int on; int samples; double gradient[ROOM]; int seen[RANKS_MOST * PART_MOST]; };

/* The gradient of a step of `samples`; on: rank r has the r-th part, off: all have the first. */
static void sampler_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    static double own[ROOM];
    struct job j = job_of(1, 32);
    struct training t;
    int first = s->on ? rank * s->samples / n : 0;

    j.type = LS_F64;
    j.samples = s->samples;
    training_open(&j, n > 1 ? comm : NULL, 0, &t);
    if (ls_store_elements(t.store) > ROOM) exit(1);
    ls_store_zero_grad(t.store);
    training_micro_batch(&t, 0, first, s->samples, LS_LAST);
    training_update(&t, 0);
    training_read(&t, "gradient", own);
    for (int i = 0; i < s->samples / n; i++) __atomic_add_fetch(&s->seen[first + i], 1, __ATOMIC_RELAXED);
    if (rank == n - 1) memcpy(s->gradient, own, sizeof own);
    training_close(&t);
}

static struct shared *gradient(int n, int samples, int on)
{
    struct shared *s = lab_shared(sizeof *s);

    s->on = on;
    s->samples = samples;
    lab_ranks(n, sampler_run, s);
    return s;
}

static int distinct(const struct shared *s)
{
    int n = 0;

    for (int i = 0; i < RANKS_MOST * PART_MOST; i++) n += s->seen[i] > 0;
    return n;
}

static double apart(const struct shared *a, const struct shared *b)
{
    double most = 0, largest = 0;

    for (int i = 0; i < ROOM; i++) {
        most = fmax(most, fabs(a->gradient[i] - b->gradient[i]));
        largest = fmax(largest, fabs(a->gradient[i]));
    }
    return most / largest;
}

LAB(d6_sampler, "which rank reads which samples", { "ranks", "data-parallel ranks", 4, 2, RANKS_MOST },
    { "batch", "samples of a rank", 6, 1, PART_MOST })
{
    int n = (int)lab_size("ranks"), b = (int)lab_size("batch"), all = n * b;
    struct shared *whole = gradient(1, all, 1), *part = gradient(1, b, 1);
    struct shared *on = gradient(n, all, 1), *off = gradient(n, all, 0);
    char what[80];

    lab_open("D6");
    snprintf(what, sizeof what, "on: distinct samples in a step of %d ranks, %d each", n, b);
    lab_equal(what, all, distinct(on), 0);
    snprintf(what, sizeof what, "on: gradient, off from that of %d samples on one rank by", all);
    lab_equal(what, 0, apart(whole, on), 1e-14);
    lab_equal("off: distinct samples", b, distinct(off), 0);
    snprintf(what, sizeof what, "off: gradient, off from that of %d samples on one rank by", b);
    lab_equal(what, 0, apart(part, off), 1e-14);
    snprintf(what, sizeof what, "off: gradient, off from that of %d samples by more than rounding", all);
    lab_check_above(what, 1e-6, apart(whole, off));
    return lab_close();
}
