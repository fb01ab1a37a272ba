/* cmd_compare.c - `lockstep compare`: layouts side by side, without running them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/terminal.h"
#include "train/plan/plan_layout.h"

static const char *compare_machine;
static struct cluster compare_cluster; /* zeroed: not given */
static bool compare_json;
static int64_t more_ranks;

static const struct flag compare_flags[] = {
    { "machine", FLAG_STRING, &compare_machine, 0, 0, "NAME",
      "machine by name or as a FILE.yaml: also compares seconds (docs/planner.md)" },
    { "ranks", FLAG_INT, &more_ranks, 1, LS_MESH_RANKS_MOST, "N", "ranks of every layout, as -n N" },
    { "json", FLAG_SWITCH, &compare_json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

/* A layout, and its bytes and seconds. */
struct compared {
    const char *words; /* as given */
    struct config config;
    struct options options;
    struct task_model model;
    struct plan_job job;
    ls_layout layout;
    ls_plan plan;
};

/* ---- one layout ---- */

static ls_status take_words(struct compared *x)
{
    char *copy = mem_strdup(x->words), *rest = copy, *word;
    ls_status st = copy ? LS_OK : LS_ENOMEM;

    while (st == LS_OK && (word = strsep(&rest, " "))) {
        char *name = strncmp(word, "--", 2) == 0 ? word + 2 : word, *value = strchr(name, '=');

        if (!*name) continue;
        if (value) *value++ = '\0';
        st = options_set(&x->options, name, value ? value : "true", "layout");
    }
    mem_free(copy);
    return st;
}

static ls_status check_use(const struct config *c)
{
    if (c->data.text[0] || c->data.tokens[0])
        return ls_fail(LS_EINVAL, "%s: no data are read to compare layouts; leave it out", c->data.text[0] ? "data.text" : "data.tokens");
    return LS_OK;
}

/* global: samples of a step; 0: as many as the options say. */
static ls_status resolve(const struct invocation *in, const char *words, int64_t global, struct compared *x)
{
    const struct option_table *t = config_table();
    struct config *c = &x->config;
    char text[32];

    *x = (struct compared){ .words = words };
    LS_TRY(options_open(t, c, VERB_PLAN, &x->options));
    LS_TRY(take_words(x));
    for (size_t i = 0; i < t->count; i++) LS_TRY(options_inherit(&x->options, &in->options, t->rows[i].name));
    if (more_ranks > 0) c->launch.ranks = more_ranks;
    if (*compare_cluster.name) step_seconds_settle(c, &compare_cluster);
    if (c->run.device == 0) c->run.device = 1; /* the programs are those of the cpu: row 0 of DEVICE_MAP */
    snprintf(text, sizeof text, "%" PRId64, global);
    if (global > 0) LS_TRY(options_set(&x->options, "train.global_batch", text, "layout"));
    LS_TRY(config_ranks(c, VERB_PLAN, &in->world));
    LS_TRY(config_apply(c, VERB_PLAN, &in->world));
    LS_TRY(config_check(c, VERB_PLAN));
    LS_TRY(check_use(c));
    return config_check_fit(c);
}

/* Bytes that a rank may hold; 0: not known. */
static size_t limit_of(const struct compared *x)
{
    size_t limit = x->config.run.memory_limit;

    return limit || !*compare_cluster.name ? limit : plan_limit_of(&compare_cluster);
}

static ls_status measure(const struct invocation *in, struct compared *x)
{
    LS_TRY(config_apply(&x->config, VERB_PLAN, &in->world)); /* again: the last layout was resolved since */
    plan_set_threads(&x->config, (int)x->config.launch.ranks, *compare_cluster.name);
    LS_TRY(task_model_of(&x->config, 0, &x->model));
    LS_TRY(plan_of_config(&x->config, &x->model, &x->job, &x->layout));
    if (*compare_cluster.name) x->job.cluster = &compare_cluster;
    return plan_layout(&x->job, &x->layout, limit_of(x), &x->plan);
}

/* ---- in words ---- */

static void put_splits(const ls_layout *l)
{
    static const char *const sharded[] = { "", ", and optimizer state", ", and optimizer state and gradients",
                                           ", and optimizer state, gradients and parameters" };
    const char *comma = "";

    printf("   splits     ");
    if (l->dp > 1) printf("samples over %d ranks%s", l->dp, sharded[l->zero]), comma = "; ";
    if (l->tp > 1)
        printf("%sheads, inner widths and vocabulary over %d%s", comma, l->tp, l->sp ? ", and the tokens between" : ""), comma = "; ";
    if (l->cp > 1) printf("%stokens of a sample over %d%s", comma, l->cp, l->dp == 1 ? sharded[l->zero] : ""), comma = "; ";
    if (l->pp > 1) printf("%slayers over %d", comma, l->pp), comma = "; ";
    if (l->ep > 1) printf("%sexperts over %d", comma, l->ep), comma = "; ";
    printf("%s\n", *comma ? "" : "nothing");
}

static void put_use(const ls_layout *l)
{
    static const char *const zero[] = {
        "a rank's part of the model fits with its optimizer state: one all-reduce of the gradients per step",
        "optimizer state does not fit: as much communication as without",
        "gradients do not fit either: every micro-batch reduces them",
        "parameters do not fit either: every micro-batch gathers them twice, which enough samples per rank can hide",
    };

    if (l->dp * l->cp > 1) printf("   use when   %s\n", zero[l->zero]);
    if (l->tp > 1)
        printf("   use when   layers are too large, or samples too few: it communicates in every layer, so keep it inside a node\n");
    if (l->cp > 1) printf("   use when   sequences are so long that one rank cannot hold their activations\n");
    if (l->pp > 1)
        printf("   use when   links are slow: it sends the least, but ranks wait unless there are many micro-batches per step\n");
    if (l->ep > 1) printf("   use when   experts do not fit: rows go to the ranks of their experts and back\n");
    if (l->offload || l->offload_parameters)
        printf("   use when   nothing else fits: offloaded state is loaded and saved %s\n",
               l->offload_parameters ? "by every micro-batch" : "once a step");
    else if (ls_layout_ranks(l) == 1)
        printf("   use when   everything fits\n");
}

/* ---- the table ---- */

static double computing(const struct compared *x)
{
    const ls_plan_seconds *s = &x->plan.seconds;

    return s->optimizer + s->matmul + s->attention + s->memory_bound;
}

static double exposed(const struct compared *x)
{
    double sum = 0;

    for (int a = 0; a < LS_AXES; a++) sum += x->plan.seconds.exposed[a];
    return sum;
}

static double copying(const struct compared *x) { return x->plan.seconds.exposed[LS_PLAN_OFFLOAD]; }

static double mfu(const struct compared *x) { return 100 * x->plan.mfu; }

static double parameters_of(const struct compared *x) { return (double)x->plan.bytes.parameters; }
static double gradients_of(const struct compared *x) { return (double)x->plan.bytes.gradients; }
static double optimizer_of(const struct compared *x) { return (double)x->plan.bytes.optimizer; }
static double activations_of(const struct compared *x) { return (double)x->plan.bytes.activations; }
static double buffers_of(const struct compared *x) { return (double)x->plan.bytes.communication; }
static double offloaded_of(const struct compared *x) { return (double)(x->plan.bytes.host + x->plan.bytes.offload + x->plan.bytes.file); }
static double total_of(const struct compared *x) { return (double)x->plan.bytes.total; }
static double fits(const struct compared *x) { return x->plan.bytes.fits; }
static double compare_step_of(const struct compared *x) { return x->plan.seconds.step; }
static double bubble_of(const struct compared *x) { return x->plan.seconds.bubble; }
static double speed_of(const struct compared *x) { return x->plan.tokens_per_second; }

static double sent_of(const struct compared *x)
{
    size_t sum = 0;

    for (int op = 0; op < LS_COLLECTIVES; op++) sum += x->plan.sent[op];
    return (double)sum;
}

static double calls_of(const struct compared *x)
{
    size_t sum = 0;

    for (int op = 0; op < LS_COLLECTIVES; op++) sum += x->plan.calls[op];
    return (double)sum;
}

static double link_of(const struct compared *x) { return sent_of(x) / computing(x); }

static const struct figure {
    const char *name, *key;
    enum { FIGURE_BYTES, FIGURE_COUNT, FIGURE_SECONDS, FIGURE_PERCENT, FIGURE_RATE, FIGURE_FITS } kind;
    /* only with a machine (FIGURE_FITS also with a limit); left out of the table if it is 0 for all */
    enum { ALWAYS, TIMED = 1, RARE = 2 } shown;
    double (*of)(const struct compared *x);
} figures[] = {
    { "parameters", "parameters", FIGURE_BYTES, ALWAYS, parameters_of },
    { "gradients", "gradients", FIGURE_BYTES, ALWAYS, gradients_of },
    { "optimizer", "optimizer", FIGURE_BYTES, ALWAYS, optimizer_of },
    { "activations", "activations", FIGURE_BYTES, ALWAYS, activations_of },
    { "communication buffers", "communication", FIGURE_BYTES, ALWAYS, buffers_of },
    { "offloaded", "offloaded", FIGURE_BYTES, RARE, offloaded_of },
    { "memory of a rank", "memory", FIGURE_BYTES, ALWAYS, total_of },
    { "it fits", "fits", FIGURE_FITS, TIMED, fits },
    { "sent by a rank per step", "sent", FIGURE_BYTES, ALWAYS, sent_of },
    { "in collectives", "collectives", FIGURE_COUNT, ALWAYS, calls_of },
    { "computing", "computing", FIGURE_SECONDS, TIMED, computing },
    { "waiting for messages", "exposed", FIGURE_SECONDS, TIMED, exposed },
    { "loading and saving", "offload_seconds", FIGURE_SECONDS, TIMED | RARE, copying },
    { "pipeline bubble", "bubble", FIGURE_SECONDS, TIMED, bubble_of },
    { "step", "step", FIGURE_SECONDS, TIMED, compare_step_of },
    { "tokens a second", "tokens_per_second", FIGURE_COUNT, TIMED, speed_of },
    { "MFU", "mfu_percent", FIGURE_PERCENT, TIMED, mfu },
    { "link needed", "link_needed", FIGURE_RATE, TIMED, link_of },
};

enum { COLUMN = 16 };

static bool is_zero(const struct figure *f, const struct compared *x, int n)
{
    for (int i = 0; i < n; i++)
        if (f->of(&x[i]) > 0) return false;
    return true;
}

static bool is_shown(const struct figure *f, const struct compared *x)
{
    return !(f->shown & TIMED) || *compare_cluster.name || (f->kind == FIGURE_FITS && limit_of(x) > 0);
}

static void put_figure(const struct figure *f, double x)
{
    char text[32], number[32];

    switch (f->kind) {
    case FIGURE_BYTES: snprintf(text, sizeof text, "%s", text_bytes(number, (size_t)x)); break;
    case FIGURE_COUNT: snprintf(text, sizeof text, "%s", text_count(number, (int64_t)x)); break;
    case FIGURE_SECONDS: snprintf(text, sizeof text, "%.4g s", x); break;
    case FIGURE_PERCENT: snprintf(text, sizeof text, "%.1f%%", x); break;
    case FIGURE_FITS: snprintf(text, sizeof text, "%s", x > 0 ? "yes" : "no"); break;
    case FIGURE_RATE: snprintf(text, sizeof text, "%.3g GB/s", x / 1e9); break;
    }
    printf("%*s", COLUMN, text);
}

static void cmd_compare_put_table(const struct compared *x, int n)
{
    char text[LS_LAYOUT_TEXT], name[TASK_TEXT];

    x->model.task->describe(&x->model, true, name);
    printf("%s; %" PRId64 " samples a step%s%s\n\n", name, x->config.train.global_batch, *compare_cluster.name ? ", on " : "",
           compare_cluster.processor);
    for (int i = 0; i < n; i++) {
        int64_t ranks = ls_layout_ranks(&x[i].layout);

        printf("%c  %s: %" PRId64 " rank%s, %s, micro-batch %d x %d\n", 'a' + i, x[i].words, ranks, ranks > 1 ? "s" : "",
               ls_layout_text(&x[i].layout, text, sizeof text), x[i].layout.micro_batch, x[i].layout.micro_batches);
        put_splits(&x[i].layout);
        put_use(&x[i].layout);
    }
    printf("\n%-24s", "");
    for (int i = 0; i < n; i++) printf("%*c", COLUMN, 'a' + i);
    printf("\n");
    for (size_t f = 0; f < COUNT_OF(figures); f++) {
        if (!is_shown(&figures[f], x) || ((figures[f].shown & RARE) && is_zero(&figures[f], x, n))) continue;
        printf("%-24s", figures[f].name);
        for (int i = 0; i < n; i++) put_figure(&figures[f], figures[f].of(&x[i]));
        printf("\n");
    }
    if (*compare_cluster.name) printf("\nlink needed: at that rate, sending takes as long as computing; a slower link cannot hide it.\n");
}

static ls_status cmd_compare_put_json(const struct compared *x, int n)
{
    struct json_out j = { 0 };
    char text[LS_LAYOUT_TEXT];

    json_begin_object(&j, NULL);
    json_begin_array(&j, "layouts");
    for (int i = 0; i < n; i++) {
        json_begin_object(&j, NULL);
        json_put_string(&j, "options", x[i].words);
        json_put_string(&j, "layout", ls_layout_text(&x[i].layout, text, sizeof text));
        json_put_int(&j, "ranks", ls_layout_ranks(&x[i].layout));
        for (size_t f = 0; f < COUNT_OF(figures); f++)
            if (is_shown(&figures[f], &x[i])) json_put_real(&j, figures[f].key, figures[f].of(&x[i]));
        json_end_object(&j);
    }
    json_end_array(&j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

/* ---- the command ---- */

/* All layouts compute the same number of samples: the given one, or the largest that one of them has by default. */
static ls_status compare_all(const struct invocation *in, struct compared *x)
{
    int64_t most = 0;
    bool given = strcmp(options_origin(&in->options, "train.global_batch"), "default") != 0;

    for (int pass = 0; pass < (given ? 1 : 2); pass++)
        for (int i = 0; i < in->count; i++) {
            options_close(&x[i].options);
            ls_status st = resolve(in, in->arguments[i], most > 0 && pass ? most : 0, &x[i]);
            if (st < 0) return ls_fail_at(st, "'%s'", in->arguments[i]);
            if (!pass) most = MAX(most, x[i].config.train.global_batch);
        }
    for (int i = 0; i < in->count; i++) {
        ls_status st = measure(in, &x[i]);

        if (st < 0) return ls_fail_at(st, "'%s'", in->arguments[i]);
    }
    if (compare_json) return cmd_compare_put_json(x, in->count);
    cmd_compare_put_table(x, in->count);
    return LS_OK;
}

static ls_status cmd_compare_run(struct invocation *in)
{
    struct compared *x = mem_array(MEM_OTHER, (size_t)in->count, sizeof *x);

    if (!x) return LS_ENOMEM;
    mem_keep_pages();
    if (compare_machine) {
        ls_status st = cluster_read_own(compare_machine, &compare_cluster);

        if (st < 0) {
            mem_free(x);
            return args_refuse(in, st);
        }
    }
    ls_status st = compare_all(in, x);
    for (int i = 0; i < in->count; i++) options_close(&x[i].options);
    mem_free(x);
    return args_refuse(in, st);
}

const struct command command_compare = {
    .name = "compare",
    .arguments = "LAYOUT LAYOUT...",
    .least = 2,
    .most = 8,
    .several = true,
    .summary = "print layouts side by side: what is split, memory, messages, and seconds on a described machine",
    .verb = VERB_PLAN,
    .flags = compare_flags,
    .run = cmd_compare_run,
    .about =
        "A layout consists of options, such as \"parallel.tp=2 parallel.zero=1\"; options outside of the quotes apply to all layouts.\n",
    .examples =
        "  lockstep compare \"parallel.zero=3\" \"parallel.tp=8\" \"parallel.pp=4\" -n 8 --model.preset=llama3-8b --data.seq_len=4096 \\\n"
        "      --machine h100-dgx\n"
        "  lockstep compare \"recompute.mode=none\" \"recompute.mode=full\" --model.preset=gpt2-124m --data.seq_len=1024\n",
};
