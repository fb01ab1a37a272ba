/* plan_cases.c - see plan_cases.h. */
#include "cli/plan_cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/csv.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/threads.h"
#include "cli/plan_case.h"
#include "plan/framework.h"
#include "train/plan/prices.h"

enum { PRICED_MODELS = 24 };

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
    const struct cluster *machine; /* machine of --machine; NULL: none */
    struct priced_model *priced[PRICED_MODELS];
    int npriced;
};

/* ---- the model and its layout ---- */

static ls_status open_model(struct plan_case *r, struct priced_model *m)
{
    struct world world = { .size = 1, .local_size = 1 };
    ls_layout layout;

    LS_TRY(options_open(config_table(), &m->config, VERB_PLAN, &m->options));
    LS_TRY(case_put_model(r, &m->options));
    LS_TRY(options_set(&m->options, "precision.compute", "bf16", "case"));
    LS_TRY(options_set(&m->options, "data.val_fraction", "0", "case"));
    LS_TRY(options_set(&m->options, "run.device", "cpu", "case"));
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
static ls_status find_model(struct cases *k, struct plan_case *r, const struct cluster *c, struct priced_model **out)
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
    if (k->npriced == PRICED_MODELS) { /* drops the oldest */
        close_model(k->priced[0]);
        memmove(k->priced, k->priced + 1, (PRICED_MODELS - 1) * sizeof *k->priced);
        k->npriced--;
    }
    *out = k->priced[k->npriced++] = m;
    return LS_OK;
}

/* "2", "3 (FSDP FULL_SHARD)", "dist-opt (1)", "FSDP2 (3)", "HSDP". */
static int zero_of(struct plan_case *r)
{
    const char *text = case_text(r, "zero_stage"), *in = strchr(text, '(');

    if (*text >= '0' && *text <= '3') return *text - '0';
    if (in && in[1] >= '0' && in[1] <= '3' && in[2] == ')') return in[1] - '0';
    if (strstr(text, "not resharded")) return 2;
    if (strstr(text, "FSDP") || strstr(text, "HSDP")) return 3;
    case_assume(r, "ZeRO stage not understood: 0");
    return 0;
}

static bool is_zb_v(const struct plan_case *r) { return case_says(r, "schedule", "ZB-V"); }

static const char *schedule_of(const struct plan_case *r, int vpp)
{
    if (is_zb_v(r) && vpp > 1) return "zb-v";
    if (case_says(r, "schedule", "ZB-")) return "zb-h1";
    return vpp > 1 ? "interleaved" : "1f1b";
}

/* Recomputation if a row does not name it: none, except for programs whose published configs have some. Pythia: checkpoint_activations.
 * dgxc-benchmarking's in JAX keep the outputs of matmuls (SAVE_DOT_ONLY), or those of attention's projections (SAVE_QKV_OUT_PROJ,
 * save_qkv_proj), which is nearly full recomputation: the last matmul of a block is not needed again. */
static const struct unsaid_recompute {
    const char *source, *model, *mode;
} unsaid_recomputes[] = {
    { "", "Pythia", "full" },
    { "paxml", "GPT3-5B", "selective" },
    { "paxml", "", "full" },
    { "maxtext", "", "full" },
};

static const char *recompute_word(const struct plan_case *r)
{
    const struct unsaid_recompute *u = unsaid_recomputes;

    if (*case_text(r, "recompute")) return case_text(r, "recompute");
    for (size_t i = 0; i < COUNT_OF(unsaid_recomputes); i++, u++)
        if (case_says(r, "source", u->source) && case_says(r, "model", u->model)) return u->mode;
    return "none";
}

static ls_recompute recompute_of(const struct plan_case *r)
{
    const char *word = recompute_word(r);

    return strstr(word, "full") ? LS_RECOMPUTE_FULL : strstr(word, "selective") ? LS_RECOMPUTE_SELECTIVE : LS_RECOMPUTE_NONE;
}

