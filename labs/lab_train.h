/* lab_train.h - for the labs of data parallelism: a small Llama, trained on any number of ranks or only planned.
 *
 * Sample i of step s is a function of (s, i): a step's samples are the same on any number of ranks, each of which takes an
 * equal part of them. A token follows from the one before it by a fixed rule, three times in four; the rest is noise.
 */
#ifndef LAB_TRAIN_H
#define LAB_TRAIN_H

#include <string.h>
#include <time.h>
#include "lab.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"

enum { VOCAB = 61, TIME = 16, SAMPLES_MOST = 128, WHOLE_STEP = LS_FORWARD | LS_BACKWARD | LS_LAST | LS_OPTIMIZER_STEP };

struct job {
    ls_model        model;
    ls_dtype        type;
    size_t time;    /* tokens of a sample */
    int samples;    /* samples per step over all ranks */
    int accumulate; /* micro-batches per rank */
    ls_optimizer    optimizer;
    double          lr;
    ls_data_parallel_options data;
};

/* factor: multiplies this rank's gradients, for labs about faults; 0: 1 */
struct training { ls_store *store; ls_program *program; ls_comm *comm; struct job job; int rank, n; double factor; };

/* width: a multiple of 16 */
static inline struct job job_of(size_t layers, size_t width)
{
    struct job j = { { .architecture = LS_LLAMA, .layers = layers, .width = width, .heads = width / 8, .kv_heads = width / 16,
                       .ffn = 2 * width, .vocab = VOCAB, .max_positions = TIME, .norm_eps = 1e-5, .rope = LS_ROPE_DEFAULTS,
                       .init_std = 0.1 },
                     LS_F32, TIME, 24, 1, LS_OPTIMIZER_DEFAULTS, 3e-3, LS_DATA_PARALLEL_DEFAULTS };

    j.optimizer.clip = 0;
    return j;
}

/* comm NULL: this process is the only rank. */
static inline void training_open(const struct job *j, ls_comm *comm, int plan_only, struct training *out)
{
    ls_store_options so = { "cpu", j->type, 1, 1, 0 };
    ls_compile_options co = { .every = 1, .plan_only = plan_only };
    struct training t = { .comm = comm, .job = *j, .n = comm ? ls_comm_size(comm) : 1, .rank = comm ? ls_comm_rank(comm) : 0 };
    size_t batch = (size_t)(j->samples / (t.n * j->accumulate));

    if (j->samples % (t.n * j->accumulate)) {
        fprintf(stderr, "%d samples over %d ranks, %d micro-batches each\n", j->samples, t.n, j->accumulate);
        exit(1);
    }
    TRY(ls_store_new(&so, &t.store));
    TRY(ls_program_new(t.store, &t.program));
    ls_value x = ls_input(t.program, "x", LS_I32, 2, (size_t[]){ batch, j->time });
    ls_value y = ls_input(t.program, "y", LS_I32, 2, (size_t[]){ batch, j->time });
    ls_value tokens = ls_input(t.program, "tokens", LS_F32, 1, (size_t[]){ 1 });
    ls_backward(t.program, ls_output(t.program, "loss", ls_model_loss(t.program, &j->model, x, y, tokens, LS_NONE)));
    TRY(ls_optimizer_append(t.program, &j->optimizer));
    if (comm) TRY(ls_data_parallel(t.program, comm, &j->data));
    TRY(ls_program_compile(t.program, &co));
    *out = t;
}

static inline void training_close(struct training *t)
{
    ls_program_release(&t->program);
    ls_store_release(&t->store);
}

/* ---- a step ---- */

static inline unsigned mixed(unsigned a, unsigned b, unsigned c)
{
    unsigned x = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u;

    x = (x ^ x >> 15) * 2246822519u;
    return (x ^ x >> 13) * 3266489917u >> 8;
}

