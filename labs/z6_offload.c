/* Z6 - with the optimizer state in CPU memory or in a file, more fits and a step is slower: each step loads the state and stores it
 * again. (An accelerator has a memory of its own; here CPU memory is the device's memory, counted separately, and only the file
 * makes room.) The weights have the same bits. The lab counts what makes it slower: the bytes that this process reads and writes in a
 * step (/proc/self/io).
 *
 * Then one rank without page cache (the file is accessed with O_DIRECT): the memory that a training process really has, RssAnon of
 * /proc/self/status, which counts no page of a file, beside what is predicted; and the largest model, in layers, that `lockstep train`
 * trains within run.memory_limit: with everything in memory, with the state in a file, and with the state, parameters and gradients in a
 * file. Predicted first: 18 bytes a parameter in memory (bf16 with master weights), 6 without the state, and none without the rest, only
 * two blocks at a time. Seconds are printed but not compared; bench/offload.py measures them beside the disk. */
#include "lab_runs.h"
#include "lab_train.h"

enum { STEPS = 5 };

struct found { ls_cost cost; double seconds, read, written; uint64_t hash; size_t elements; }; /* read, written: bytes per step */

/* Bytes that this process has read from files and written to them. */
static void offload_moved(double *in, double *out)
{
    FILE *f = fopen("/proc/self/io", "r");

    *in = *out = NAN;
    if (f && fscanf(f, "rchar: %lf wchar: %lf", in, out) != 2) *in = *out = NAN;
    if (f) fclose(f);
}

static void offload_run(ls_comm *comm, int rank, int n, void *shared)
{
    static const ls_offload where[] = { LS_OFFLOAD_NONE, LS_OFFLOAD_CPU, LS_OFFLOAD_FILE };
    struct found *f = (struct found *)shared + 3 * rank;
    struct job j = job_of(4, 64);

    j.samples = 24 / n * n;
    j.type = LS_BF16;
    j.data.zero = 1;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 100000;
    for (int k = 0; k < 3; k++) {
        double before[2], after[2];
        struct training t;

        j.data.offload = where[k];
        j.data.offload_path = k == 2 ? "/tmp" : NULL;
        training_open(&j, comm, 0, &t);
        training_step(&t, 0);
        offload_moved(&before[0], &before[1]);
        f[k].seconds = -seconds_now();
        for (int s = 1; s < STEPS; s++) training_step(&t, s);
        f[k].seconds += seconds_now();
        offload_moved(&after[0], &after[1]);
        f[k].read = (after[0] - before[0]) / (STEPS - 1);
        f[k].written = (after[1] - before[1]) / (STEPS - 1);
        f[k].cost = ls_program_cost(t.program);
        f[k].hash = training_hash(&t);
        f[k].elements = ls_store_elements(t.store);
        training_close(&t);
    }
}

/* ---- one rank, without the page cache ---- */

enum { PLACES = 3 };
static const char *const place_name[PLACES] = { "in memory", "state in a file", "state, parameters, gradients in a file" };

/* Results of one training: predicted bytes, bytes of anonymous memory, seconds per step. */
struct resident {
    double planned, measured, seconds;
    uint64_t hash;
};

#if defined(__has_feature)
#define BUILT_WITH(sanitizer) __has_feature(sanitizer)
#else
#define BUILT_WITH(sanitizer) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || BUILT_WITH(address_sanitizer) || BUILT_WITH(thread_sanitizer)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Bytes of anonymous memory that this process has. */
static double anonymous_bytes(void)
{
    char line[200];
    double kib = NAN;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lf kB", &kib) == 1) break;
    if (f) fclose(f);
    return 1024 * kib;
}

static struct job resident_job(int place)
{
    struct job j = job_of(8, 256);

    j.samples = 2;
    j.type = LS_BF16;
    j.data.bucket_bytes = j.data.first_bucket_bytes = 2500000; /* the parameters of a block */
    j.data.offload = place >= 1 ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
    j.data.offload_parameters = place == 2 ? LS_OFFLOAD_FILE : LS_OFFLOAD_NONE;
    j.data.offload_path = "/tmp";
    return j;
}

