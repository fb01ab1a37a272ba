/* cmd_bench_machine.c - `lockstep bench machine`: measures the machine it runs on, and writes a machine file to plan with. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/comm_times.h"
#include "cli/launching.h"
#include "train/plan/measure.h"
#include "train/run/machine.h"

static const char *out_file;

static const struct flag bench_machine_flags[] = {
    { "out", FLAG_STRING, &out_file, 0, 0, "FILE", "write the machine file here instead of on standard output" },
    { 0 },
};

/* ---- kernels ---- */

/* Small models whose instructions have sizes over four orders of magnitude, of every kind of block. */
static const char *const bench_machine_models[] = {
    "model.preset=gpt2-tiny data.seq_len=64 train.micro_batch=2",
    "model.preset=llama-tiny data.seq_len=128 train.micro_batch=4",
    "model.preset=mixtral-tiny data.seq_len=128 train.micro_batch=4",
    "model.preset=gpt2-tiny model.width=256 model.heads=4 model.vocab=2048 model.max_positions=256 data.seq_len=256 train.micro_batch=4",
    "model.preset=llama-demo model.layers=2 data.seq_len=256 train.micro_batch=4",
    ("model.preset=mixtral-tiny model.width=256 model.heads=4 model.kv_heads=2 model.head_size=64 model.expert_ffn=512 "
     "model.max_positions=256 data.seq_len=256 train.micro_batch=2"),
    "model.preset=gpt2-124m model.layers=2 model.vocab=8192 data.seq_len=512 train.micro_batch=1",
    ("model.preset=llama-demo model.layers=2 model.width=768 model.heads=12 model.kv_heads=4 model.ffn=2048 model.vocab=8192 "
     "data.seq_len=512 train.micro_batch=2"),
};

static ls_status set_words(struct options *o, const char *words)
{
    char text[400], *rest = text, *word;

    snprintf(text, sizeof text, "%s", words);
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');

        *value++ = '\0';
        LS_TRY(options_set(o, word, value, "bench machine"));
    }
    return LS_OK;
}

/* The options of the user's model: those of `bench train` on which instructions depend. */
static bool is_of_model(const char *name)
{
    static const char *const sections[] = { "model.", "data.seq_len", "train.micro_batch", "optim.", "recompute." };

    for (size_t i = 0; i < COUNT_OF(sections); i++)
        if (strncmp(name, sections[i], strlen(sections[i])) == 0) return true;
    return false;
}

static ls_status inherit(struct options *o, const struct options *from, bool model)
{
    const struct option_table *t = config_table();

    for (size_t i = 0; i < t->count; i++)
        if (strncmp(t->rows[i].name, "bench.", 6) == 0 || (model && is_of_model(t->rows[i].name)))
            LS_TRY(options_inherit(o, from, t->rows[i].name));
    return LS_OK;
}

/* words NULL: the user's model. */
static ls_status measure_model(struct measured *m, const struct options *given, const char *words, const char *type)
{
    struct config c;
    struct options o;

    LS_TRY(options_open(config_table(), &c, VERB_BENCH, &o));
    ls_status st = inherit(&o, given, !words);
    if (st == LS_OK && words) st = set_words(&o, words);
    if (st == LS_OK) st = options_set(&o, "precision.compute", type, "bench machine");
    c.launch.ranks = 1;
    if (st == LS_OK) st = config_check(&c, VERB_BENCH);
    if (st == LS_OK) st = measured_add(m, &c);
    options_close(&o);
    return st;
}

/* All ranks measure at the same time, as they compute at the same time. */
static ls_status measure_kernels(const struct ranks *r, const struct options *given, bool half, struct cluster *out)
{
    bool model = strcmp(options_origin(given, "model.preset"), "default") != 0;
    struct measured *m;
    ls_status st;

    LS_TRY(measured_new(&m));
    for (int t = 0; t < 1 + half; t++)
        for (size_t i = model ? 0 : 1; i <= COUNT_OF(bench_machine_models); i++) {
            st = measure_model(m, given, i ? bench_machine_models[i - 1] : NULL, t ? "bf16" : "fp32");
            st = ranks_settle(r, st);
            if (st < 0) goto free_measured;
        }
    st = measured_put(m, out);
free_measured:
    measured_free(&m);
    return st;
}

/* ---- memory ---- */

