/* F1 - a loss spike (a batch with a gradient that is far too large): clipping bounds what it does, warm-up makes early ones small, a roll
 * back undoes it, and a batch whose gradient is not finite is skipped; on all ranks alike, or the replicas part.
 *
 * Two ranks (or more) train with SGD. In one step the gradient of rank 1's samples is multiplied by 1,000, in another it is NaN. */
#include "lab_train.h"

enum { RANKS_MOST = 8, SPIKE = 4 };

struct spike {
    double usual, moved;          /* norm of an update before, and of the spike's */
    double norm;                  /* norm of the gradient over all ranks */
    uint64_t before, after, back; /* hashes of the weights: before the spike, after it, and after the roll back */
    int refused;
};

static double distance(const double *a, const double *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sqrt(sum);
}

/* Trains to the spike with this clipping and learning rate, and through it. */
static void spike_run(ls_comm *comm, int rank, struct spike *out, double factor, double clip, double warm)
{
    struct job j = job_of((size_t)lab_size("layers"), (size_t)lab_size("width"));
    struct training t;

    j.samples = 12 * ls_comm_size(comm);
    j.optimizer.kind = LS_SGD;
    j.optimizer.momentum = j.optimizer.weight_decay = 0;
    j.optimizer.clip = clip;
    training_open(&j, comm, 0, &t);
    size_t n = ls_store_elements(t.store);
    double *was = malloc(n * sizeof *was), *is = malloc(n * sizeof *is);
    if (!was || !is) exit(1);
    for (int s = 0; s <= SPIKE; s++) {
        int batch = j.samples / t.n;

        training_read(&t, "parameter", was);
        out->before = training_hash(&t);
        ls_store_zero_grad(t.store);
        t.factor = s == SPIKE && rank == 1 ? factor : 0;
        training_micro_batch(&t, s, rank * batch, j.samples, LS_LAST);
        TRY(ls_optimizer_set(t.program, &j.optimizer, s == SPIKE ? j.lr * warm : j.lr, (uint64_t)s + 1));
        out->refused = ls_program_run(t.program, LS_OPTIMIZER_STEP) == LS_EINVAL;
        out->norm = ls_optimizer_norm(t.program);
        training_read(&t, "parameter", is);
        out->after = training_hash(&t);
        if (s < SPIKE) out->usual = distance(was, is, n);
    }
    out->moved = distance(was, is, n);
    for (size_t i = 0, at = 0; i < ls_store_count(t.store); at += parameter_count(t.store, i++))
        TRY(ls_store_set(t.store, i, was + at, LS_F64, parameter_count(t.store, i)));
    out->back = training_hash(&t);
    free(was);
    free(is);
    training_close(&t);
}

/* Each with its own row of the shared memory: factor, clip, warm. */
static const double trial[][3] = { { 1000, 0, 1 }, { 1000, 1, 1 }, { 1000, 0, 0.01 }, { NAN, 1, 1 } };
enum { PLAIN, CLIPPED, WARMED, BROKEN, TRIALS };

static void spike_rank(ls_comm *comm, int rank, int n, void *shared)
{
    for (int k = 0; k < TRIALS; k++) spike_run(comm, rank, (struct spike *)shared + k * n + rank, trial[k][0], trial[k][1], trial[k][2]);
}

LAB(f1_spike, "a loss spike, and a batch that is not finite", { "ranks", "ranks", 2, 2, RANKS_MOST },
    { "layers", "layers of the model", 2, 1, 8 }, { "width", "its width, a multiple of 16", 32, 16, 256 })
{
    int ranks = (int)lab_size("ranks"), skip = 0, changed = 0, differ = 0, rolled = 0;
    struct spike *a = lab_shared((size_t)(TRIALS * ranks) * sizeof *a), *b = a + CLIPPED * ranks, *c = a + WARMED * ranks,
                 *d = a + BROKEN * ranks;
    double lr = job_of(2, 32).lr;

    if (lab_size("width") % 16) {
        fprintf(stderr, "width %ld is not a multiple of 16\n", lab_size("width"));
        return 1;
    }
    lab_ranks(ranks, spike_rank, a);
    for (int r = 0; r < ranks; r++) {
        skip += d[r].refused;
        changed += d[r].before != d[r].after;
        differ += (a[r].after != a[0].after) + (b[r].after != b[0].after) + (c[r].after != c[0].after);
        rolled += a[r].back != a[0].before;
    }
    lab_open("F1");
    lab_check_above("the spike's update / the one before it, no clipping", 100, a->moved / a->usual);
    lab_equal("clipping at 1: norm of the update / learning rate", 1, b->moved / lr, 1e-3);
    lab_equal("warm-up, 1% of the learning rate: the spike's update / without", 0.01, c->moved / a->moved, 1e-3);
    lab_equal("NaN on rank 1 alone: ranks that skip the update", ranks, skip, 0);
    lab_equal("NaN on rank 1 alone: ranks whose weights changed, bit for bit", 0, changed, 0);
    lab_equal("ranks whose weights differ from rank 0's after a spike, clipped or not", 0, differ, 0);
    lab_equal("rolled back, ranks whose weights differ from those before the spike", 0, rolled, 0);
    return lab_close();
}
