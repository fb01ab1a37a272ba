/* D1 - the average of the gradients of the batch's shards is the gradient of the full batch, without approximation. In double the two
 * agree up to the rounding of the sum; in float too, with an epsilon 2^29 times larger. The same holds with micro-batches in each rank.
 * (Here every rank's loss is divided by the full batch's count, so the average is a sum.)
 *
 * Shards of unequal size are another matter: the mean of their means is not the batch's mean; it is if each has the weight of its size. */
#include "lab_train.h"

enum { ROOM = 1 << 15, RANKS_MOST = 8, PART = 6, SHARD = 6, BATCH = 24 };

struct shared { struct job job; double gradient[ROOM], loss[RANKS_MOST]; };

static void exact_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    static double own[ROOM];
    struct training t;

    training_open(&s->job, n > 1 ? comm : NULL, 0, &t);
    if (ls_store_elements(t.store) > ROOM) exit(1);
    s->loss[rank] = training_step(&t, 0);
    training_read(&t, "gradient", own);
    if (rank == n - 1) memcpy(s->gradient, own, sizeof own);
    training_close(&t);
}

static double apart(const double *a, const double *b)
{
    double most = 0, largest = 0;

    for (int i = 0; i < ROOM; i++) {
        most = fmax(most, fabs(a[i] - b[i]));
        largest = fmax(largest, fabs(a[i]));
    }
    return most / largest;
}

/* Largest difference to one rank's gradient, relative to its largest element; and that of the loss. */
static double compared(struct shared *one, struct shared *many, ls_dtype type, int samples, int n, int accumulate, double *loss)
{
    int known = one->job.samples == samples && one->job.type == type;

    one->job = many->job = job_of(2, 16);
    one->job.samples = many->job.samples = samples;
    one->job.type = many->job.type = type;
    many->job.accumulate = accumulate;
    if (!known) lab_ranks(1, exact_run, one);
    lab_ranks(n, exact_run, many);
    *loss = -one->loss[0];
    for (int r = 0; r < n; r++) *loss += many->loss[r];
    return apart(one->gradient, many->gradient);
}

/* The mean gradient of samples first .. first + samples of step 0. */
static void shard_gradient(int first, int samples, double *out)
{
    struct job j = job_of(2, 16);
    struct training t;

    j.type = LS_F64;
    j.samples = samples;
    training_open(&j, NULL, 0, &t);
    if (ls_store_elements(t.store) > ROOM) exit(1);
    ls_store_zero_grad(t.store);
    training_micro_batch(&t, 0, first, samples, LS_LAST);
    training_read(&t, "gradient", out);
    training_close(&t);
}

/* A batch of 24 in shards of 6 and 18: the average of their means, off from the batch's mean, with and without weights. */
static void unequal_run(ls_comm *comm, int rank, int n, void *shared)
{
    static double whole[ROOM], few[ROOM], many[ROOM], plain[ROOM], weighted[ROOM];

    (void)comm, (void)rank, (void)n;
    shard_gradient(0, BATCH, whole);
    shard_gradient(0, SHARD, few);
    shard_gradient(SHARD, BATCH - SHARD, many);
    for (int i = 0; i < ROOM; i++) {
        plain[i] = (few[i] + many[i]) / 2;
        weighted[i] = (SHARD * few[i] + (BATCH - SHARD) * many[i]) / BATCH;
    }
    ((double *)shared)[0] = apart(whole, plain);
    ((double *)shared)[1] = apart(whole, weighted);
}

LAB(d1_exact, "the average of gradients is exact", { "ranks", "ranks of the row in float", 4, 2, RANKS_MOST })
{
    struct shared *one = lab_shared(sizeof *one), *many = lab_shared(sizeof *many);
    double loss, *unequal = lab_shared(2 * sizeof *unequal);
    int ranks = (int)lab_size("ranks");
    char what[80];

    lab_open("D1");
    for (int n = 2; n <= 4; n++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            snprintf(what, sizeof what, "f64, %d ranks, %d micro-batch%s each: gradients differ by", n, accumulate,
                     accumulate > 1 ? "es" : "");
            lab_equal(what, 0, compared(one, many, LS_F64, BATCH, n, accumulate, &loss), 1e-14);
            lab_equal("       and the losses, added up", 0, loss, 1e-14);
        }
    snprintf(what, sizeof what, "f32, %d ranks: gradients differ by", ranks);
    lab_equal(what, 0, compared(one, many, LS_F32, PART * ranks, ranks, 1, &loss), 1e-5);
    lab_ranks(1, unequal_run, unequal);
    lab_check_above("shards of 6 and 18 samples: average of their means, off by more than rounding", 1e-3, unequal[0]);
    lab_check("       each with the weight of its size: off by", 0, unequal[1], 1e-14);
    return lab_close();
}
