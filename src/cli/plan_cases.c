/* plan_cases.c - see plan_cases.h. */
#include "cli/plan_cases.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/csv.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/threads.h"
#include "train/plan/prices.h"

enum { PRICED_MODELS = 24 };
enum { NODE_MOST = 16 }; /* a machine with more processors in a node is a rack; tables call its trays nodes */

/* A model on a machine, of which layouts have been priced. */
struct priced_model {
    struct config config;
    struct options options;
    struct task_model model;
    struct plan_job job;
    struct cluster cluster;
    int seq_len;
    struct prices *prices;
};

struct cases {
    const struct csv *table;
    const struct cluster *machine; /* of --machine; NULL: none */
    struct priced_model *priced[PRICED_MODELS];
    int npriced;
};

/* A row of the table. */
struct run {
    const struct csv *table;
    int row;
    struct text assumed; /* parts with "; " between them */
};

static void assume(struct run *r, const char *what) { text_put(&r->assumed, "%s%s", r->assumed.bytes ? "; " : "", what); }

static const char *run_text(const struct run *r, const char *column) { return csv_field(r->table, r->row, column); }

/* The number at the start of a field; `missing` if there is none. */
static double run_number(const struct run *r, const char *column, double missing)
{
    const char *text = run_text(r, column);
    char *end;
    double x = strtod(text, &end);

    return end == text ? missing : x;
}

static int run_size(const struct run *r, const char *column, int missing) { return (int)run_number(r, column, missing); }
static bool run_says(const struct run *r, const char *column, const char *word) { return strstr(run_text(r, column), word) != NULL; }

/* ---- the machine ---- */

/* How many words of `text`, of at least three letters or digits, are in `type`, but not in `common`. */
static int words_in(const char *text, const char *type, const char *common)
{
    char word[CLUSTER_NAME];
    int count = 0;

    for (size_t n; *text; text += n ? n : 1) {
        for (n = 0; isalnum((unsigned char)text[n]); n++) word[n] = text[n];
        word[n] = '\0';
        count += n > 2 && strstr(type, word) && !strstr(common, word);
    }
    return count;
}

/* The built-in machine whose processor the type names: "H100-80GB-SXM (AWS p5 ..)" is an H100. Of several, the one of whose name and memory
 * the type has most words, beside the processor's own; of those one whose network is described by its links rather than by what was
 * measured on a certain cluster; of those the one with the most memory. */
static bool find_machine(const char *type, struct cluster *out)
{
    int best = -1;
    struct cluster c;

    for (int i = 0; cluster_builtin(i); i++) {
        char memory[16];
        int same;

        if (cluster_read(cluster_builtin(i), &c) < 0) continue;
        if (strncmp(c.processor, type, strcspn(c.processor, " ")) != 0) continue;
        snprintf(memory, sizeof memory, "%.0fGB", ceil(c.memory / (1 << 30) / 10) * 10);
        same = 2 * (words_in(c.name, type, c.processor) + 4 * words_in(memory, type, "")) + !c.curves;
        if (same < best || (same == best && c.memory <= out->memory)) continue;
        *out = c;
        best = same;
    }
    return best >= 0;
}

static bool says_fp8(const struct run *r)
{
    return run_says(r, "precision", "fp8") || run_says(r, "precision", "FP8") || run_says(r, "precision", "FP4");
}

/* "A100 SXM 80 GB" and "A100 SXM 40 GB" are both an A100. */
static bool is_same_processor(const struct cluster *a, const struct cluster *b)
{
    size_t n = strcspn(a->processor, " ");

    return n == strcspn(b->processor, " ") && strncmp(a->processor, b->processor, n) == 0;
}

static void take_efficiencies(const struct cluster *from, struct cluster *to)
{
    to->launch = from->launch;
    to->matmul = from->matmul;
    to->host = from->host;
    to->eager = from->eager;
    to->attention = from->attention;
    to->memory_bound = from->memory_bound;
    to->link_share = from->link_share;
}

/* Programs whose kernels are fused by hand: NVIDIA's and what is derived from Megatron. Others run PyTorch's kernels one by one. */
/* Programs that are said to overlap collectives over tp with matmuls, as Transformer Engine and MegaScale (3.2) do. */
static bool chunks_tp(const struct run *r) { return run_says(r, "schedule", "TP comm") || run_says(r, "model", "MegaScale"); }

