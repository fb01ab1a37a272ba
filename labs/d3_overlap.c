/* D3 - gradients are reduced in buckets of about 25 MB. The all-reduce of a bucket starts as soon as its last gradient is computed,
 * while earlier layers still compute, and only the last bucket is waited for.
 *
 * The program shows the order, for GPT-2's 124M parameters over 4 ranks (or another depth and width). Overlap saves time only if bytes
 * move without the processor; in shared memory the cores that compute also make the sums. bench/overlap.py measures it between two network
 * namespaces with a slow link; here seconds are printed but not compared with the claim, which they may contradict. */
#include "lab_program.h"
#include "lab_train.h"

enum { STEPS = 4, RANKS = 2 };

struct order { int buckets, early, waits_in_backward; double last, most, most_but_last, embedding; };

/* True if the backward segment still has compute after line `at`. */
static int work_behind(const struct instructions *l, int at)
{
    for (int k = at + 1; k < l->n; k++)
        if (l->at[k].segment == LS_BACKWARD && l->at[k].ranks == 0 && !is_op(&l->at[k], "view")) return 1;
    return 0;
}

/* Prints when each bucket starts, by the share of the backward pass's work that is done. */
static struct order order_of(const ls_program *p)
{
    struct instructions l = instructions_of(p);
    struct order o = { 0 };
    double backward = flops_before(&l, LS_BACKWARD, l.n);

    lab_say("%8s %12s %28s %24s\n", "bucket", "MB", "starts after, of backward", "is waited for in");
    for (int k = 0; k < l.n; k++) {
        double share = flops_before(&l, LS_BACKWARD, k) / backward;

        if (!is_op(&l.at[k], "all_reduce")) continue;
        int wait = wait_of(&l, k);
        o.waits_in_backward += wait < 0 || l.at[wait].segment != LS_OPTIMIZER_STEP;
        o.early += work_behind(&l, k);
        o.last = 4 * l.at[k].elements;
        o.most_but_last = o.most;
        o.most = fmax(o.most, o.last);
        lab_say("%8d %12.1f %27.1f%% %24s\n", o.buckets++, o.last / 1e6, 100 * share,
               wait >= 0 && l.at[wait].segment == LS_OPTIMIZER_STEP ? "the update" : "backward");
    }
    free(l.at);
    return o;
}

static struct order plan(const char *preset, int tied)
{
    struct job j = job_of(1, 16);
    struct training t;
    ls_comm *comm;

    TRY(ls_model_preset(preset, &j.model));
    j.model.tied = tied;
    j.model.layers = (size_t)lab_size("layers");
    j.model.width = (size_t)lab_size("width");
    j.model.heads = j.model.kv_heads = j.model.width / 64;
    j.model.ffn = 4 * j.model.width;
    j.time = 1024;
    TRY(ls_comm_open("plan:", 0, 4, &comm));
    lab_say("%s, %s embedding\n", preset, tied ? "tied" : "untied");
    training_open(&j, comm, 1, &t);
    struct order o = order_of(t.program);
    o.embedding = 4.0 * (double)j.model.vocab * (double)j.model.width;
    training_close(&t);
    ls_comm_close(&comm);
    lab_say("\n");
    return o;
}

struct found { double seconds[2], exposed[2], total[2]; uint64_t hash[2], calls[2]; };

static void overlap_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of(4, 64);

    (void)n;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 100000;
    for (int overlap = 0; overlap < 2; overlap++) {
        ls_comm_count before = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE);
        struct training t;

        j.data.overlap = overlap;
        training_open(&j, comm, 0, &t);
        f->seconds[overlap] = -seconds_now();
        for (int s = 0; s < STEPS; s++) training_step(&t, s);
        f->seconds[overlap] += seconds_now();
        ls_comm_count after = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE);
        f->exposed[overlap] = after.exposed - before.exposed;
        f->total[overlap] = after.seconds - before.seconds;
        f->calls[overlap] = after.calls - before.calls;
        f->hash[overlap] = training_hash(&t);
        training_close(&t);
    }
}

LAB(d3_overlap, "all-reduces that overlap with backward", { "layers", "layers of the GPT-2 that is planned", 12, 6, 48 },
    { "width", "its width, a multiple of 64", 768, 512, 1024 })
{
    struct found *f = lab_shared(RANKS * sizeof *f);

    lab_ranks(RANKS, overlap_run, f);
    struct order tied = plan("gpt2-124m", 1);
    struct order untied = plan("gpt2-124m", 0);
    lab_say("%d steps of a small net on %d ranks, shared memory\n%14s %12s %22s %22s\n", STEPS, RANKS, "", "seconds",
           "in all-reduces", "of it exposed");
    for (int overlap = 1; overlap >= 0; overlap--)
        lab_say("%14s %12.4f %22.4f %22.4f\n", overlap ? "overlap" : "wait at once", f->seconds[overlap], f->total[overlap],
               f->exposed[overlap]);
    lab_say("\n");
    lab_open("D3");
    lab_equal("buckets that are waited for during backward", 0, tied.waits_in_backward + untied.waits_in_backward, 0);
    lab_equal("untied: buckets that start before the end of backward, but one", untied.buckets - 1, untied.early, 0);
    lab_equal("tied: buckets that start before the end, but one", tied.buckets - 1, tied.early, 0);
    lab_equal("tied: the largest bucket but the last [MB]", 25, tied.most_but_last / 1e6, 0.1);
    lab_corrected("tied: the last bucket, which overlaps nothing [MB]", '=', 25, tied.embedding / 1e6, tied.last / 1e6, 0.01,
                  "why: the gradient of a tied embedding is complete only at the end of backward");
    lab_not_measurable("seconds saved by overlap",
                       "why: in shared memory the cores that compute also copy the bytes, so overlap may cost time (the seconds printed); "
                       "needs a link that transfers by itself, as in bench/overlap.py");
    lab_check("weights are the same with and without overlap: hashes that differ", 0, f[0].hash[0] != f[0].hash[1], 0);
    lab_check("all-reduces with and without overlap: difference", 0, (double)(f[0].calls[0] - f[0].calls[1]), 0);
    return lab_close();
}
