/* D9 - asynchronous updates use stale gradients: noisier.
 *
 * Rank 0 keeps the weights and four workers compute gradients, in three ways, on the same samples:
 *
 *     together   every worker gets the same weights; the server waits for all, averages and updates once (synchronous)
 *     stale      the server updates with each gradient as it arrives and answers that worker with the new weights; the gradient was
 *                computed three updates ago. Workers are served in turn, so that the lab repeats; real servers take them as they come
 *     in turn    one worker, the same small batches one after another, each gradient computed with the current weights
 *
 * "stale" differs from "in turn" only by staleness, from "together" also by the size of its batches. */
#include "lab_train.h"

enum { WORKERS = 4, WORKERS_MOST = 8, UPDATES = 240, EVERY = WORKERS, POINTS = UPDATES / EVERY, BATCH = 4, ROOM = 1 << 14 };
enum { EXAM = 16, EXAM_STEP = 1 << 20 };  /* batches, which no way trains on */

enum way { TOGETHER, STALE, IN_TURN, WAYS };

struct shared { enum way way; double lr, loss[POINTS], late; int after; uint64_t hash; };  /* after: updates, sum of the second half */

static float weights[ROOM], gradient[ROOM];
static double came[ROOM];

static void flat(struct training *t, const char *kind, float *x, int write)
{
    for (size_t i = 0, at = 0; i < ls_store_count(t->store); at += parameter_count(t->store, i++)) {
        size_t n = parameter_count(t->store, i);

        if (!write) TRY(ls_store_read(t->store, i, kind, x + at, LS_F32, n));
        else if (kind[0] == 'p') TRY(ls_store_set(t->store, i, x + at, LS_F32, n));
        else TRY(ls_store_write(t->store, i, kind, x + at, LS_F32, n));
    }
}

/* The gradient of batch k at the weights that the program has. */
static void compute(struct training *t, int k)
{
    ls_store_zero_grad(t->store);
    training_micro_batch(t, k, 0, BATCH, LS_LAST);
    flat(t, "gradient", gradient, 0);
}

static void worker(ls_comm *comm, struct training *t, int rank, int n, size_t count)
{
    for (int k = rank - 1; k < UPDATES; k += n - 1) {
        TRY(ls_recv(comm, weights, count, LS_F32, 0, NULL));
        flat(t, "parameter", weights, 1);
        compute(t, k);
        TRY(ls_send(comm, gradient, count, LS_F32, 0, NULL));
    }
}

/* ---- the server ---- */

static void hand_out(ls_comm *comm, struct training *t, int to, size_t count)
{
    flat(t, "parameter", weights, 0);
    TRY(ls_send(comm, weights, count, LS_F32, to, NULL));
}

static void stale_apply(struct training *t, size_t count, int parts)
{
    for (size_t i = 0; i < count; i++) gradient[i] = (float)(came[i] / parts);
    flat(t, "gradient", gradient, 1);
    TRY(ls_optimizer_set(t->program, &t->job.optimizer, t->job.lr, 1));
    ls_program_run(t->program, LS_OPTIMIZER_STEP);  /* refused where the gradient is NaN: training that diverged goes no further */
}

static double exam(struct training *t)
{
    double loss = 0;

    for (int i = 0; i < EXAM; i++) loss += training_micro_batch(t, EXAM_STEP + i, 0, BATCH * EXAM, LS_LAST);
    return loss;
}

/* How far the gradient that came for batch k is from the one at the present weights, of its length. */
static double lateness(struct training *t, int k, size_t count)
{
    double off = 0, length = 0;

    compute(t, k);
    for (size_t i = 0; i < count; i++) {
        off += pow(came[i] - gradient[i], 2);
        length += pow(gradient[i], 2);
    }
    return sqrt(off / length);
}

static void receive(ls_comm *comm, int from, size_t count)
{
    TRY(ls_recv(comm, gradient, count, LS_F32, from, NULL));
    for (size_t i = 0; i < count; i++) came[i] += gradient[i];
}

static void serve(ls_comm *comm, struct training *t, int workers, struct shared *s, size_t count)
{
    int updates = 0, handed_at[WORKERS_MOST + 1] = { 0 };

    for (int r = 1; r <= workers; r++) hand_out(comm, t, r, count);
    for (int k = 0; k < UPDATES; k++) {
        int from = 1 + k % workers, last = s->way != TOGETHER || from == workers;

        if (s->way != TOGETHER || from == 1) memset(came, 0, sizeof came);
        receive(comm, from, count);
        if (k >= UPDATES / 2) s->after += updates - handed_at[from];
        if (s->way != TOGETHER) s->late += lateness(t, k, count) / UPDATES;
        if (last) stale_apply(t, count, s->way == TOGETHER ? workers : 1);
        updates += last;
        for (int r = s->way == TOGETHER ? 1 : from; r <= from && last; r++)
            if (k + 1 + (s->way == TOGETHER ? 0 : workers - 1) < UPDATES) {
                hand_out(comm, t, r, count);
                handed_at[r] = updates;
            }
        if (k % EVERY == EVERY - 1) s->loss[k / EVERY] = exam(t);
    }
}