/* ---- values that may not be published ---- */

enum open { OPEN_TP, OPEN_PP, OPEN_VPP, OPEN_ZERO, OPEN_MICRO_BATCH, OPENS };
static const char *const open_names[OPENS] = { "tp", "pp", "virtual stages", "ZeRO stage", "micro-batch" };

/* The published value, or else the usual ones. */
struct choice {
    int n, value[16];
};

/* The usual values up to `most` that divide `whole`. */
static struct choice divisors(int whole, int most)
{
    static const int usual[] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64 };
    struct choice c = { 0 };

    for (size_t i = 0; i < COUNT_OF(usual) && usual[i] <= most; i++)
        if (whole % usual[i] == 0) c.value[c.n++] = usual[i];
    return c;
}

static struct choice published(int value) { return (struct choice){ 1, { value } }; }

/* Blocks of the middle stages of pipelines whose first and last stage have the embedding and the head instead of one: the zero-bubble runs
 * (Qi et al. 2024), and others with two stages more than blocks. 0: no such pipeline. */
static int blocks_between(const struct plan_case *r, int64_t stages)
{
    int64_t blocks = (int64_t)case_size(r, "layers", 1) + 2;

    if (stages < 2 || blocks % stages || (blocks > stages && !is_zero_bubble(r))) return 0;
    return (int)(blocks / stages);
}

/* More stages than blocks: lockstep has no such layout, and hardly any published run of this kind succeeded. */
static bool has_empty_stages(const struct plan_case *r)
{
    int64_t stages = (int64_t)case_size(r, "pp", 1) * MAX(1, case_size(r, "vpp", 1));

    return stages > case_size(r, "layers", INT32_MAX) && !blocks_between(r, stages);
}

/* A schedule that is named without interleaving has no virtual stages; too many stages are not divided further. */
static struct choice virtual_stages(const struct plan_case *r, const struct choice *pp)
{
    bool may = !*case_text(r, "schedule") || case_says(r, "schedule", "nterleaved");

    if (is_zb_v(r)) return published(2);
    if (case_number(r, "vpp", 0) >= 1) return published(case_size(r, "vpp", 1));
    if (!may || has_empty_stages(r) || (pp->n == 1 && pp->value[0] == 1)) return published(1);
    return divisors(24, 8);
}

/* A node's processors divided evenly: a rank's heads are whole, and no group of ranks is in two nodes. */
static struct choice tensor_sizes(const struct plan_case *r)
{
    int node = MAX(1, case_size(r, "gpus_per_node", 8));
    struct choice all = divisors(case_size(r, "heads", 1), MIN(node, 8)), c = { 0 };

    for (int i = 0; i < all.n; i++)
        if (node % all.value[i] == 0) c.value[c.n++] = all.value[i];
    return c;
}

static void find_choices(struct plan_case *r, struct choice c[OPENS])
{
    int tp = case_size(r, "tp", 0), pp = case_size(r, "pp", 0), micro = case_size(r, "micro_batch", 0);

    c[OPEN_TP] = tp > 0 ? published(tp) : tensor_sizes(r);
    c[OPEN_PP] = pp > 0 ? published(pp) : divisors(case_size(r, "layers", 1), 64);
    c[OPEN_VPP] = virtual_stages(r, &c[OPEN_PP]);
    c[OPEN_ZERO] = *case_text(r, "zero_stage") ? published(zero_of(r)) : (struct choice){ 2, { 0, 1 } };
    c[OPEN_MICRO_BATCH] = micro > 0 ? published(micro) : divisors(8, 8);
}

/* DeepSpeed's ZeRO-3 takes as long as if nothing hid its gathers and reductions (docs/planner.md). */
static bool waits_for_gathers(const struct plan_case *r, int zero) { return zero == 3 && names_deepspeed(r); }

