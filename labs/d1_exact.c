/* D1 - the average of the gradients of the batch's shards is the gradient of the full batch, without approximation. In double the two
 * agree up to the rounding of the sum; in float too, with an epsilon 2^29 times larger. The same holds with micro-batches in each rank.
 * (Here every rank's loss is divided by the full batch's count, so the average is a sum.) */
#include "lab_train.h"

enum { ROOM = 1 << 15 };

struct shared { struct job job; double gradient[ROOM], loss[4]; };

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

/* Largest difference to one rank's gradient, of its largest element; and that of the loss. */
static double compared(struct shared *one, struct shared *many, ls_dtype type, int n, int accumulate, double *loss)
{
    int known = one->job.samples && one->job.type == type;

    one->job = many->job = job_of(2, 16);
    one->job.type = many->job.type = type;
    many->job.accumulate = accumulate;
    if (!known) lab_ranks(1, exact_run, one);
    lab_ranks(n, exact_run, many);
    *loss = -one->loss[0];
    for (int r = 0; r < n; r++) *loss += many->loss[r];
    return apart(one->gradient, many->gradient);
}

LAB(d1_exact, "the average of gradients is exact")
{
    struct shared *one = lab_shared(sizeof *one), *many = lab_shared(sizeof *many);
    double loss;
    char what[80];

    lab_open("D1");
    for (int n = 2; n <= 4; n++)
        for (int accumulate = 1; accumulate <= 2; accumulate++) {
            snprintf(what, sizeof what, "f64, %d ranks, %d micro-batch%s each: gradients differ by", n, accumulate,
                     accumulate > 1 ? "es" : "");
            lab_equal(what, 0, compared(one, many, LS_F64, n, accumulate, &loss), 1e-14);
            lab_equal("       and the losses, added up", 0, loss, 1e-14);
        }
    lab_equal("f32, 4 ranks: gradients differ by", 0, compared(one, many, LS_F32, 4, 1, &loss), 1e-5);
    return lab_close();
}
