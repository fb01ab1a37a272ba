/* D4 - small buckets start early but cost overhead, large ones use the bandwidth but start late.
 *
 * A GPT-2 of 92M parameters over 8 ranks is planned: how many all-reduces there are, when the first begins, and how long a modeled
 * link is still busy after a backward of half a second. The link takes one bucket at a time: 2.8 ms (the ring's 14 steps of 0.2 ms),
 * and 2 D (K-1)/K bytes at 1.25 GB/s. Then a small net is run with three bucket sizes: seconds are printed but not compared with the
 * claim (bench/overlap.py does that on a slow link).
 *
 * Corrected: gradients of 7B in bf16 are 560 times 25 MB but not 560 buckets. A bucket holds whole tensors, and most of them are larger. */
#include "lab_program.h"
#include "lab_train.h"

enum { RANKS = 2, STEPS = 4, SIZES_TRIED = 7, SIZES_RUN = 3 };

static const double LATENCY = 2.8e-3, BANDWIDTH = 1.25e9, BACKWARD = 0.5;

struct priced { size_t calls, bytes; double first, late, exposed; };

/* Simulates the link, which takes the buckets in the order of their starts. */
static void buckets_play(const ls_program *p, int n, struct priced *out)
{
    struct instructions l = instructions_of(p);
    double backward = flops_before(&l, LS_BACKWARD, l.n), free_at = 0;
    int seen = 0;

    for (int k = 0; k < l.n; k++) {
        double ready = flops_before(&l, LS_BACKWARD, k) / backward * BACKWARD;

        if (!is_op(&l.at[k], "all_reduce")) continue;
        if (!seen++) out->first = ready / BACKWARD;
        free_at = fmax(free_at, ready) + LATENCY + 2 * 4 * (double)l.at[k].elements * (n - 1) / n / BANDWIDTH;
    }
    out->exposed = free_at - BACKWARD;
    free(l.at);
}

static struct priced buckets_price(size_t bucket)
{
    struct job j = job_of(1, 16);
    struct priced out = { 0 };
    struct training t;
    ls_comm *comm;

    TRY(ls_model_preset("gpt2-124m", &j.model));
    j.model.tied = 0; /* else the embedding's bucket comes last, whatever its size (D3) */
    j.model.vocab = 8192;
    j.time = 1024;
    j.data.bucket_bytes = j.data.first_bucket_bytes = bucket;
    TRY(ls_comm_open("plan:", 0, 8, &comm));
    training_open(&j, comm, 1, &t);
    out.bytes = ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_REDUCE, &out.calls);
    buckets_play(t.program, 8, &out);
    training_close(&t);
    ls_comm_close(&comm);
    return out;
}

struct found { double seconds[SIZES_RUN], exposed[SIZES_RUN]; uint64_t calls[SIZES_RUN], bytes[SIZES_RUN], hash[SIZES_RUN]; };

static const size_t run_with[SIZES_RUN] = { 4000, 100000, 100000000 };

static void buckets_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct found *f = (struct found *)shared + rank;
    struct job j = job_of(4, 64);

    (void)n;
    for (int i = 0; i < SIZES_RUN; i++) {
        ls_comm_count before = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE);
        struct training t;

        j.data.bucket_bytes = j.data.first_bucket_bytes = run_with[i];
        training_open(&j, comm, 0, &t);
        f->seconds[i] = -seconds_now();
        for (int s = 0; s < STEPS; s++) training_step(&t, s);
        f->seconds[i] += seconds_now();
        ls_comm_count after = ls_comm_counters(comm, LS_COLLECTIVE_ALL_REDUCE);
        f->exposed[i] = after.exposed - before.exposed;
        f->calls[i] = (after.calls - before.calls) / STEPS;
        f->bytes[i] = (after.bytes - before.bytes) / STEPS;
        f->hash[i] = training_hash(&t);
        training_close(&t);
    }
}

static void print_run(const struct found *f)
{
    lab_say("%d steps of a small net on %d ranks, shared memory\n%12s %8s %12s %12s %12s\n", STEPS, RANKS, "bucket", "calls",
           "bytes a step", "seconds", "exposed");
    for (int i = 0; i < SIZES_RUN; i++)
        lab_say("%10.3fMB %8llu %12llu %12.4f %12.4f\n", (double)run_with[i] / 1e6, (unsigned long long)f->calls[i],
               (unsigned long long)f->bytes[i], f->seconds[i], f->exposed[i]);
}