/* The layout is checked with one more block at each end, which are then removed: "0,1,1,0". */
static ls_status check_stages(struct plan_case *r, const struct priced_model *m, ls_layout *l)
{
    int stages = l->pp * l->vpp, between = l->pp > 1 ? blocks_between(r, stages) : 0;
    ls_model model = m->model.transformer;

    if (between) model.layers += 2;
    l->stages = NULL;
    text_free(&r->stages);
    LS_TRY(ls_layout_check(&model, l));
    if (!between) return LS_OK;
    for (int i = 0; i < stages; i++) text_put(&r->stages, "%s%d", i ? "," : "", between - (i == 0 || i == stages - 1));
    LS_TRY(text_status(&r->stages));
    l->stages = r->stages.data;
    return LS_OK;
}

/* NeMo AutoModel's summary leaves ep out where FSDP's ranks are the experts': of its benchmark configs, gptoss_20b_te_deepep.yaml has
 * ep_size 8 of 8 GPUs, gptoss_120b_te_deepep.yaml 64 of 64. */
static bool experts_over_fsdp(const struct plan_case *r)
{
    return case_size(r, "ep", 1) == 1 && case_says(r, "source", "Automodel") && case_has_experts(r);
}

/* Sets the sizes of the axes; dp is the number of GPUs divided by the others. */
static ls_status put_mesh(const struct plan_case *r, const int value[OPENS], ls_layout *l)
{
    int gpus = case_size(r, "gpus", 1);

    l->tp = value[OPEN_TP];
    l->pp = value[OPEN_PP];
    l->cp = case_size(r, "cp", 1);
    if (l->tp < 1 || l->pp < 1 || l->cp < 1 || (int64_t)l->tp * l->pp > gpus || (int64_t)l->tp * l->pp * l->cp > gpus ||
        gpus % (l->tp * l->pp * l->cp))
        return ls_fail(LS_EINVAL, "inconsistent: %d GPUs are not a multiple of tp %d x pp %d x cp %d", gpus, l->tp, l->pp, l->cp);
    l->dp = gpus / (l->tp * l->pp * l->cp);
    if (case_number(r, "dp", l->dp) != l->dp)
        return ls_fail(LS_EINVAL, "inconsistent: dp %s, but %d GPUs with tp %d x pp %d x cp %d make dp %d", case_text(r, "dp"), gpus, l->tp,
                       l->pp, l->cp, l->dp);
    l->ep = experts_over_fsdp(r) ? l->dp * l->cp : case_size(r, "ep", 1);
    if (case_whole_experts(r) == l->dp * l->cp * l->tp) l->ep = l->dp * l->cp; /* as many experts on each rank, and as much work */
    return LS_OK;
}

static ls_status put_layout(struct plan_case *r, const struct priced_model *m, const int value[OPENS], bool given_vpp, ls_layout *l)
{
    int64_t samples = (int64_t)case_number(r, "global_batch", 1);

    LS_TRY(config_layout(&m->config, l));
    LS_TRY(put_mesh(r, value, l));
    l->receive_factor = l->ep > 1; /* buffers for an even load: other programs allocate for the rows that arrive */
    l->vpp = l->pp > 1 ? value[OPEN_VPP] : 1;
    if (!given_vpp && (value[OPEN_VPP] != l->vpp || (l->vpp > 1 && case_size(r, "layers", 1) % (l->pp * l->vpp))))
        return ls_fail(LS_EINVAL, "%d virtual stages do not divide the layers", value[OPEN_VPP]);
    l->schedule = l->pp > 1 ? schedule_of(r, l->vpp) : NULL;
    l->zero = l->dp * l->cp > 1 ? value[OPEN_ZERO] : 0;
    l->overlap = !waits_for_gathers(r, l->zero);
    l->sp = l->tp > 1 && case_size(r, "sequence_parallel", 0);
    l->recompute = recompute_of(r);
    l->micro_batch = value[OPEN_MICRO_BATCH];
    if (samples % ((int64_t)l->dp * l->micro_batch))
        return ls_fail(LS_EINVAL, "inconsistent: %" PRId64 " samples are not a multiple of dp %d x micro-batch %d", samples, l->dp,
                       l->micro_batch);
    l->micro_batches = (int)(samples / l->dp / l->micro_batch);
    return check_stages(r, m, l);
}