/* Bytes/s of reading and writing arrays that no cache holds, on all ranks at once. */
static ls_status measure_bandwidth(const struct ranks *r, double *out)
{
    enum { BYTES = 64 << 20, TIMES = 5 };
    char *from = mem_zalloc(MEM_OTHER, BYTES), *to = mem_zalloc(MEM_OTHER, BYTES);
    double best = INFINITY;

    ls_status st = ranks_settle(r, from && to ? LS_OK : LS_ENOMEM);
    for (int i = 0; st == LS_OK && i < TIMES; i++) {
        double began = base_now();

        memcpy(to, from, BYTES);
        from[i] = to[BYTES - 1 - i];
        best = fmin(best, base_now() - began);
    }
    mem_free(to);
    mem_free(from);
    *out = 2.0 * BYTES / best;
    return st;
}

/* ---- collectives ---- */

static ls_status measure_sizes(struct comm_times *t, struct cluster_curve *x)
{
    static const size_t sizes[] = { 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20 };

    LS_TRY(comm_times_open(t, sizes[COUNT_OF(sizes) - 1]));
    ls_status st = LS_OK;
    for (size_t i = 0; st == LS_OK && i < COUNT_OF(sizes); i++) {
        size_t count = comm_times_count(t, sizes[i]);
        struct comm_time time;

        t->iterations = sizes[i] > 1 << 20 ? 5 : 50;
        t->warmup = 2;
        st = comm_times_take(t, count, true, &time);
        x->size[i] = (double)comm_times_bytes(t, count);
        x->seconds[i] = time.seconds;
        x->points = (int)i + 1;
    }
    comm_times_close(t);
    return st;
}

/* Groups of `size` neighboring ranks, all at the same time. */
static ls_status measure_groups(const struct ranks *r, int size, struct cluster *out)
{
    static const ls_collective ops[] = { LS_COLLECTIVE_ALL_REDUCE, LS_COLLECTIVE_ALL_GATHER, LS_COLLECTIVE_REDUCE_SCATTER,
                                         LS_COLLECTIVE_BROADCAST,  LS_COLLECTIVE_ALL_TO_ALL, LS_COLLECTIVE_SEND };
    ls_comm *group;
    ls_status st = LS_OK;

    LS_TRY(ls_comm_split(r->comm, r->rank / size, r->rank, &group));
    for (size_t i = 0; st == LS_OK && i < COUNT_OF(ops) && out->curves < CURVES_MOST; i++) {
        struct cluster_curve *x = &out->curve[out->curves++];
        struct comm_times t = { .comm = group, .rank = r->rank % size, .n = size, .op = ops[i], .type = LS_F32, .unchecked = true };

        snprintf(x->name, sizeof x->name, "collectives.%s-%d", ls_collective_name(ops[i]), size);
        st = measure_sizes(&t, x);
    }
    ls_comm_close(&group);
    return st;
}

static ls_status measure_collectives(const struct ranks *r, struct cluster *out)
{
    const struct cluster_curve *x;
    char name[CURVE_NAME];
    double n = r->size;

    for (int size = 2; size <= r->size; size++)
        if (r->size % size == 0) LS_TRY(measure_groups(r, size, out));
    snprintf(name, sizeof name, "collectives.all_reduce-%d", r->size);
    if (!(x = cluster_find_curve(out, name))) return LS_OK;
    /* Latency and bandwidth with which the ring's formula (seconds.h) gives the measured seconds of the smallest and the largest
     * all-reduce. */
    out->node.latency = x->seconds[0] / (2 * (n - 1));
    out->node.bandwidth = 2 * (n - 1) / n * x->size[x->points - 1] / x->seconds[x->points - 1];
    return LS_OK;
}

/* ---- the file ---- */

static void put_curves(const struct cluster *c, const char *section, struct text *t)
{
    size_t n = strlen(section);
    bool any = false;

    for (int i = 0; i < c->curves; i++) {
        const struct cluster_curve *x = &c->curve[i];

        if (strncmp(x->name, section, n) != 0) continue;
        if (!any) text_put(t, "%.*s:\n", (int)n - 1, section);
        any = true;
        text_put(t, "  %s:", x->name + n);
        for (int k = 0; k < x->points; k++) text_put(t, " %.4g:%.4g", x->size[k], x->seconds[k]);
        text_put(t, "\n");
    }
}