struct seven { double parameters, smallest; size_t tensors, calls; };  /* smallest: bytes of the smallest matrix's gradient */

/* A Llama of 7 billion parameters, in buckets of so many bytes of 2-byte gradients. They are f32 here, in buckets of twice the bytes. */
static struct seven buckets_of_7b(double bytes)
{
    struct job j = job_of(32, 4096);
    struct training t;
    ls_comm *comm;
    struct seven out = { .smallest = 2.0 * 4096 * 4096 };

    j.model.heads = j.model.kv_heads = 32;
    j.model.ffn = 11674;
    j.model.vocab = 32000;
    j.data.bucket_bytes = j.data.first_bucket_bytes = (size_t)(2 * bytes);
    TRY(ls_comm_open("plan:", 0, 8, &comm));
    training_open(&j, comm, 1, &t);
    ls_program_comm_bytes(t.program, WHOLE_STEP, LS_COLLECTIVE_ALL_REDUCE, &out.calls);
    out.parameters = (double)ls_store_elements(t.store);
    out.tensors = ls_store_count(t.store);
    training_close(&t);
    ls_comm_close(&comm);
    return out;
}

/* If every bucket is smaller than a matrix, each tensor has its own: a bucket holds whole tensors. */
static void print_seven(double size)
{
    struct seven s = buckets_of_7b(size);
    double full = ceil(2 * s.parameters / size - 1e-3);
    char what[80];

    lab_say("7B is %.4f billion parameters in %zu tensors\n", s.parameters / 1e9, s.tensors);
    snprintf(what, sizeof what, "7B, gradients of 2 bytes, buckets of %g MB: all-reduces", size / 1e6);
    if (size < s.smallest)
        lab_corrected(what, '=', full, (double)s.tensors, (double)s.calls, 0,
                      "why: a bucket holds whole tensors, and the smallest matrix has 34 MB; the claim divides all bytes by a bucket's");
    else lab_check_below(what, (double)s.tensors, (double)s.calls);
}

LAB(d4_buckets, "bucket sizes", { "bucket-mb", "MB of a bucket, of the row of 7B", 25, 1, 1000 })
{
    static const double megabytes[SIZES_TRIED] = { 0.001, 2, 8, 25, 75, 200, 1000 };
    struct found *f = lab_shared(RANKS * sizeof *f);
    struct priced p[SIZES_TRIED];
    int best = 0, order = 0;

    lab_ranks(RANKS, buckets_run, f);
    print_run(f);
    lab_say("\nGPT-2 of 92M parameters on 8 ranks, backward of %g s, link of %g GB/s and %g ms a call\n%12s %8s %14s %20s %16s\n",
           BACKWARD, BANDWIDTH / 1e9, LATENCY * 1e3, "bucket", "calls", "bytes a step", "first starts after", "exposed seconds");
    for (int i = 0; i < SIZES_TRIED; i++) {
        p[i] = buckets_price((size_t)(megabytes[i] * 1e6));
        best = p[i].exposed < p[best].exposed ? i : best;
        order += i > 0 && (p[i].calls > p[i - 1].calls || p[i].first < p[i - 1].first || p[i].bytes != p[0].bytes);
        lab_say("%10.3fMB %8zu %14zu %18.1f %% %16.4f\n", megabytes[i], p[i].calls, p[i].bytes, 100 * p[i].first, p[i].exposed);
    }
    lab_say("\n");
    lab_open("D4");
    lab_equal("sizes that make more calls, start earlier or send other bytes", 0, order, 0);
    lab_above("imagined link: exposed with the smallest / with the best", 1, p[0].exposed / p[best].exposed);
    lab_above("        exposed with one bucket / with the best", 1, p[SIZES_TRIED - 1].exposed / p[best].exposed);
    lab_above("run: calls with the smallest / with the largest", 1, (double)f->calls[0] / (double)f->calls[SIZES_RUN - 1]);
    lab_check("run: bytes with the smallest / with the largest", 1, (double)f->bytes[0] / (double)f->bytes[SIZES_RUN - 1], 0);
    lab_not_measurable("seconds per step by bucket size",
                       "why: ranks share cores and memory, and no link is slow; needs one with latency and limited bandwidth: "
                       "bench/overlap.py");
    print_seven(1e6 * (double)lab_size("bucket-mb"));
    lab_check("run: weights that differ", 0, f->hash[0] != f->hash[1] || f->hash[1] != f->hash[2], 0);
    return lab_close();
}