static bool is_eager(const struct run *r)
{
    static const char *const fused[] = { "NVIDIA", "Megatron", "NeMo", "Nemotron", "MLPerf", "MegaScale" };

    for (size_t i = 0; i < COUNT_OF(fused); i++)
        if (run_says(r, "source", fused[i])) return false;
    return true;
}

static ls_status machine_of(const struct cases *k, struct run *r, struct cluster *out)
{
    double gbps = run_number(r, "internode_gbps_per_gpu", 0);
    int node = run_size(r, "gpus_per_node", 0);
    char text[200];

    if (find_machine(run_text(r, "gpu_type"), out)) {
        snprintf(text, sizeof text, "machine like %s", out->name);
        if (k->machine && is_same_processor(k->machine, out)) take_efficiencies(k->machine, out);
    } else {
        if (!k->machine) return ls_fail(LS_EINVAL, "no machine is built in for '%s'", run_text(r, "gpu_type"));
        *out = *k->machine;
        snprintf(text, sizeof text, "machine of --machine");
    }
    assume(r, text);
    out->fp8 = says_fp8(r);
    out->scores_written = run_size(r, "flash_attn", 1) == 0;
    out->chunks_tp = chunks_tp(r);
    if (out->eager > 0 && is_eager(r)) {
        out->matmul /= out->eager;
        out->attention /= out->eager;
        out->memory_bound /= out->eager;
    }
    if (out->fp8) assume(r, "fp8: matmuls at twice the peak of bf16");
    if (node > 0 && out->processors <= NODE_MOST) out->processors = node;
    if (gbps > 0) out->network.bandwidth = gbps * 1e9 / 8;
    return LS_OK;
}

/* ---- the model and its layout ---- */

static ls_status put_option(struct options *o, const char *name, const char *text) { return options_set(o, name, text, "case"); }

static ls_status put_number(struct options *o, const char *name, double x)
{
    char text[32];

    snprintf(text, sizeof text, "%.0f", x);
    return put_option(o, name, text);
}

/* Columns without which nothing is known of a run. */
static const char *const needed[] = { "layers", "hidden", "ffn_hidden", "heads", "vocab", "seq", "gpus", "global_batch" };

static ls_status check_columns(const struct run *r)
{
    for (size_t i = 0; i < COUNT_OF(needed); i++)
        if (run_number(r, needed[i], 0) < 1) return ls_fail(LS_EINVAL, "%s is not published", needed[i]);
    if (run_number(r, "ep", 1) > 1) return ls_fail(LS_EINVAL, "the number of experts and their width are not among the columns");
    return LS_OK;
}

static ls_status put_model(struct run *r, struct options *o)
{
    bool gated = run_size(r, "glu", 1) != 0;
    double heads = run_number(r, "heads", 1), hidden = run_number(r, "hidden", 1);

    LS_TRY(put_option(o, "model.preset", gated ? "llama3-8b" : "gpt2-124m"));
    LS_TRY(put_number(o, "model.layers", run_number(r, "layers", 1)));
    LS_TRY(put_number(o, "model.width", hidden));
    LS_TRY(put_number(o, "model.heads", heads));
    LS_TRY(put_number(o, "model.ffn", run_number(r, "ffn_hidden", 1)));
    LS_TRY(put_number(o, "model.vocab", run_number(r, "vocab", 1)));
    LS_TRY(put_number(o, "model.max_positions", run_number(r, "seq", 1)));
    LS_TRY(put_number(o, "data.seq_len", run_number(r, "seq", 1)));
    if (*run_text(r, "tied_emb")) LS_TRY(put_option(o, "model.tied", run_size(r, "tied_emb", 0) ? "true" : "false"));
    if (!gated) return put_option(o, "model.dropout", "0");
    LS_TRY(put_number(o, "model.kv_heads", run_number(r, "kv_heads", heads)));
    return put_number(o, "model.head_size", floor(hidden / heads));
}

static ls_status open_model(struct run *r, struct priced_model *m)
{
    struct world world = { .size = 1, .local_size = 1 };
    ls_layout layout;

    LS_TRY(options_open(config_table(), &m->config, VERB_PLAN, &m->options));
    LS_TRY(put_model(r, &m->options));
    LS_TRY(put_option(&m->options, "precision.compute", "bf16"));
    LS_TRY(put_option(&m->options, "data.val_fraction", "0"));
    LS_TRY(put_option(&m->options, "run.device", "cpu"));
    LS_TRY(config_ranks(&m->config, VERB_PLAN, &world));
    LS_TRY(config_check(&m->config, VERB_PLAN));
    LS_TRY(task_model_of(&m->config, 0, &m->model));
    LS_TRY(plan_of_config(&m->config, &m->model, &m->job, &layout));
    m->seq_len = layout.seq_len;
    return LS_OK;
}