static void resident_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct resident *r = shared;
    struct job j = resident_job((int)r->planned); /* where state is kept */
    struct training t;

    (void)rank;
    (void)n;
    training_open(&j, comm, 1, &t);
    ls_cost c = ls_program_cost(t.program);
    r->planned = (double)(c.parameters + c.gradients + c.optimizer + c.activations + c.communication + c.offload);
    training_close(&t);
    double before = anonymous_bytes();
    training_open(&j, comm, 0, &t);
    training_step(&t, 0);
    r->seconds = -seconds_now();
    for (int s = 1; s < STEPS; s++) training_step(&t, s);
    r->seconds = (r->seconds + seconds_now()) / (STEPS - 1);
    r->measured = anonymous_bytes() - before;
    r->hash = training_hash(&t);
    training_close(&t);
}

/* ---- the largest model ---- */

static const char *const place_options[PLACES] = {
    "",
    "--optim.offload=file --parallel.bucket=1MiB",
    "--optim.offload=file --parallel.offload_parameters=file",
};

struct largest {
    int layers;
    double seconds, loaded, planned, waited;
};

/* Data and checkpoints have their bytes, whatever the model. */
static void largest_options(int layers, int place, char out[1000])
{
    snprintf(out, 1000,
             "--model.preset=llama-tiny --model.layers=%d --model.width=128 --model.heads=4 --model.kv_heads=2 --model.ffn=256 "
             "--data.text=text.txt --data.tokenizer=bytes --data.seq_len=16 --data.val_fraction=0 --train.global_batch=1 "
             "--precision.compute=bf16 --optim.name=adamw --launch.threads=1 --run.device=cpu --run.memory_limit=32MiB %s",
             layers, place_options[place]);
}

/* True if `lockstep plan` reports that so many layers fit. */
static int plan_fits(const char *folder, int layers, int place)
{
    char options[1000];

    largest_options(layers, place, options);
    struct command_run c = command_start(folder, "plan --json %s", options);
    return command_wait(&c) == 0 && lab_json(command_said(&c, "out.txt"), "fits") == 1;
}

/* Doubles until it does not fit: a plan that does not fit looks for layouts that do, the longer the more layers there are. */
static int largest_planned(const char *folder, int place, int most)
{
    int fits = 0, fails = 1;

    while (fails <= most && plan_fits(folder, fails, place)) fits = fails, fails *= 2;
    while (fails - fits > 1) {
        int middle = (fits + fails) / 2;

        *(plan_fits(folder, middle, place) ? &fits : &fails) = middle;
    }
    return fits;
}

/* The exit code of three steps. */
static int train_layers(const char *folder, int layers, int place, struct largest *out)
{
    char options[1000];

    largest_options(layers, place, options);
    struct command_run c = command_start(folder, "train -q --train.steps=3 --checkpoint.every=0 --run.measure_peak=off --run.dir=run %s",
                                         options);
    int code = command_wait(&c);
    if (code == 0 && out) {
        char *lines = run_file(folder, "run", "metrics.jsonl");

        out->seconds = run_number(lines, 2, "step_seconds");
        out->loaded = run_number(lines, 2, "offload.loaded") + run_number(lines, 2, "offload.saved");
        out->waited = run_number(lines, 2, "offload.waited");
        free(lines);
        c = command_start(folder, "plan --json %s", options);
        command_wait(&c);
        out->planned = lab_json(command_said(&c, "out.txt"), "offload.loaded") + lab_json(command_said(&c, "out.txt"), "offload.saved");
    }
    char run[COMMAND_PATH + 8];
    snprintf(run, sizeof run, "%s/run", folder);
    folder_remove(run);
    return code;
}