static void put_machine(const struct cluster *c, const struct ranks *r, struct text *t)
{
    char day[32];
    time_t now = time(NULL);
    struct tm tm;

    strftime(day, sizeof day, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    text_put(t, "# measured by 'lockstep bench machine -n %d', %s, on %d rank%s of %d thread%s at once\n", r->size, day, r->size,
             r->size > 1 ? "s" : "", threads_count(), threads_count() > 1 ? "s" : "");
    text_put(t, "machine:\n  name: \"%s\"\nprocessor:           # a rank\n  name: \"%s\"\n", c->name, c->processor);
    text_put(t, "  fp32: %.4g         # its best matmul\n", c->flops[LS_F32]);
    if (c->flops[LS_BF16] > 0) text_put(t, "  bf16: %.4g\n", c->flops[LS_BF16]);
    text_put(t, "  memory: %.0f\n  bandwidth: %.4g    # of a copy, read and written\n", c->memory, c->bandwidth);
    text_put(t, "efficiency:          # of ops without a curve below\n  launch: 0\n  matmul: 0.8\n  host: 0\n  attention: 0.5\n"
                "  memory_bound: 0.8\n  link_share: 1\n");
    text_put(t,
             "node:                # from the smallest and the largest all-reduce\n  processors: %d\n  bandwidth: %.4g\n  latency: %.4g\n",
             c->processors, c->node.bandwidth, c->node.latency);
    text_put(t, "  serial: %d\nnetwork:             # no other node was measured: as inside\n  bandwidth: %.4g\n  latency: %.4g\n",
             c->serial, c->node.bandwidth, c->node.latency);
    text_put(t, "# FLOPs, or bytes of ops without: seconds\n");
    put_curves(c, "kernels.", t);
    if (c->processors > 1) text_put(t, "# bytes of the complete buffer: seconds\n");
    put_curves(c, "collectives.", t);
}

static ls_status write_machine(const struct cluster *c, const struct ranks *r)
{
    struct text t = { 0 };

    put_machine(c, r, &t);
    ls_status st = text_status(&t);
    if (st == LS_OK && out_file)
        st = file_write(out_file, t.data, t.bytes);
    else if (st == LS_OK)
        fputs(t.data, stdout);
    text_free(&t);
    return st;
}

static ls_status measure_all(const struct ranks *r, const struct options *given, struct cluster *c)
{
    ls_machine here;

    LS_TRY(ls_machine_this(&here));
    bool half = isa_best() >= ISA_AVX512_BF16;
    snprintf(c->processor, sizeof c->processor, "%.80s, %d thread%s", here.name, threads_count(), threads_count() > 1 ? "s" : "");
    snprintf(c->name, sizeof c->name, "%.80s, %d rank%s", here.name, r->size, r->size > 1 ? "s" : "");
    c->processors = r->size;
    c->serial = true;
    c->memory = floor((double)here.memory / r->size);
    LS_TRY(ranks_settle(r, machine_peak_flops(LS_F32, &c->flops[LS_F32])));
    if (half) LS_TRY(ranks_settle(r, machine_peak_flops(LS_BF16, &c->flops[LS_BF16])));
    LS_TRY(measure_bandwidth(r, &c->bandwidth));
    LS_TRY(measure_kernels(r, given, half, c));
    c->node.bandwidth = c->bandwidth; /* a single rank sends nothing */
    if (r->comm) LS_TRY(measure_collectives(r, c));
    return LS_OK;
}

static ls_status cmd_bench_machine_run(struct invocation *in)
{
    struct cluster *c = mem_zalloc(MEM_OTHER, sizeof *c);
    struct ranks ranks;

    if (!c) return LS_ENOMEM;
    ls_status st = ranks_open(&in->config, &ranks);
    if (st == LS_OK) {
        st = measure_all(&ranks, &in->options, c);
        if (st == LS_OK && ranks.rank == 0) st = write_machine(c, &ranks);
        ranks_close(&ranks);
    }
    mem_free(c);
    return st;
}

static ls_status cmd_bench_machine_launch(struct invocation *in) { return launching_run(in, NULL, NULL, NULL); }

const struct command command_bench_machine = {
    .name = "bench machine",
    .arguments = "",
    .summary = "measure this machine's kernels and collectives, and write a machine file to plan with",
    .verb = VERB_BENCH,
    .flags = bench_machine_flags,
    .run = cmd_bench_machine_run,
    .launch = cmd_bench_machine_launch,
    .about = "Measures small models of all kinds, and the model of --model.* if one is given.\n"
             "All ranks (-n) measure at the same time, since they share memory and caches. Plan for as many ranks as were measured:\n"
             "`plan --machine ./this.yaml -n N`, or `bench train --predict this.yaml -n N`, which runs the steps as well.\n",
    .examples = "  lockstep bench machine -n 2 --out this.yaml\n"
                "  lockstep bench machine -n 2 --model.preset=gpt2-124m --data.seq_len=512 --launch.threads=1 --out this.yaml\n",
};