static void close_model(struct priced_model *m)
{
    if (!m) return;
    prices_close(&m->prices);
    options_close(&m->options);
    mem_free(m);
}

/* The model of a row on its machine: one that has been priced before, if there is one. */
static ls_status find_model(struct cases *k, struct run *r, const struct cluster *c, struct priced_model **out)
{
    struct priced_model *m = mem_array(MEM_OTHER, 1, sizeof *m);

    if (!m) return LS_ENOMEM;
    m->cluster = *c;
    ls_status st = open_model(r, m);
    for (int i = 0; st == LS_OK && i < k->npriced; i++) {
        struct priced_model *x = k->priced[i];

        *out = x;
        if (memcmp(&x->model.transformer, &m->model.transformer, sizeof(ls_model)) != 0 || x->seq_len != m->seq_len) continue;
        if (memcmp(&x->cluster, &m->cluster, sizeof(struct cluster)) != 0) continue;
        close_model(m);
        return LS_OK;
    }
    if (st == LS_OK) st = prices_open(&m->job, &m->cluster, m->seq_len, &m->prices);
    if (st < 0) {
        close_model(m);
        return st;
    }
    if (k->npriced == PRICED_MODELS) { /* the oldest goes */
        close_model(k->priced[0]);
        memmove(k->priced, k->priced + 1, (PRICED_MODELS - 1) * sizeof *k->priced);
        k->npriced--;
    }
    *out = k->priced[k->npriced++] = m;
    return LS_OK;
}

/* "2", "3 (FSDP FULL_SHARD)", "dist-opt (1)", "FSDP2 (3)", "HSDP". */
static int zero_of(struct run *r)
{
    const char *text = run_text(r, "zero_stage"), *in = strchr(text, '(');

    if (*text >= '0' && *text <= '3') return *text - '0';
    if (in && in[1] >= '0' && in[1] <= '3' && in[2] == ')') return in[1] - '0';
    if (strstr(text, "not resharded")) return 2;
    if (strstr(text, "FSDP") || strstr(text, "HSDP")) return 3;
    assume(r, "ZeRO stage not understood: 0");
    return 0;
}

static const char *schedule_of(const struct run *r, int vpp)
{
    if (run_says(r, "schedule", "ZB-V")) return "zb-v";
    if (run_says(r, "schedule", "ZB-")) return "zb-h1";
    return vpp > 1 ? "interleaved" : "1f1b";
}

static ls_recompute recompute_of(const struct run *r)
{
    return run_says(r, "recompute", "full")        ? LS_RECOMPUTE_FULL
           : run_says(r, "recompute", "selective") ? LS_RECOMPUTE_SELECTIVE
                                                   : LS_RECOMPUTE_NONE;
}

/* ---- what may not be published ---- */

enum open { OPEN_TP, OPEN_PP, OPEN_VPP, OPEN_ZERO, OPEN_MICRO_BATCH, OPENS };
static const char *const open_names[OPENS] = { "tp", "pp", "virtual stages", "ZeRO stage", "micro-batch" };

/* The one value that is published, or those that are usual. */
struct choice {
    int n, value[16];
};

/* Those of `most` usual values that divide `whole`. */
static struct choice divisors(int whole, int most)
{
    static const int usual[] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64 };
    struct choice c = { 0 };

    for (size_t i = 0; i < COUNT_OF(usual) && usual[i] <= most; i++)
        if (whole % usual[i] == 0) c.value[c.n++] = usual[i];
    return c;
}

static struct choice published(int value) { return (struct choice){ 1, { value } }; }

/* A schedule that is named without interleaving has no virtual stages. */
static struct choice virtual_stages(const struct run *r, const struct choice *pp)
{
    bool may = !*run_text(r, "schedule") || run_says(r, "schedule", "nterleaved");

    if (run_says(r, "schedule", "ZB-V")) return published(2);
    if (run_number(r, "vpp", 0) >= 1) return published(run_size(r, "vpp", 1));
    if (!may || (pp->n == 1 && pp->value[0] == 1)) return published(1);
    return divisors(24, 8);
}

