/* D2 - gradients are synchronized, not parameters: every rank makes the same update from the same sum, so the weights stay bitwise
 * equal on all ranks although they are never sent.
 *
 * Averaging the weights after each step instead is the same only for plain SGD, whose update is linear in the gradient: with AdamW each
 * rank's moments have seen other gradients. And every rank holds all of the state, so more ranks do not make room for a larger model. */
#include "lab_train.h"

enum { STEPS = 5, RANKS_MOST = 16, PART = 6, AVERAGED_RANKS = 2, AVERAGED_STEPS = 3, ROOM = 1 << 15 };

struct found { uint64_t hash[STEPS], reduced, others, elements; };

static struct job replicas_job(int n)
{
    struct job j = job_of((size_t)lab_size("layers"), (size_t)lab_size("width"));

    j.samples = PART * n;
    return j;
}

static void replicas_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = replicas_job(n);
    struct training t;

    training_open(&j, comm, 0, &t);
    for (int s = 0; s < STEPS; s++) {
        training_step(&t, s);
        f->hash[s] = training_hash(&t);
    }
    for (int c = 0; c < LS_COLLECTIVES; c++)
        *(c == LS_COLLECTIVE_ALL_REDUCE ? &f->reduced : &f->others) += sent(comm, (ls_collective)c);
    f->elements = ls_store_elements(t.store);
    training_close(&t);
}

/* ---- averaging weights ---- */

static const ls_optimizer sgd = { .kind = LS_SGD }, adamw = LS_OPTIMIZER_DEFAULTS;

/* Weights after some steps; by_weights: each rank updates by its own gradient, and the weights are averaged. */
static void average_train(ls_comm *comm, int rank, int n, const ls_optimizer *o, int by_weights, double *w)
{
    struct job j = job_of(1, 16);
    struct training t;

    j.type = LS_F64;
    j.optimizer = *o;
    j.optimizer.clip = 0;
    j.samples = by_weights ? PART : PART * n;
    training_open(&j, by_weights ? NULL : comm, 0, &t);
    if (ls_store_elements(t.store) > ROOM) exit(1);
    for (int s = 0; s < AVERAGED_STEPS; s++) {
        ls_store_zero_grad(t.store);
        training_micro_batch(&t, s, rank * PART, j.samples, LS_LAST);
        training_update(&t, s);
        training_read(&t, "parameter", w);
        if (by_weights) TRY(ls_all_reduce(comm, w, w, ls_store_elements(t.store), LS_F64, LS_AVG, NULL));
        for (size_t i = 0, at = 0; i < ls_store_count(t.store); at += parameter_count(t.store, i++))
            TRY(ls_store_set(t.store, i, w + at, LS_F64, parameter_count(t.store, i)));
    }
    training_close(&t);
}

/* The difference of the two ways relative to the largest weight, with SGD and AdamW. */
static void average_run(ls_comm *comm, int rank, int n, void *shared)
{
    static double weights[ROOM], gradients[ROOM];
    double *apart = shared;

    for (int k = 0; k < 2; k++) {
        double most = 0, largest = 0;

        average_train(comm, rank, n, k ? &adamw : &sgd, 0, gradients);
        average_train(comm, rank, n, k ? &adamw : &sgd, 1, weights);
        for (int i = 0; i < ROOM; i++) {
            most = fmax(most, fabs(weights[i] - gradients[i]));
            largest = fmax(largest, fabs(gradients[i]));
        }
        if (rank == 0) apart[k] = most / largest;
    }
}

/* ---- the largest model ---- */

struct state { double parameters, bytes, gradients; };

/* What one of n ranks holds of a model of width 2048, bf16 with AdamW under DDP. */
static struct state state_of(int n, size_t layers)
{
    struct job j = job_of(layers, 2048);
    struct training t;
    ls_comm *comm;

    j.type = LS_BF16;
    j.model.heads = j.model.kv_heads = 16;
    j.model.ffn = 5504;
    j.model.vocab = 32000;
    j.samples = n;
    TRY(ls_comm_open("plan:", 0, n, &comm));
    training_open(&j, comm, 1, &t);
    ls_cost c = ls_program_cost(t.program);
    struct state out = { (double)ls_store_elements(t.store), (double)(c.parameters + c.gradients + c.optimizer), (double)c.gradients };
    training_close(&t);
    ls_comm_close(&comm);
    return out;
}