static void stale_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct shared *s = shared;
    struct job j = job_of(1, 16);
    struct training t;
    size_t count;

    j.samples = BATCH;
    j.optimizer = (ls_optimizer){ .kind = LS_SGD };
    j.lr = s->lr;
    training_open(&j, NULL, 0, &t);
    count = ls_store_elements(t.store);
    if (count > ROOM) exit(1);
    if (rank > 0) worker(comm, &t, rank, n, count);
    else serve(comm, &t, n - 1, s, count);
    if (rank == 0) s->hash = training_hash(&t);
    training_close(&t);
}

/* ---- the curves ---- */

/* Deviation between neighbours in the second half, where the curves are flat. */
static double noise(const double *loss)
{
    double sum = 0;

    for (int i = POINTS / 2 + 1; i < POINTS; i++) sum += pow(loss[i] - loss[i - 1], 2);
    return sqrt(sum / (POINTS - POINTS / 2 - 1) / 2);
}

static double mean(const double *loss, int from, int to)
{
    double sum = 0;

    for (int i = from; i < to; i++) sum += loss[i];
    return sum / (to - from);
}

/* All its steps upwards in the first quarter. */
static double rises(const struct shared *s)
{
    double sum = 0;

    for (int i = 1; i < POINTS / 4; i++) sum += fmax(0, s->loss[i] - s->loss[i - 1]);
    return sum;
}

static struct shared *stale_train(enum way way, double lr, int workers)
{
    struct shared *s = lab_shared(sizeof *s);

    s->way = way;
    s->lr = lr;
    lab_ranks(way == IN_TURN ? 2 : workers + 1, stale_run, s);
    return s;
}

static void print_curves(struct shared *const *s)
{
    lab_say("loss by samples seen, learning rate %g\n%10s %12s %12s %12s\n", s[0]->lr, "samples", "together", "stale", "in turn");
    for (int i = 0; i < POINTS; i += i < 16 ? 2 : 8)
        lab_say("%10d %12.4f %12.4f %12.4f\n", (i + 1) * EVERY * BATCH, s[TOGETHER]->loss[i], s[STALE]->loss[i],
               s[IN_TURN]->loss[i]);
    lab_say("%10s %12.5f %12.5f %12.5f\n\n", "noise", noise(s[TOGETHER]->loss), noise(s[STALE]->loss), noise(s[IN_TURN]->loss));
}

LAB(d9_stale, "asynchronous updates", { "ranks", "workers of the last row", WORKERS, 2, WORKERS_MOST })
{
    struct shared *s[WAYS], *fast[WAYS], *again;
    int workers = (int)lab_size("ranks");
    char what[80];

    for (int w = 0; w < WAYS; w++) s[w] = stale_train((enum way)w, 1, WORKERS);
    for (int w = 0; w < WAYS; w++) fast[w] = stale_train((enum way)w, 2, WORKERS);
    again = stale_train(STALE, 1, WORKERS);
    print_curves(s);
    print_curves(fast);
    lab_open("D9");
    lab_equal("stale: a gradient is after by, workers - 1 [updates]", WORKERS - 1, s[STALE]->after / (UPDATES / 2.0), 0);
    lab_check("in turn: after by [updates]", 0, s[IN_TURN]->after / (UPDATES / 2.0), 0);
    lab_check("       gradient, off from the present one by, of its length", 0, s[IN_TURN]->late, 0);
    lab_above("rate 1, stale: gradient, off from the present one by, of its length", 0, s[STALE]->late);
    lab_above("       noise on the way down: the loss rises by, more than together's", rises(s[TOGETHER]), rises(s[STALE]));
    lab_above("       more than in turn's", rises(s[IN_TURN]), rises(s[STALE]));
    lab_above("       mean loss of the first quarter / in turn's", 1,
              mean(s[STALE]->loss, 0, POINTS / 4) / mean(s[IN_TURN]->loss, 0, POINTS / 4));
    lab_check("       noise at the end, small batches', / in turn's: alike", 1, noise(s[STALE]->loss) / noise(s[IN_TURN]->loss), 0.5);
    lab_below("rate 2, together: loss at the end / at the start", 1, fast[TOGETHER]->loss[POINTS - 1] / fast[TOGETHER]->loss[0]);
    lab_below("       in turn: the same", 1, fast[IN_TURN]->loss[POINTS - 1] / fast[IN_TURN]->loss[0]);
    lab_equal("       stale: it diverges", 1, !(fast[STALE]->loss[POINTS - 1] < fast[STALE]->loss[0]), 0);
    lab_check("rate 1, stale, once more: weights that differ", 0, again->hash != s[STALE]->hash, 0);
    snprintf(what, sizeof what, "%d workers in turn: updates between a gradient's weights and its use", workers);
    lab_equal(what, workers - 1, stale_train(STALE, 1, workers)->after / (UPDATES / 2.0), 0);
    return lab_close();
}