static void find_choices(struct run *r, struct choice c[OPENS])
{
    int tp = run_size(r, "tp", 0), pp = run_size(r, "pp", 0), micro = run_size(r, "micro_batch", 0);

    c[OPEN_TP] = tp > 0 ? published(tp) : divisors(run_size(r, "heads", 1), MIN(run_size(r, "gpus_per_node", 8), 8));
    c[OPEN_PP] = pp > 0 ? published(pp) : divisors(run_size(r, "layers", 1), 64);
    c[OPEN_VPP] = virtual_stages(r, &c[OPEN_PP]);
    c[OPEN_ZERO] = *run_text(r, "zero_stage") ? published(zero_of(r)) : (struct choice){ 2, { 0, 1 } };
    c[OPEN_MICRO_BATCH] = micro > 0 ? published(micro) : divisors(8, 8);
}

/* DeepSpeed's ZeRO-3 takes as long as if nothing hid its gathers and reductions (docs/planner.md). */
static bool waits_for_gathers(const struct run *r, int zero)
{
    return zero == 3 && (run_says(r, "source", "DeepSpeed") || run_says(r, "schedule", "DeepSpeed"));
}

static ls_status put_layout(const struct run *r, const struct priced_model *m, const int value[OPENS], bool given_vpp, ls_layout *l)
{
    int gpus = run_size(r, "gpus", 1);
    int64_t samples = (int64_t)run_number(r, "global_batch", 1);

    LS_TRY(config_layout(&m->config, l));
    l->tp = value[OPEN_TP];
    l->pp = value[OPEN_PP];
    l->cp = run_size(r, "cp", 1);
    if (l->tp < 1 || l->pp < 1 || l->cp < 1 || gpus % (l->tp * l->pp * l->cp))
        return ls_fail(LS_EINVAL, "inconsistent: %d GPUs are not a multiple of tp %d x pp %d x cp %d", gpus, l->tp, l->pp, l->cp);
    l->dp = gpus / (l->tp * l->pp * l->cp);
    if (run_number(r, "dp", l->dp) != l->dp)
        return ls_fail(LS_EINVAL, "inconsistent: dp %s, but %d GPUs with tp %d x pp %d x cp %d make dp %d", run_text(r, "dp"), gpus, l->tp,
                       l->pp, l->cp, l->dp);
    l->vpp = l->pp > 1 ? value[OPEN_VPP] : 1;
    if (!given_vpp && (value[OPEN_VPP] != l->vpp || run_size(r, "layers", 1) % (l->pp * l->vpp)))
        return ls_fail(LS_EINVAL, "%d virtual stages do not divide the layers", value[OPEN_VPP]);
    l->schedule = l->pp > 1 ? schedule_of(r, l->vpp) : NULL;
    l->zero = l->dp * l->cp > 1 ? value[OPEN_ZERO] : 0;
    l->overlap = !waits_for_gathers(r, l->zero);
    l->sp = l->tp > 1 && run_size(r, "sequence_parallel", 0);
    l->recompute = recompute_of(r);
    l->stages = NULL;
    l->micro_batch = value[OPEN_MICRO_BATCH];
    if (samples % ((int64_t)l->dp * l->micro_batch))
        return ls_fail(LS_EINVAL, "inconsistent: %" PRId64 " samples are not a multiple of dp %d x micro-batch %d", samples, l->dp,
                       l->micro_batch);
    l->micro_batches = (int)(samples / l->dp / l->micro_batch);
    return ls_layout_check(&m->model.transformer, l);
}

/* ---- pricing ---- */

/* The best of the layouts that were tried: the fastest that fits, or the fastest if none does. */
struct case_price {
    double seconds, bytes, fastest, slowest;
    int tried, value[OPENS];
    bool fits;
};

static void take_better(struct case_price *best, const struct price *p, double room, const int value[OPENS])
{
    bool fits = p->bytes <= room, first = !best->tried++;

    if (first || p->seconds < best->fastest) best->fastest = p->seconds;
    if (first || p->seconds > best->slowest) best->slowest = p->seconds;
    if (!first && (fits == best->fits ? p->seconds >= best->seconds : best->fits)) return;
    best->seconds = p->seconds;
    best->bytes = p->bytes;
    best->fits = fits;
    memcpy(best->value, value, sizeof best->value);
}

