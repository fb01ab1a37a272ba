/* D8 - data parallelism with one process that owns the model (DataParallel): in each step rank 0 sends the weights to all ranks,
 * gathers and adds their gradients, and makes the update. Its link carries (K-1) times the model in each direction, the others' links
 * carry it once; a ring loads all links equally, with less than twice the model. And K-1 ranks wait while one adds and updates.
 *
 * That it is unbalanced is certain: the bytes at rank 0 are counted. That it is slower depends: if bandwidth limits, it is, by a factor
 * of K/2; if latency limits, the number of sequential messages decides, and rank 0 has no more of them than the ring has steps. In one
 * machine's memory there are no links, so seconds are printed but not compared. */
#include "lab_train.h"

enum { RANKS_MOST = 16, PART = 6, STEPS = 5, ROOM = 1 << 17 };

struct found { uint64_t out, to_rank_0, elements, messages; double seconds, loss[STEPS]; uint64_t hash; };

static float weights[ROOM], came[ROOM], sum[ROOM];

static void central_move(struct training *t, const char *kind, float *flat, int write)
{
    for (size_t i = 0, at = 0; i < ls_store_count(t->store); at += parameter_count(t->store, i++)) {
        size_t n = parameter_count(t->store, i);

        if (!write) TRY(ls_store_read(t->store, i, kind, flat + at, LS_F32, n));
        else if (kind[0] == 'p') TRY(ls_store_set(t->store, i, flat + at, LS_F32, n));
        else TRY(ls_store_write(t->store, i, kind, flat + at, LS_F32, n));
    }
}

/* One way or the other between rank 0 and everyone. */
static void distributed_weights(ls_comm *comm, struct training *t, int rank, int n, size_t count)
{
    if (rank == 0) central_move(t, "parameter", weights, 0);
    for (int r = 1; r < n && rank == 0; r++) TRY(ls_send(comm, weights, count, LS_F32, r, NULL));
    if (rank == 0) return;
    TRY(ls_recv(comm, weights, count, LS_F32, 0, NULL));
    central_move(t, "parameter", weights, 1);
}

static void gather_gradients(ls_comm *comm, struct training *t, int rank, int n, size_t count)
{
    central_move(t, "gradient", sum, 0);
    if (rank > 0) TRY(ls_send(comm, sum, count, LS_F32, 0, NULL));
    if (rank > 0) return;
    for (int r = 1; r < n; r++) {
        TRY(ls_recv(comm, came, count, LS_F32, r, NULL));
        for (size_t i = 0; i < count; i++) sum[i] += came[i];
    }
    central_move(t, "gradient", sum, 1);
}

/* The net of one rank; its arguments say which part of the batch it takes. */
static void central(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of(2, 64);
    struct training t;
    int part = PART, all = PART * n;
    size_t count;

    j.samples = part;
    training_open(&j, NULL, 0, &t);
    count = ls_store_elements(t.store);
    if (count > ROOM) exit(1);
    f->seconds = -seconds_now();
    for (int s = 0; s < STEPS; s++) {
        distributed_weights(comm, &t, rank, n, count);
        ls_store_zero_grad(t.store);
        f->loss[s] = training_micro_batch(&t, s, rank * part, all, LS_LAST);
        gather_gradients(comm, &t, rank, n, count);
        if (rank == 0) training_update(&t, s);
    }
    f->seconds += seconds_now();
    f->elements = count;
    f->out = sent(comm, LS_COLLECTIVE_SEND);
    f->messages = ls_comm_counters(comm, LS_COLLECTIVE_SEND).calls / STEPS;
    f->to_rank_0 = ls_comm_bytes_to(comm, 0);
    training_close(&t);
}

static void central_ring(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of(2, 64);
    struct training t;

    j.samples = PART * n;
    training_open(&j, comm, 0, &t);
    f->seconds = -seconds_now();
    for (int s = 0; s < STEPS; s++) f->loss[s] = training_step(&t, s);
    f->seconds += seconds_now();
    f->out = sent(comm, LS_COLLECTIVE_ALL_REDUCE);
    f->messages = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE).calls / STEPS;
    training_close(&t);
}

LAB(d8_central, "one process that owns the model", { "ranks", "ranks, one of which owns the model", 4, 2, RANKS_MOST })
{
    int ranks = (int)lab_size("ranks");
    struct found *c = lab_shared(RANKS_MOST * sizeof *c), *d = lab_shared(RANKS_MOST * sizeof *d);
    double into = 0, most = 0, loss[2] = { 0 }, model;
    char what[80];

    lab_ranks(ranks, central, c);
    lab_ranks(ranks, central_ring, d);
    model = 4 * (double)c[0].elements * STEPS;
    lab_say("sent by each rank, in models a step\n%12s %12s %12s\n", "rank", "central", "all-reduce");
    for (int r = 0; r < ranks; r++) {
        lab_say("%12d %12.3f %12.3f\n", r, (double)c[r].out / model, (double)d[r].out / model);
        into += (double)c[r].to_rank_0;
        most = fmax(most, fabs((double)d[r].out / model - 2.0 * (ranks - 1) / ranks));
        loss[0] += c[r].loss[STEPS - 1];
        loss[1] += d[r].loss[STEPS - 1];
    }
    lab_say("%12s %12.4f %12.4f\n\n", "seconds", c[0].seconds, d[0].seconds);
    lab_open("D8");
    snprintf(what, sizeof what, "central, %d ranks: rank 0 sends, in models a step", ranks);
    lab_equal(what, ranks - 1, (double)c[0].out / model, 0);
    lab_equal("       rank 0 receives", ranks - 1, into / model, 0);
    lab_equal("       another rank sends", 1, (double)c[1].out / model, 0);
    lab_check("all-reduce: ranks' bytes off from 2 (K-1)/K models by", 0, most, 1e-3);
    lab_equal("unbalanced: rank 0's bytes / another rank's, central", ranks - 1, (double)c[0].out / (double)c[1].out, 0);
    lab_equal("bandwidth-bound: bytes of the busiest rank, central / all-reduce, K/2", ranks / 2.0,
              ((double)c[0].out + into) / (2.0 * (double)d[0].out), 1e-3);
    lab_corrected("latency-bound: sequential messages per step, central / ring", '>', 1, 1,
                  (double)(c[0].messages + c[1].messages * (ranks - 1)) / (double)(d[0].messages * 2 * (ranks - 1)), 0,
                  "why: rank 0 sends K-1 and receives K-1 messages, a ring takes 2 (K-1) steps: small models are not slower");
    lab_not_measurable("seconds, central / all-reduce",
                       "why: ranks share cores and memory, so no link is loaded and either may be faster (the seconds printed); "
                       "needs a link and a processor for each rank");
    lab_check("the same training: loss of the last step", loss[1], loss[0], 1e-4);
    return lab_close();
}
