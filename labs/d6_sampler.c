/* D6 - each rank sees a different part of the batch. Without the sampler every rank starts at the first sample and all do the same
 * work: K times the cost for the gradient of a batch that is K times smaller. */
#include "lab_train.h"

enum { RANKS = 4, PART = 6, ROOM = 1 << 15 };

struct shared { int on; int samples; double gradient[ROOM]; int seen[RANKS * PART]; };

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

    for (int i = 0; i < RANKS * PART; i++) n += s->seen[i] > 0;
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

LAB(d6_sampler, "who reads which samples")
{
    struct shared *whole = gradient(1, RANKS * PART, 1), *part = gradient(1, PART, 1);
    struct shared *on = gradient(RANKS, RANKS * PART, 1), *off = gradient(RANKS, RANKS * PART, 0);

    lab_open("D6");
    lab_equal("on: distinct samples in a step of 4 ranks, 6 each", RANKS * PART, distinct(on), 0);
    lab_equal("on: gradient, off from that of 24 samples on one rank by", 0, apart(whole, on), 1e-14);
    lab_equal("off: distinct samples", PART, distinct(off), 0);
    lab_equal("off: gradient, off from that of 6 samples on one rank by", 0, apart(part, off), 1e-14);
    lab_check_above("off: gradient, off from that of 24 samples by more than rounding", 1e-6, apart(whole, off));
    return lab_close();
}