/* Prices the layouts of all combinations of the choices from `at` on. Returns the status of the last. */
static ls_status price_choices(struct run *r, struct priced_model *m, const struct choice c[OPENS], int at, int value[OPENS],
                               struct case_price *best)
{
    ls_status st = LS_OK;
    struct price price;
    ls_layout l;

    if (at == OPENS) {
        LS_TRY(put_layout(r, m, value, c[OPEN_VPP].n == 1, &l));
        LS_TRY(prices_price(m->prices, &l, INFINITY, INFINITY, &price));
        take_better(best, &price, m->cluster.memory - m->cluster.reserved - group_buffers_of(&m->cluster, &l), value);
        return LS_OK;
    }
    for (int i = 0; i < c[at].n && st != LS_ENOMEM; i++) {
        value[at] = c[at].value[i];
        st = price_choices(r, m, c, at + 1, value, best);
    }
    return st;
}

static void put_choices(struct run *r, const struct choice c[OPENS], const struct case_price *best)
{
    char text[120];

    for (int i = 0; i < OPENS; i++) {
        if (c[i].n <= 1) continue;
        snprintf(text, sizeof text, "%s not published: %d", open_names[i], best->value[i]);
        assume(r, text);
    }
    if (best->tried < 2) return;
    snprintf(text, sizeof text, "%s of %d layouts with %.4g to %.4g s", best->fits ? "the fastest that fits" : "none fits; the fastest",
             best->tried, best->fastest, best->slowest);
    assume(r, text);
}

static ls_status price_run(struct cases *k, struct run *r, struct case_price *out)
{
    struct choice choices[OPENS];
    int value[OPENS];
    struct priced_model *m;
    struct cluster c;

    LS_TRY(check_columns(r));
    LS_TRY(machine_of(k, r, &c));
    LS_TRY(find_model(k, r, &c, &m));
    find_choices(r, choices);
    if (!*run_text(r, "recompute")) assume(r, "recomputation not published: none");
    ls_status st = price_choices(r, m, choices, 0, value, out);
    if (!out->tried || st == LS_ENOMEM) return st;
    put_choices(r, choices, out);
    if (waits_for_gathers(r, out->value[OPEN_ZERO])) assume(r, "ZeRO-3 of DeepSpeed: nothing hides its communication");
    return LS_OK;
}

/* Only memory that runs out ends the table: everything else is said in the row. */
static ls_status put_run(struct cases *k, int row, struct text *out)
{
    struct run r = { .table = k->table, .row = row };
    struct case_price price = { 0 };
    ls_status st = price_run(k, &r, &price);

    csv_put(out, run_text(&r, "row_id"));
    if (st == LS_OK) {
        text_put(out, ",%.6g,%.4g,%d,", price.seconds, price.bytes / 1e9, price.fits);
        csv_put(out, r.assumed.data ? r.assumed.data : "");
    } else {
        text_put(out, ",,,,");
        csv_put(out, ls_errmsg());
    }
    text_put(out, "\n");
    text_free(&r.assumed);
    return st == LS_ENOMEM ? st : LS_OK;
}

ls_status plan_cases_run(const char *in, const char *out, const struct cluster *machine)
{
    struct csv table;
    struct cases k = { .table = &table, .machine = machine };
    struct text text = { 0 };

    LS_TRY(csv_read(in, &table));
    ls_status st = LS_OK;
    if (!csv_has(&table, "row_id")) st = ls_fail(LS_EFORMAT, "%s: there is no column row_id", in);
    for (size_t i = 0; st == LS_OK && i < COUNT_OF(needed); i++)
        if (!csv_has(&table, needed[i])) st = ls_fail(LS_EFORMAT, "%s: there is no column %s", in, needed[i]);
    threads_set(1);
    text_put(&text, "row_id,step_seconds,memory_gb,fits,assumed\n");
    for (int i = 0; st == LS_OK && i < table.rows; i++) st = put_run(&k, i, &text);
    if (st == LS_OK) st = text_status(&text);
    if (st == LS_OK) st = file_write(out, text.data, text.bytes);
    if (st == LS_OK) printf("written     %s: %d rows\n", out, table.rows);
    for (int i = 0; i < k.npriced; i++) close_model(k.priced[i]);
    text_free(&text);
    csv_free(&table);
    return st;
}