/* Zero-bubble pipelines that start the next step before the optimizers of all stages are done (Qi et al. 2024, 4): a step is as long as its
 * busiest stage, which is the lower bound of its price, and in ZB-V a part of ZB-H1's bubble. */
static bool hides_bubble(const struct plan_case *r) { return case_says(r, "schedule", "ZB-2p") || is_zb_v(r); }

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

/* The framework, if its memory formula is known, which covers models without experts only. */
static const struct framework *case_framework(const struct plan_case *r)
{
    return case_has_experts(r) ? NULL : framework_of(case_text(r, "source"));
}

/* The memory of the run's own framework, if its formula is known; else that of lockstep. */
static ls_status plan_cases_put_bytes(const struct plan_case *r, const ls_layout *l, struct price *out)
{
    const struct framework *f = case_framework(r);
    struct framework_model m = { .layers = case_size(r, "layers", 1),
                                 .hidden = case_number(r, "hidden", 1),
                                 .ffn = case_number(r, "ffn_hidden", 1),
                                 .heads = case_number(r, "heads", 1),
                                 .kv_heads = case_number(r, "kv_heads", case_number(r, "heads", 1)),
                                 .vocab = case_number(r, "vocab", 1),
                                 .seq_len = case_number(r, "seq", 1),
                                 .gated = case_size(r, "glu", 1) != 0,
                                 .tied = case_size(r, "tied_emb", 0) != 0,
                                 .fused_attention = attention_is_fused(r),
                                 .f32_gradients = case_says(r, "precision", "fp32 grad") };

    return f ? framework_bytes(f, &m, l, case_says(r, "schedule", "ZB-2p"), &out->bytes) : LS_OK;
}

/* ZB-V has no bubble if forward, inputs' gradients and weights' gradients take equally long. They do not: it has 0.38 to 0.41 of ZB-H1's
 * bubble on the same ranks (Qi et al. 2024, table 8). */
static ls_status add_zb_v_bubble(struct plan_case *r, struct priced_model *m, const int value[OPENS], struct price *out)
{
    struct price busiest, step;
    int plain[OPENS];
    ls_layout l;

    memcpy(plain, value, sizeof plain);
    plain[OPEN_VPP] = 1;
    LS_TRY(put_layout(r, m, plain, true, &l));
    LS_TRY(prices_price(m->prices, &l, INFINITY, 0, &busiest));
    LS_TRY(prices_price(m->prices, &l, INFINITY, INFINITY, &step));
    out->seconds += 0.4 * (step.seconds - busiest.seconds);
    return LS_OK;
}

/* Prices the layouts of all combinations of the choices from `at` on. Returns the status of the last. */
static ls_status price_choices(struct plan_case *r, struct priced_model *m, const struct choice c[OPENS], int at, int value[OPENS],
                               struct case_price *best)
{
    ls_status st = LS_OK;
    struct price price;
    double room;
    ls_layout l;

    if (at == OPENS) {
        LS_TRY(put_layout(r, m, value, c[OPEN_VPP].n == 1, &l));
        LS_TRY(prices_price(m->prices, &l, INFINITY, hides_bubble(r) ? 0 : INFINITY, &price));
        LS_TRY(plan_cases_put_bytes(r, &l, &price));
        room = m->cluster.memory - m->cluster.reserved - group_buffers_of(&m->cluster, &l);
        if (is_zb_v(r)) LS_TRY(add_zb_v_bubble(r, m, value, &price));
        take_better(best, &price, room, value);
        return LS_OK;
    }
    for (int i = 0; i < c[at].n && st != LS_ENOMEM; i++) {
        value[at] = c[at].value[i];
        st = price_choices(r, m, c, at + 1, value, best);
    }
    return st;
}