/* Samples first .. of a step, divided by `whole` samples: forward and backward. Returns the share of the loss. */
static inline double training_micro_batch(struct training *t, int step, int first, int whole, int segments)
{
    static int32_t x[SAMPLES_MOST * TIME], y[SAMPLES_MOST * TIME];
    int batch = t->job.samples / (t->n * t->job.accumulate);
    float tokens = (float)(whole * TIME / (t->factor != 0 ? t->factor : 1));
    double loss;

    for (int i = 0; i < batch; i++) {
        unsigned sample = (unsigned)(first + i), token = mixed((unsigned)step, sample, 0) % VOCAB;

        for (unsigned k = 0; k < TIME; k++) {
            unsigned noise = mixed((unsigned)step, sample, k + 1);

            x[i * TIME + (int)k] = (int32_t)token;
            token = noise % 4 ? (5 * token + 7) % VOCAB : noise / 4 % VOCAB;
            y[i * TIME + (int)k] = (int32_t)token;
        }
    }
    TRY(ls_program_write(t->program, "x", x, LS_I32, (size_t)(batch * TIME)));
    TRY(ls_program_write(t->program, "y", y, LS_I32, (size_t)(batch * TIME)));
    TRY(ls_program_write(t->program, "tokens", &tokens, LS_F32, 1));
    TRY(ls_program_run(t->program, LS_FORWARD | LS_BACKWARD | segments));
    TRY(ls_program_read(t->program, "loss", &loss, LS_F64, 1));
    return loss;
}

static inline void training_update(struct training *t, int step)
{
    TRY(ls_optimizer_set(t->program, &t->job.optimizer, t->job.lr, (uint64_t)step + 1));
    TRY(ls_program_run(t->program, LS_OPTIMIZER_STEP));
}

/* Step 0, 1, ...: this rank's part of its samples and the update. Returns this rank's share of the loss. */
static inline double training_step(struct training *t, int step)
{
    int batch = t->job.samples / (t->n * t->job.accumulate);
    double loss = 0;

    ls_store_zero_grad(t->store);
    for (int k = 0; k < t->job.accumulate; k++)
        loss += training_micro_batch(t, step, (t->rank * t->job.accumulate + k) * batch, t->job.samples,
                                     k == t->job.accumulate - 1 ? LS_LAST : 0);
    training_update(t, step);
    return loss;
}

/* ---- its results ---- */

static inline size_t parameter_count(const ls_store *s, size_t i)
{
    size_t n = 1;

    for (int d = 0; d < ls_store_ndim(s, i); d++) n *= ls_store_size(s, i, d);
    return n;
}

/* kind "parameter", "gradient" or a state of all parameters one after another. Collective where it is sharded. */
static inline void training_read(const struct training *t, const char *kind, double *out)
{
    for (size_t i = 0, at = 0; i < ls_store_count(t->store); at += parameter_count(t->store, i++))
        TRY(ls_store_read(t->store, i, kind, out + at, LS_F64, parameter_count(t->store, i)));
}

/* FNV-1a, 64 bits */
static inline uint64_t hash_of(const void *data, size_t bytes, uint64_t hash)
{
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return hash;
}

/* A hash of the bits of all parameters. Collective if they are sharded. */
static inline uint64_t training_hash(const struct training *t)
{
    size_t n = ls_store_elements(t->store);
    double *w = malloc(n * sizeof *w);

    if (!w) exit(1);
    training_read(t, "parameter", w);
    uint64_t hash = hash_of(w, n * sizeof *w, 14695981039346656037u);
    free(w);
    return hash;
}

static inline double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline uint64_t sent(const ls_comm *comm, ls_collective c) { return ls_comm_counters(comm, c).bytes; }

/* Seconds that a rank spent waiting for others and for bytes, in gradients' and parameters' collectives. */
static inline double exposed(const ls_comm *comm)
{
    return ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE).exposed + ls_comm_counters(comm, LS_COLLECTIVE_ALL_GATHER).exposed
           + ls_comm_counters(comm, LS_COLLECTIVE_REDUCE_SCATTER).exposed;
}

#endif