static void offload_one_rank(void)
{
    enum { MOST = 96 };
    struct resident *r = lab_shared(PLACES * sizeof *r);
    struct largest most[PLACES] = { 0 };
    char folder[COMMAND_PATH], text[COMMAND_PATH + 16], what[120];

    lab_say("\none rank, 8 blocks of width 256, no page cache\n%40s %16s %16s %10s\n", "", "predicted", "anonymous", "seconds");
    for (int k = 0; k < PLACES; k++) {
        r[k].planned = k;
        lab_ranks(1, resident_run, &r[k]);
        lab_say("%40s %16.0f %16.0f %10.4f\n", place_name[k], r[k].planned, r[k].measured, r[k].seconds);
    }
    for (int k = 0; k < PLACES; k++) {
        snprintf(what, sizeof what, "%s: anonymous memory, off from what is predicted / all in memory", place_name[k]);
        if (SANITIZED)
            lab_not_measurable(what, "why: a sanitizer's memory is counted, too; a build without one");
        else
            lab_check_below(what, 0.06, fabs(r[k].measured - r[k].planned) / r[0].planned); /* the program itself, threads */
        if (k) lab_check("       weights that differ from in memory", 0, r[k].hash != r[0].hash, 0);
        if (k && !SANITIZED) lab_below("       more fits: anonymous memory / that of the row before", 1, r[k].measured / r[k - 1].measured);
    }
    lab_unshare(r, PLACES * sizeof *r);
    folder_new(folder);
    snprintf(text, sizeof text, "%s/text.txt", folder);
    folder_write_text(text);
    lab_say("\nlargest model within 32 MiB: blocks of width 128\n%40s %8s %16s %10s %10s\n", "", "blocks", "moved [bytes]", "seconds",
            "waited");
    for (int k = 0; k < PLACES; k++) {
        most[k].layers = largest_planned(folder, k, MOST);
        snprintf(what, sizeof what, "%s: the largest model that is predicted trains: exit code", place_name[k]);
        lab_check(what, 0, train_layers(folder, most[k].layers, k, &most[k]), 0);
        lab_check("       with a block more: exit code", 1, train_layers(folder, most[k].layers + 1, k, NULL), 0);
        lab_say("%40s %8d %16.0f %10.4f %10.4f\n", place_name[k], most[k].layers, k ? most[k].loaded : 0, most[k].seconds,
                k ? most[k].waited : 0);
        if (!k) continue;
        lab_check("       bytes that a step loads and saves", most[k].planned, most[k].loaded, 0);
        lab_above("       more fits: blocks / those of the row before", 1, (double)most[k].layers / most[k - 1].layers);
        lab_above("       slower: a step waits for the file [s]", 0, most[k].waited);
    }
    folder_remove(folder);
}

static size_t within(const ls_cost *c) { return c->parameters + c->gradients + c->optimizer + c->communication; }

LAB(z6_offload, "offload", { "ranks", "data-parallel ranks, which shard the state", 2, 1, 8 })
{
    int ranks = (int)lab_size("ranks");
    static const char *const name[] = { "in place", "processor", "file" };
    struct found *f = lab_shared(3 * (size_t)ranks * sizeof *f);
    double all = 0;
    char what[80];

    lab_ranks(ranks, offload_run, f);
    lab_say("rank 0 of %d, bf16, ZeRO-1, bytes\n%12s %12s %12s %12s %14s %12s %12s\n", ranks, "states", "parameters", "gradients",
           "optimizer", "communication", "other memory", "seconds");
    for (int k = 0; k < 3; k++)
        lab_say("%12s %12zu %12zu %12zu %14zu %12zu %12.4f\n", name[k], f[k].cost.parameters, f[k].cost.gradients,
               f[k].cost.optimizer, f[k].cost.communication, f[k].cost.offload, f[k].seconds);
    lab_say("\n");
    double state = (double)f[0].cost.optimizer;
    lab_open("Z6");
    for (int r = 0; r < ranks; r++) all += (double)f[3 * r].cost.optimizer;
    lab_check("in place: master, momentum, variance, all ranks: 12 N [bytes]", 12 * (double)f[0].elements, all, 0);
    for (int k = 1; k < 3; k++) {
        snprintf(what, sizeof what, "%s: optimizer state on the device [bytes]", name[k]);
        lab_equal(what, 0, (double)f[k].cost.optimizer, 0);
        lab_check("       in other memory [bytes]", k == 1 ? state : 0, (double)f[k].cost.offload, 0);
        lab_below("       more fits: bytes on the device / in place", 1, (double)within(&f[k].cost) / (double)within(&f[0].cost));
        lab_check("       weights that differ from in place", 0, f[k].hash != f[0].hash, 0);
    }
    if (isfinite(f[2].read)) {
        lab_above("slower: read from the file in a step [bytes]", 0, f[2].read - f[0].read);
        lab_equal("       all the state, once [bytes]", state, f[2].read - f[0].read, 0.01);
        lab_equal("       written back in a step, all the state once [bytes]", state, f[2].written - f[0].written, 0.01);
        snprintf(what, sizeof what, "%d ranks: each reads in a step, 12/K [bytes per parameter]", ranks);
        lab_check(what, 12.0 / ranks, (f[2].read - f[0].read) / (double)f[0].elements, 0.01);
    } else {
        lab_not_measurable("bytes that a step reads and writes", "why: /proc/self/io cannot be read here");
    }
    offload_one_rank();
    return lab_close();
}
