/* plan_search.c - see plan_search.h. */
#include "cli/plan_search.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/plan_html.h"
#include "cli/terminal.h"

/* ---- the request ---- */

static const struct {
    const char *option;
    unsigned choice;
} choices[] = {
    { "parallel.dp", SEARCH_DP },
    { "parallel.tp", SEARCH_TP },
    { "parallel.cp", SEARCH_CP },
    { "parallel.pp", SEARCH_PP },
    { "parallel.ep", SEARCH_EP },
    { "parallel.vpp", SEARCH_VPP },
    { "parallel.schedule", SEARCH_SCHEDULE },
    { "parallel.zero", SEARCH_ZERO },
    { "parallel.replicate", SEARCH_REPLICATE },
    { "parallel.sp", SEARCH_SP },
    { "parallel.cp_method", SEARCH_CP_METHOD },
    { "train.micro_batch", SEARCH_MICRO_BATCH },
    { "recompute.mode", SEARCH_RECOMPUTE },
    { "optim.offload", SEARCH_OFFLOAD },
    { "parallel.offload_parameters", SEARCH_OFFLOAD },
};

static bool is_given(const struct invocation *in, const char *option)
{
    return strcmp(options_origin(&in->options, option), "default") != 0;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

ls_status plan_search_complete(struct invocation *in, struct search_request *r)
{
    struct config *c = &in->config;
    int64_t others = c->parallel.pp * c->parallel.cp * c->parallel.tp;

    for (size_t i = 0; i < COUNT_OF(choices); i++) r->fixed |= is_given(in, choices[i].option) ? choices[i].choice : 0;
    if (r->ranks <= 0) r->ranks = c->launch.ranks;
    if (r->ranks <= 0) return ls_fail(LS_EINVAL, "--search needs the number of ranks: add -n N");
    if (!is_given(in, "train.global_batch") || c->train.global_batch < 1)
        return ls_fail(LS_EINVAL,
                       "--search needs the number of samples per step, which is the same for all layouts: add --train.global_batch=N");
    if (is_given(in, "train.accumulate"))
        return ls_fail(LS_EINVAL, "train.accumulate with --search: it follows from the layout and train.global_batch; leave it out");
    int64_t given = others * (r->fixed & SEARCH_DP ? c->parallel.dp : 1);
    if (r->ranks % given)
        return ls_fail(LS_EINVAL, "-n %" PRId64 " is not divisible by the product of the given axes, %" PRId64, r->ranks, given);
    if (!(r->fixed & SEARCH_DP)) c->parallel.dp = common_divisor(r->ranks / others, c->train.global_batch);
    c->launch.ranks = 0; /* as many as the axes give: this layout is only checked, the search replaces it */
    return LS_OK;
}

/* ---- printing ---- */

struct searched {
    const struct invocation *in;
    const struct search_request *request;
    const struct search_result *result;
    const struct task_model *model;
    double tokens;     /* tokens per step */
    double peak;       /* peak FLOP/s of all processors; 0: unknown */
    const char *units; /* "tokens" */
};

static void put_found(const struct searched *s, int i)
{
    const struct search_found *x = &s->result->best[i];
    double first = s->result->best[0].seconds.step;
    char text[SEARCH_TEXT], size[16], mfu[16] = "     -", slower[16] = "";

    if (!x->exact) return;
    if (s->peak > 0) snprintf(mfu, sizeof mfu, "%5.1f%%", 100 * x->seconds.model_flops / x->seconds.step / s->peak);
    if (i) snprintf(slower, sizeof slower, "+%.1f%%", 100 * (x->seconds.step / first - 1));
    printf("  %2d  %10.4g s  %7s  MFU %s  %10s  %s\n", i + 1, x->seconds.step, slower, mfu, text_bytes(size, x->plan.total),
           search_layout_text(&x->layout, text));
}

static int axes_of(int uses) { return __builtin_popcount((unsigned)uses); }

/* The fastest layout with the fewest axes. */
static int simplest_of(const struct search_result *r)
{
    int best = -1;

    for (int i = 0; i < SEARCH_USES; i++) {
        if (isinf(r->with[i].price)) continue;
        if (best < 0 || axes_of(i) < axes_of(best) || (axes_of(i) == axes_of(best) && r->with[i].price < r->with[best].price)) best = i;
    }
    return best;
}

/* The axis whose addition makes layouts with these axes fastest; -1: none makes them faster. */
static int axis_that_helps(const struct search_result *r, int uses)
{
    int best = -1;

    for (int bit = 1; bit < SEARCH_USES; bit *= 2)
        if (!(uses & bit) && r->with[uses | bit].price < r->with[best < 0 ? uses : uses | best].price) best = bit;
    return best;
}

static void put_step_of_argument(const char *what, const struct search_found *x, double before)
{
    char text[SEARCH_TEXT], size[16], gain[24] = "";

    if (before > 0) snprintf(gain, sizeof gain, "%.1f%% less", 100 * (1 - x->price / before));
    printf("  %-14s  %10.4g s  %11s  %10s  %s\n", what, x->price, gain, text_bytes(size, (size_t)x->bytes),
           search_layout_text(&x->layout, text));
}

/* Prints the way from the simplest layout that fits to the fastest, adding one axis at a time. */
static void put_argument(const struct search_result *r)
{
    static const char *const names[] = {
        [SEARCH_USES_TP] = "with tp", [SEARCH_USES_CP] = "with cp", [SEARCH_USES_PP] = "with pp", [SEARCH_USES_EP] = "with ep"
    };
    int uses = simplest_of(r), bit;
    double before = r->with[uses].price;

    printf("why         from the simplest layout that fits; each line adds the axis that helps most (estimated prices, to about %.0f%%)\n",
           100 * SEARCH_SLACK);
    put_step_of_argument(uses ? "simplest" : "dp alone", &r->with[uses], 0);
    while ((bit = axis_that_helps(r, uses)) > 0) {
        uses |= bit;
        put_step_of_argument(names[bit], &r->with[uses], before);
        before = r->with[uses].price;
    }
    for (bit = 1; bit < SEARCH_USES; bit *= 2) {
        double more = MIN(r->with[uses | bit].price, r->bound[uses | bit]) / before;

        if (uses & bit || isinf(more)) continue;
        printf("  %-14s  %s%.1f%% more: left out\n", names[bit], r->bound[uses | bit] < r->with[uses | bit].price ? "at least " : "",
               100 * MAX(more - 1, 0));
    }
}

/* Prints the bytes of the step's state on one rank, which decide whether it must be sharded. */
static ls_status put_state(const struct searched *s, const struct plan_job *job, const ls_layout *base)
{
    ls_layout one = search_alone(base);
    struct plan_job alone = *job;
    struct plan_bytes plan;
    char state[16], room[16];

    alone.step.global = 1;
    LS_TRY(plan_of_rank(&alone, &one, 0, &plan));
    double bytes = (double)(plan.cost.parameters + plan.cost.gradients + plan.cost.optimizer);
    printf("memory      %s of parameters, gradients and optimizer state in all; a rank has %s%s\n", text_bytes(state, (size_t)bytes),
           text_bytes(room, (size_t)s->request->room),
           bytes > s->request->room ? s->request->ranks > 1 ? ", so they have to be sharded" : ", so they do not fit" : "");
    return LS_OK;
}

static ls_status put_search(const struct searched *s, const struct plan_job *job, const ls_layout *base)
{
    const struct search_result *r = s->result;
    char ranks[32], what[TASK_TEXT], checked[32], priced[32], fit[32], tokens[32];

    s->model->task->describe(s->model, true, what);
    printf("model       %s\n", what);
    printf("step        %" PRId64 " samples of %d tokens on %s processor%s (%s): %s tokens\n", s->in->config.train.global_batch,
           base->seq_len, text_count(ranks, s->request->ranks), s->request->ranks > 1 ? "s" : "", s->request->cluster->processor,
           text_count(tokens, (int64_t)s->tokens));
    LS_TRY(put_state(s, job, base));
    printf("search      %s layouts were checked; %s may be among the fastest and were priced, %s of these fit; the best %d were compiled\n",
           text_count(checked, r->checked), text_count(priced, r->priced), text_count(fit, r->fit), r->exact);
    printf("fastest     time of a step, more than the first, MFU, memory of the rank that holds the most\n");
    for (int i = 0; i < MIN(r->exact, 5); i++) put_found(s, i);
    put_argument(r);
    return LS_OK;
}

/* ---- the winner as options ---- */

/* Sets the options "--name=value ..." of a text. */
static ls_status take_options(struct options *o, char *text)
{
    for (char *word; (word = strsep(&text, " "));) {
        char *value = strchr(word, '=');

        if (!value) continue;
        *value++ = '\0';
        LS_TRY(options_set(o, word + 2, value, "search"));
    }
    return LS_OK;
}

/* The options that turn `from` into `to`; free with text_free(). */
static ls_status put_options(const ls_layout *from, const ls_layout *to, struct text *out)
{
    *out = (struct text){ 0 };
    return config_layout_options(from, to, out);
}

static ls_status write_config(struct invocation *in, const char *path, const ls_layout *base, const ls_layout *best)
{
    ls_layout fresh = ls_layout_default();
    const ls_layout *const from[] = { base, &fresh };
    struct text options, out = { 0 };

    fresh.offload_path = best->offload_path;
    for (size_t i = 0; i < COUNT_OF(from); i++) {
        ls_status st = put_options(from[i], best, &options);

        if (st == LS_OK && options.data) st = take_options(&in->options, options.data);
        text_free(&options);
        if (st < 0) return st;
    }
    LS_TRY(options_set(&in->options, "precision.compute", best->compute == LS_BF16 ? "bf16" : "fp32", "search"));
    /* Restores the automatic values that the plan replaced. */
    if (!is_given(in, "run.device")) in->config.run.device = 0;
    if (!is_given(in, "run.isa")) in->config.run.isa = CONFIG_ISA_BEST;
    options_put_yaml(&in->options, true, &out);
    ls_status st = text_status(&out);
    if (st == LS_OK) st = file_write(path, out.data, out.bytes);
    text_free(&out);
    return st;
}

static ls_status put_winner(const struct searched *s)
{
    const ls_layout *best = &s->result->best[0].layout;
    ls_layout fresh = ls_layout_default();
    struct text options;

    fresh.compute = best->compute;
    fresh.seq_len = best->seq_len;
    fresh.offload_path = best->offload_path;
    ls_status st = put_options(&fresh, best, &options);
    if (st == LS_OK) printf("options     %s\n", options.data ? options.data : "");
    text_free(&options);
    return st;
}

/* ---- JSON ---- */

static ls_status put_found_json(const struct search_found *x, struct json_out *j)
{
    ls_layout fresh = ls_layout_default();
    struct text options;

    fresh.offload_path = x->layout.offload_path;
    json_begin_object(j, NULL);
    ls_status st = put_options(&fresh, &x->layout, &options);
    if (st == LS_OK) json_put_string(j, "options", options.data ? options.data : "");
    text_free(&options);
    json_put_bool(j, "compiled", x->exact);
    json_put_real(j, "seconds", x->exact ? x->seconds.step : x->price);
    json_put_real(j, "bytes", x->exact ? (double)x->plan.total : x->bytes);
    json_end_object(j);
    return st;
}

static ls_status put_json(const struct searched *s)
{
    const struct search_result *r = s->result;
    struct json_out j = { 0 };

    json_begin_object(&j, NULL);
    json_put_int(&j, "ranks", s->request->ranks);
    json_put_int(&j, "checked", r->checked);
    json_put_int(&j, "priced", r->priced);
    json_put_int(&j, "fit", r->fit);
    json_put_int(&j, "programs", r->compiled);
    json_begin_array(&j, "fastest");
    for (int i = 0; i < r->found; i++) LS_TRY(put_found_json(&r->best[i], &j));
    json_end_array(&j);
    json_begin_array(&j, "with_axes");
    for (int i = 0; i < SEARCH_USES; i++)
        if (isfinite(r->with[i].price)) LS_TRY(put_found_json(&r->with[i], &j));
    json_end_array(&j);
    json_end_object(&j);
    return terminal_put_json(&j);
}

static ls_status write_page(const struct searched *s)
{
    char title[2 * TASK_TEXT + CLUSTER_NAME], what[TASK_TEXT], ranks[32];

    s->model->task->describe(s->model, true, what);
    snprintf(title, sizeof title, "%s: %" PRId64 " samples per step on %s processors (%s)", what, s->in->config.train.global_batch,
             text_count(ranks, s->request->ranks), s->request->cluster->processor);
    return plan_html_search(s->request->html, title, s->result, s->request->room);
}

/* ---- running ---- */

ls_status plan_search_run(struct invocation *in, const struct search_request *r, const struct plan_job *job, const ls_layout *base)
{
    struct search_space space = {
        .ranks = (int)r->ranks, .global = (size_t)in->config.train.global_batch, .room = r->room, .fixed = r->fixed, .base = *base
    };
    struct search_result *result = mem_array(MEM_OTHER, 1, sizeof *result);
    struct plan_job whole = *job;

    if (!result) return LS_ENOMEM;
    struct searched s = { .in = in,
                          .request = r,
                          .result = result,
                          .model = job->model,
                          .tokens = (double)space.global * base->seq_len,
                          .peak = r->cluster->flops[base->compute] * (double)r->ranks };
    whole.step.global = space.global;
    ls_status st = search_layouts(&whole, r->cluster, &space, result);
    if (st == LS_OK && result->exact == 0) st = search_nothing_fits(&space, result);
    if (st == LS_OK) st = r->json ? put_json(&s) : put_search(&s, &whole, base);
    if (st == LS_OK && !r->json) st = put_winner(&s);
    if (st == LS_OK && r->out) st = write_config(in, r->out, base, &result->best[0].layout);
    if (st == LS_OK && r->html) st = write_page(&s);
    if (st == LS_OK && r->out && !r->json) printf("written     %s: train with 'lockstep train --config %s'\n", r->out, r->out);
    mem_free(result);
    return st;
}