static double d2_bytes_of(struct state s, int two_bytes) { return s.bytes - (two_bytes ? s.gradients / 2 : 0); }

/* The deepest model whose state fits; two_bytes: gradients counted with 2 bytes instead of their 4. *layer: a layer's parameters. */
static struct state largest_model(int n, double room, int two_bytes, double *layer)
{
    struct state two = state_of(n, 2), four = state_of(n, 4), fits, next;
    double each = (d2_bytes_of(four, two_bytes) - d2_bytes_of(two, two_bytes)) / 2;
    size_t layers = 2 + (size_t)((room - d2_bytes_of(two, two_bytes)) / each); /* about */

    *layer = (four.parameters - two.parameters) / 2;
    while (d2_bytes_of(fits = state_of(n, layers), two_bytes) > room) layers--;
    while (d2_bytes_of(next = state_of(n, layers + 1), two_bytes) <= room) fits = next, layers++;
    return fits;
}

static void largest_models(void)
{
    double memory = (double)lab_size("memory") * 1e9, layer;
    int n = (int)lab_size("ranks");
    char what[96];

    for (int two = 1; two >= 0; two--) {
        snprintf(what, sizeof what, "largest model on %d GPUs of %ld GB, gradients of %d bytes: state alone [billion]", n,
                 lab_size("memory"), two ? 2 : 4);
        double limit = memory / (two ? 16 : 18), largest = largest_model(n, memory, two, &layer).parameters;
        lab_check(what, limit / 1e9, largest / 1e9, 1.01 * layer / limit);
    }
}

LAB(d2_replicas, "replicas stay identical", { "ranks", "data-parallel ranks", 4, 2, RANKS_MOST },
    { "layers", "layers of the model that is trained", 2, 1, 4 }, { "width", "its width, a multiple of 16", 32, 16, 64 },
    { "memory", "GB of a GPU that is planned for", 80, 16, 192 })
{
    int ranks = (int)lab_size("ranks");
    struct found *f = lab_shared(RANKS_MOST * sizeof *f);
    double *apart = lab_shared(2 * sizeof *apart);
    int differ = 0, same = 0;
    uint64_t reduced = 0, others = 0;
    char what[80];

    lab_ranks(ranks, replicas_run, f);
    lab_ranks(AVERAGED_RANKS, average_run, apart);
    lab_say("hash of all weights\n%6s", "step");
    for (int r = 0; r < ranks; r++) lab_say("           rank %2d", r);
    for (int s = 0; s < STEPS; s++) {
        lab_say("\n%6d", s + 1);
        for (int r = 0; r < ranks; r++) {
            lab_say("  %016llx", (unsigned long long)f[r].hash[s]);
            differ += f[r].hash[s] != f[0].hash[s];
        }
        same += s > 0 && f[0].hash[s] == f[0].hash[s - 1];
    }
    for (int r = 0; r < ranks; r++) {
        reduced += f[r].reduced;
        others += f[r].others;
    }
    lab_say("\n\n");
    lab_open("D2");
    lab_equal("ranks whose weights differ from rank 0's, over 5 steps", 0, differ, 0);
    lab_check("steps that left the weights as they were", 0, same, 0);
    lab_equal("gradients sent in a step, all ranks: 2 (K-1) 4 N [bytes]", 2.0 * (ranks - 1) * 4 * (double)f->elements,
              (double)reduced / STEPS, 0);
    snprintf(what, sizeof what, "       by each of %d ranks, 2 (K-1)/K [of the gradients]", ranks);
    lab_check(what, 2.0 * (ranks - 1) / ranks, (double)reduced / STEPS / ranks / (4 * (double)f->elements), 1e-9);
    lab_equal("anything else, weights say [bytes]", 0, (double)others, 0);
    lab_check("averaging the weights instead, SGD: weights off by", 0, apart[0], 1e-12);
    lab_check_above("       AdamW: off by, more than rounding", 1e-4, apart[1]);
    largest_models();
    return lab_close();
}