static void put_choices(struct plan_case *r, const struct choice c[OPENS], const struct case_price *best)
{
    char text[120];

    for (int i = 0; i < OPENS; i++) {
        if (c[i].n <= 1) continue;
        snprintf(text, sizeof text, "%s not published: %d", open_names[i], best->value[i]);
        case_assume(r, text);
    }
    if (best->tried < 2) return;
    snprintf(text, sizeof text, "%s of %d layouts with %.4g to %.4g s", best->fits ? "the fastest that fits" : "none fits; the fastest",
             best->tried, best->fastest, best->slowest);
    case_assume(r, text);
}

static ls_status price_run(struct cases *k, struct plan_case *r, struct case_price *out)
{
    struct choice choices[OPENS];
    int value[OPENS];
    struct priced_model *m;
    struct cluster c;
    char text[80];

    LS_TRY(case_check_model(r));
    LS_TRY(case_machine(r, k->machine, &c));
    case_assume_model(r);
    LS_TRY(find_model(k, r, &c, &m));
    find_choices(r, choices);
    if (!*case_text(r, "recompute")) {
        snprintf(text, sizeof text, "recomputation not published: %s", recompute_word(r));
        case_assume(r, text);
    }
    ls_status st = price_choices(r, m, choices, 0, value, out);
    if (!out->tried && st == LS_OK) st = ls_fail(LS_EINVAL, "no usual layout has these sizes");
    if (!out->tried || st == LS_ENOMEM) return st;
    put_choices(r, choices, out);
    const struct framework *f = case_framework(r);
    if (f) {
        snprintf(text, sizeof text, "memory as %s holds it", framework_name(f));
        case_assume(r, text);
    }
    if (experts_over_fsdp(r)) case_assume(r, "experts over all ranks of FSDP");
    if (case_whole_experts(r)) case_assume(r, "experts are not sharded over tp");
    if (r->stages.bytes) case_assume(r, "the first and the last stage have a block less than the others");
    if (hides_bubble(r)) case_assume(r, "the step of its busiest stage");
    if (is_zb_v(r)) case_assume(r, "0.4 of ZB-H1's bubble");
    if (waits_for_gathers(r, out->value[OPEN_ZERO])) case_assume(r, "ZeRO-3 of DeepSpeed: its communication is not hidden");
    return LS_OK;
}

/* Only running out of memory ends the table: every other failure is noted in its row. */
static ls_status put_run(struct cases *k, int row, struct text *out)
{
    struct plan_case r = { .table = k->table, .row = row };
    struct case_price price = { 0 };
    ls_status st = price_run(k, &r, &price);

    csv_put(out, case_text(&r, "row_id"));
    if (st == LS_OK) {
        text_put(out, ",%.6g,%.4g,%d,", price.seconds, price.bytes / (1 << 30), price.fits);
        csv_put(out, r.assumed.data ? r.assumed.data : "");
    } else {
        text_put(out, ",,,%s,", has_empty_stages(&r) ? "0" : "");
        csv_put(out, ls_errmsg());
    }
    text_put(out, "\n");
    text_free(&r.assumed);
    text_free(&r.stages);
    return st == LS_ENOMEM ? st : LS_OK;
}

ls_status plan_cases_run(const char *in, const char *out, const struct cluster *machine)
{
    struct csv table;
    struct cases k = { .table = &table, .machine = machine };
    struct text text = { 0 };
    const char *needed;

    LS_TRY(csv_read(in, &table));
    ls_status st = LS_OK;
    if (!csv_has(&table, "row_id")) st = ls_fail(LS_EFORMAT, "%s: there is no column row_id", in);
    for (size_t i = 0; st == LS_OK && (needed = case_needed(i)); i++)
        if (!csv_has(&table, needed)) st = ls_fail(LS_EFORMAT, "%s: there is no column %s", in, needed);
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
