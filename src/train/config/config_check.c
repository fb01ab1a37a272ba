/* config_check.c - checks combinations of options, and sets what they say of the process. */
#include "train/config/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "comm/comm.h"
#include "data/documents.h"
#include "device/check.h"
#include "parallel/layout.h"
#include "train/faults/faults.h"
#include "train/task/task.h"

/* ---- options without effect ---- */

const struct option *config_check_row_of(const char *name)
{
    const struct option_table *t = config_table();

    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->rows[i].name, name) == 0) return &t->rows[i];
    ASSERT(!"an option of the table");
    return NULL;
}

/* True if the option has its default, or the value that turns it off: then it is not expected to have an effect. */
static bool is_default_or_off(const struct config *c, const char *name)
{
    const struct option *row = config_check_row_of(name);

    return options_is(row, c, row->text) || (row->off && options_is(row, c, row->off));
}

/* An option that has no effect, and why. by_ranks: it would have an effect with other ranks. */
struct idle {
    bool idle;
    const char *name, *because;
    bool by_ranks;
};

/* True if idle->name is this option, or "SECTION.*" of its section; model.preset is always read, to choose the task. */
static bool config_check_is_named(const struct task_idle *idle, const char *option)
{
    size_t length = strlen(idle->name) - 1;

    if (idle->name[length] != '*') return strcmp(idle->name, option) == 0;
    return strncmp(idle->name, option, length) == 0 && strcmp(option, "model.preset") != 0;
}

/* True if the option's value comes from a file. */
static bool is_of_file(const struct options *given, const char *name)
{
    const char *origin = given ? options_origin(given, name) : "default";

    return strcmp(origin, "default") != 0 && strcmp(origin, "command line") != 0;
}

/* Rejects an option that the task does not read. One of a file with the default of an earlier version, which nobody chose, is reset. */
static ls_status check_idle_task(const struct config *c, unsigned verb, struct options *given)
{
    const struct option_table *t = config_table();

    for (const struct task_idle *idle = task_of(c)->idle; idle->name; idle++)
        for (size_t i = 0; i < t->count; i++) {
            const struct option *row = &t->rows[i];

            if (!(row->verbs & verb) || !config_check_is_named(idle, row->name) || is_default_or_off(c, row->name)) continue;
            if (!row->was || !options_is(row, c, row->was) || !is_of_file(given, row->name))
                return ls_fail(LS_EINVAL, "%s does nothing here: %s", row->name, idle->because);
            LS_TRY(options_set_aside(given, row->name));
        }
    return LS_OK;
}

/* Writes "it applies only to OPTION=adam, adamw and lamb" into text; returns it. */
static const char *applies_only_to(const char *option, const char *const *name, int n, char text[96])
{
    int at = snprintf(text, 96, "it applies only to %s=", option);

    for (int k = 0; k < n && at < 96; k++)
        at += snprintf(text + at, (size_t)(96 - at), "%s%s", k == 0 ? "" : k == n - 1 ? " and " : ", ", name[k]);
    return text;
}

/* The optimizers whose fact at this offset holds. */
static const char *optimizers_with(size_t fact, char text[96])
{
    const char *name[LS_OPTIMIZERS];
    int n = 0;

    for (int k = 0; k < LS_OPTIMIZERS; k++) {
        const ls_optimizer_facts *f = ls_optimizer_facts_of((ls_optimizer_kind)k);

        if (*(const int *)(const void *)((const char *)f + fact)) name[n++] = f->name;
    }
    return applies_only_to("optim.name", name, n, text);
}

/* The devices whose property at this offset holds. */
static const char *devices_with(size_t property, char text[96])
{
    const char *name[DEVICES];
    int n = 0;

    for (int k = 0; k < DEVICES; k++)
        if (*(const bool *)(const void *)((const char *)device_row(k) + property)) name[n++] = device_row(k)->name;
    return applies_only_to("run.device", name, n, text);
}
#define OPTIMIZERS_WITH(fact, i)  optimizers_with(offsetof(ls_optimizer_facts, fact), out->text[i])
#define DEVICES_WITH(property, i) devices_with(offsetof(struct device, property), out->text[i])

/* The options that may have no effect. */
enum { IDLE_MOST = 60, IDLE_TEXTS = 6 };
struct idle_list {
    struct idle rule[IDLE_MOST];
    size_t n;
    char text[IDLE_TEXTS][96]; /* made by OPTIMIZERS_WITH() and DEVICES_WITH() */
};

static void list_idle(const struct config *c, unsigned verb, struct idle_list *out)
{
    const ls_optimizer_facts *optimizer = ls_optimizer_facts_of((ls_optimizer_kind)c->optim.name);
    const struct device *device = config_device_row(c);
    bool alone = c->launch.ranks <= 1;
    bool shared = c->parallel.dp * c->parallel.cp > 1, pipeline = c->parallel.pp > 1, tp = c->parallel.tp > 1;
    bool offloads = c->parallel.offload_parameters != OFFLOAD_NONE, units = c->parallel.zero == 3 || offloads;
    int64_t zero = c->parallel.zero;
    const struct idle rules[] = {
        { !optimizer->moments, "optim.beta1", OPTIMIZERS_WITH(moments, 0), false },
        { !optimizer->moments, "optim.beta2", out->text[0], false },
        { !optimizer->moments, "optim.eps", out->text[0], false },
        { !optimizer->momentum, "optim.momentum", OPTIMIZERS_WITH(momentum, 1), false },
        { !optimizer->nesterov, "optim.nesterov", OPTIMIZERS_WITH(nesterov, 2), false },
        { !optimizer->trust, "optim.trust_coefficient", OPTIMIZERS_WITH(trust, 3), false },
        { c->optim.clip == 0, "optim.clip_by", "optim.clip=0 clips nothing", false },
        { !device->random_order, "debug.device_seed", DEVICES_WITH(random_order, 4), false },
        { c->optim.schedule != LS_WSD, "optim.decay", "it applies only to optim.schedule=wsd", false },
        { c->optim.schedule == LS_CONSTANT, "optim.min_lr", "optim.schedule=constant never decays", false },
        { !device->accelerator, "precision.tf32", DEVICES_WITH(accelerator, 5), false },
        { !device->accelerator, "run.library_path", out->text[5], false },
        { !device->accelerator, "run.cudnn", out->text[5], false },
        { !device->accelerator, "run.tune_matmuls", out->text[5], false },
        { !device->accelerator, "run.cuda_graphs", out->text[5], false },
        { verb == VERB_TRAIN && c->log.trace, "run.cuda_graphs", "log.trace times instructions one by one, without graphs", false },
        { c->debug.check_finite, "run.cuda_graphs", "debug.check_finite checks instructions one by one, without graphs", false },
        { c->precision.compute != COMPUTE_BF16, "precision.stochastic_rounding", "it applies only to precision.compute=bf16", false },
        { c->precision.master, "precision.stochastic_rounding", "it applies only to precision.master=false", false },
        { c->precision.compute != COMPUTE_FP32, "precision.tf32", "it applies only to precision.compute=fp32", false },
        { strcmp(c->data.tokenizer, "bpe") != 0, "data.vocab_size", "it applies only to data.tokenizer=bpe", false },
        { c->data.text[0] == '\0', "data.special_tokens", "it applies only to data.text", false },
        { !documents_are_lines(c->data.text), "data.field", "it applies only to JSON lines (.jsonl, .ndjson) in data.text", false },
        { verb != VERB_DATA && c->data.tokens[0] == '\0', "data.format", "it applies only to data.tokens", false },
        { verb == VERB_TRAIN && c->data.val_fraction == 0, "train.eval_every", "data.val_fraction=0 leaves nothing to evaluate", false },
        { verb == VERB_TRAIN && c->data.val_fraction == 0, "train.eval_batches", "data.val_fraction=0 leaves nothing to evaluate", false },
        { c->train.steps == 0, "train.time_budget", "train.steps=0 makes no step", false },
        { c->model.hf[0] != '\0', "model.preset", "model.hf selects the model", false },
        { !shared, "parallel.zero",
          alone ? "a single rank has no others to shard over; start more with -n"
                : "parallel.dp and parallel.cp are 1, so there are no ranks to shard over",
          true },
        { !shared && c->optim.offload == OFFLOAD_NONE, "parallel.bucket",
          "gradients are summed over parallel.dp and parallel.cp, which are 1", true },
        { !shared && c->optim.offload == OFFLOAD_NONE, "parallel.first_bucket",
          "gradients are summed over parallel.dp and parallel.cp, which are 1", true },
        { !pipeline, "parallel.vpp", "with parallel.pp=1 there is one stage", true },
        { !pipeline, "parallel.schedule", "with parallel.pp=1 there is one stage", true },
        { !pipeline, "parallel.stages", "with parallel.pp=1 there is one stage", true },
        { c->parallel.cp <= 1, "parallel.cp_method", "with parallel.cp=1 every rank has complete sequences", true },
        { !tp || c->parallel.sp || !c->parallel.overlap, "parallel.tp_chunks",
          "it needs parallel.tp without parallel.sp, and parallel.overlap=true", !tp },
        { c->parallel.ep <= 1, "parallel.receive_factor", "with parallel.ep=1 no row of a token is sent to another rank", true },
        { !tp, "parallel.sp", "with parallel.tp=1 there are no ranks to shard the sequence over", true },
        { alone && !offloads && c->optim.offload == OFFLOAD_NONE, "parallel.overlap", "a single rank does not communicate", true },
        { c->precision.grads == REDUCE_BF16, "precision.reduce", "precision.grads=bf16 communicates gradients as they are kept", false },
        { !shared, "precision.reduce", "gradients are summed over parallel.dp and parallel.cp, which are 1", true },
        { alone, "parallel.sync_batch_norm", "a single rank has all samples", true },
        { alone, "launch.comm_table", "a single rank does not communicate", true },
        { alone, "launch.comm", "a single rank does not communicate", true },
        { alone, "launch.share_gpus", "a single rank shares no GPU", true },
        { alone, "log.per_rank", "there is one rank", true },
        { !shared, "parallel.method", alone ? "a single rank has no others; start more with -n" : "parallel.dp is 1", true },
        { c->parallel.method != LS_METHOD_ASYNC, "parallel.async_turns", "it applies only to parallel.method=async", !shared },
        { c->parallel.method == LS_METHOD_ALLREDUCE, "parallel.reference_steps",
          "it applies only to parallel.method=dataparallel, server and async", !shared },
        { c->parallel.method == LS_METHOD_DATAPARALLEL, "parallel.bucket", "parallel.method=dataparallel sends block by block", false },
        { c->parallel.method == LS_METHOD_DATAPARALLEL, "parallel.first_bucket", "parallel.method=dataparallel sends block by block",
          false },
        { c->parallel.method == LS_METHOD_ASYNC, "parallel.first_bucket",
          "parallel.method=async sends all gradients after the last micro-batch", false },
        { units, "parallel.bucket", "parallel.zero=3 and parallel.offload_parameters work block by block", false },
        { units, "parallel.first_bucket", "parallel.zero=3 and parallel.offload_parameters work block by block", false },
        { !units, "parallel.fsdp_unit", "it applies only to parallel.zero=3 and parallel.offload_parameters", !shared },
        { !units, "parallel.prefetch", "it applies only to parallel.zero=3 and parallel.offload_parameters", !shared },
        { !c->parallel.overlap, "parallel.prefetch", "parallel.overlap=false waits for each gather where it starts", false },
        { !units, "parallel.reshard_after_forward", "it applies only to parallel.zero=3 and parallel.offload_parameters", !shared },
        { zero < 2, "parallel.unsharded_accumulation", "it applies only to parallel.zero=2 and 3", !shared },
        { alone, "launch.bind", "a single rank uses the cores that the process is given", true },
    };

    _Static_assert(COUNT_OF(rules) <= IDLE_MOST, "list_idle() writes at most IDLE_MOST rows");
    memcpy(out->rule, rules, sizeof rules);
    out->n = COUNT_OF(rules);
}

/* Resets an option of a file to its default. The run's config.yaml keeps its value, for a later start on other ranks. */
static ls_status reset_idle(struct options *given, const struct idle *rule, bool warns)
{
    if (warns)
        log_line(LOG_WARN, "%s: %s does nothing here and is ignored: %s", options_origin(given, rule->name), rule->name, rule->because);
    return options_set_aside(given, rule->name);
}

/* Rejects an option without effect, because a user would expect it to work; one of a file that is idle because of the ranks is reset,
 * which may make others idle. */
static ls_status check_idle(const struct config *c, unsigned verb, struct options *given, bool warns)
{
    struct idle_list list;

    list_idle(c, verb, &list);
    for (size_t i = 0; i < list.n; i++) {
        const struct idle *rule = &list.rule[i];

        if (!rule->idle || !(config_check_row_of(rule->name)->verbs & verb) || is_default_or_off(c, rule->name)) continue;
        if (!rule->by_ranks || !is_of_file(given, rule->name))
            return ls_fail(LS_EINVAL, "%s does nothing here: %s", rule->name, rule->because);
        LS_TRY(reset_idle(given, rule, warns));
        return check_idle(c, verb, given, warns);
    }
    return check_idle_task(c, verb, given);
}

/* ---- the rest of the rules ---- */

/* Rejects a word that is not a tokenizer; a missing path is reported when it is opened. */
static ls_status check_tokenizer(const struct config *c)
{
    const char *name = c->data.tokenizer;

    if (strcmp(name, "bytes") == 0 || strcmp(name, "bpe") == 0 || strpbrk(name, "./:") || file_exists(name)) return LS_OK;
    return ls_fail(
        LS_EINVAL,
        "data.tokenizer: '%s' is not a tokenizer; use bytes, bpe (learned from the text), a .json or .tiktoken file, or a folder "
        "that exists",
        name);
}

ls_status config_check_data(const struct config *c, bool needed)
{
    const struct task *task = task_of(c);

    if (task->drawn && (c->data.text[0] || c->data.tokens[0]))
        return ls_fail(LS_EINVAL, "model.preset=%s trains on drawn %s, not on data.text or data.tokens", c->model.preset, task->units);
    if (task->drawn) return LS_OK;
    if (c->data.text[0] && c->data.tokens[0]) return ls_fail(LS_EINVAL, "data.text and data.tokens are both given; leave one out");
    if (needed && !c->data.text[0] && !c->data.tokens[0])
        return ls_fail(LS_EINVAL, "nothing to train on: give --data.text=FILE or --data.tokens=FILE");
    if (c->data.tokens[0] && strcmp(c->data.tokenizer, "bpe") == 0)
        return ls_fail(LS_EINVAL, "data.tokenizer=bpe learns from data.text; for data.tokens, name the tokenizer that they were made with");
    return check_tokenizer(c);
}

/* steps: length of the lr schedule, or its largest possible length; -1: unknown. */
static ls_status check_lengths(const struct config *c, int64_t steps)
{
    if (steps < 0) return LS_OK;
    if (c->optim.warmup > steps && steps > 0)
        return ls_fail(LS_EINVAL,
                       "optim.warmup=%" PRId64 " is longer than the schedule of %" PRId64
                       " steps: the learning rate would never reach optim.lr; use fewer steps",
                       c->optim.warmup, steps);
    if (c->optim.decay > steps)
        return ls_fail(LS_EINVAL, "optim.decay=%" PRId64 " is longer than the schedule of %" PRId64 " steps; use fewer", c->optim.decay,
                       steps);
    return LS_OK;
}

static ls_status fix_schedule(struct config *c)
{
    if (c->train.schedule_steps < 0) c->train.schedule_steps = c->train.steps;
    if (c->optim.warmup < 0) c->optim.warmup = MIN(50, c->train.schedule_steps / 2);
    if (c->optim.decay < 0 && c->optim.schedule == LS_WSD) c->optim.decay = (c->train.schedule_steps + 4) / 5;
    return check_lengths(c, c->train.schedule_steps);
}

static ls_status check_schedule(struct config *c)
{
    if (c->optim.schedule != LS_CONSTANT && c->optim.min_lr > c->optim.lr)
        return ls_fail(LS_EINVAL, "optim.min_lr=%g is greater than optim.lr=%g; use a smaller one", c->optim.min_lr, c->optim.lr);
    if (c->train.time_budget == 0) return fix_schedule(c);
    return check_lengths(c, c->train.schedule_steps < 0 ? c->train.steps : c->train.schedule_steps);
}

/* An lr schedule that is as long as the requested number of steps, as in every config.yaml, becomes as long as the actual number. */
ls_status config_fix_steps(struct config *c, int64_t steps)
{
    if (c->train.schedule_steps == c->train.steps) c->train.schedule_steps = -1;
    c->train.steps = steps;
    return fix_schedule(c);
}

enum { USUAL_SEQ_LEN = 256 };

static ls_status choose_seq_len(struct config *c)
{
    ls_model m;

    if (c->data.seq_len == 0)
        return ls_fail(LS_EINVAL, "data.seq_len=0 is out of range: use 1 or more, or -1 for %d or the model's number of positions",
                       USUAL_SEQ_LEN);
    if (c->data.seq_len > 0 || !task_of(c)->sequences) return LS_OK;
    LS_TRY(config_model(c, 0, &m));
    c->data.seq_len = (int64_t)MIN(m.max_positions, (size_t)USUAL_SEQ_LEN);
    return LS_OK;
}

/* Checks what the library's optimizers would reject, by the options' names and before anything is started. */
static ls_status check_optimizer(const struct config *c)
{
    const ls_optimizer_facts *optimizer = ls_optimizer_facts_of((ls_optimizer_kind)c->optim.name);

    if (c->optim.nesterov && c->optim.momentum == 0)
        return ls_fail(LS_EINVAL, "optim.nesterov=true with optim.momentum=0: Nesterov's method needs momentum; set optim.momentum, 0.9 is "
                                  "usual, or leave optim.nesterov out");
    if (optimizer->moments && c->optim.eps < 1e-38)
        return ls_fail(LS_EINVAL, "optim.eps=%g: the update would divide by zero where a gradient is 0; use more than 1e-38, 1e-8 is usual",
                       c->optim.eps);
    if (optimizer->moments && c->optim.eps >= 1) return ls_fail(LS_EINVAL, "optim.eps=%g must be below 1; 1e-8 is usual", c->optim.eps);
    if (optimizer->trust && c->optim.trust_coefficient <= 0)
        return ls_fail(LS_EINVAL, "optim.trust_coefficient=%g with optim.name=%s: no weight would change; use more than 0, 0.001 is usual",
                       c->optim.trust_coefficient, optimizer->name);
    return LS_OK;
}

/* Rejects skipping steps in a model with batch norms: the forward pass updates their running statistics before it is known whether the step
 * is skipped. */
static ls_status check_non_finite(const struct config *c)
{
    if (c->train.non_finite != NON_FINITE_SKIP || !task_of(c)->batch_norm) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "train.non_finite=skip with model.preset=%s: the batch norms' running statistics would include the skipped step; use "
                   "train.non_finite=stop",
                   c->model.preset);
}

static const char *method_name(const struct config *c) { return layout_method_name((ls_method)c->parallel.method); }

/* What of optim.in_backward does not concern the layout, whose rules ls_layout_check() has. */
static ls_status check_in_backward(const struct config *c, unsigned verb)
{
    if (!c->optim.in_backward) return LS_OK;
    if (!(verb & VERB_PLAN) && c->optim.clip > 0 &&
        c->optim.clip_by == CLIP_BY_CURRENT) /* plan has no optim.clip, which changes no bytes */
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with optim.clip=%g: the gradient norm is known only after the last update; use "
                       "optim.clip_by=previous or optim.clip=0",
                       c->optim.clip);
    if (!config_device_row(c)->immediate)
        return ls_fail(LS_EINVAL, "optim.in_backward=true with run.device=%s: it is implemented on run.device=cpu only", config_device(c));
    if (c->train.non_finite == NON_FINITE_SKIP)
        return ls_fail(LS_EINVAL,
                       "optim.in_backward=true with train.non_finite=skip: a part of the update comes before the gradient that is "
                       "not finite; use train.non_finite=stop");
    return LS_OK;
}

/* Options that methods other than allreduce do not support. */
static ls_status check_method(const struct config *c, unsigned verb)
{
    bool async = c->parallel.method == LS_METHOD_ASYNC;

    if (c->parallel.method == LS_METHOD_ALLREDUCE) return LS_OK;
    if (c->train.time_budget > 0)
        return ls_fail(LS_EINVAL,
                       "train.time_budget=%g with parallel.method=%s: its trial and the reference steps would measure each other; use "
                       "train.steps",
                       c->train.time_budget, method_name(c));
    if (async && !(verb & (VERB_TRAIN | VERB_PLAN)))
        return ls_fail(
            LS_EINVAL,
            "parallel.method=async does not compute the step of a single rank: it updates with each rank's gradient by itself, "
            "computed from stale weights, so there is nothing to compare or to time by steps; use dataparallel or server, or train");
    if (async && c->train.non_finite == NON_FINITE_SKIP)
        return ls_fail(LS_EINVAL,
                       "train.non_finite=skip with parallel.method=async, which has no step that all ranks could skip; use stop");
    if (async && !config_device_row(c)->host_visible)
        return ls_fail(LS_EINVAL,
                       "run.device=%s with parallel.method=async, which sends gradients from the host's memory; use run.device=cpu",
                       config_device(c));
    if (async && c->debug.fault)
        return ls_fail(LS_EINVAL, "debug.fault with parallel.method=async: its programs have no collective to change; leave it out");
    return LS_OK;
}

enum { USUAL_STEPS = 1000 };

ls_status config_check(struct config *c, unsigned verb) { return config_check_given(c, verb, NULL, false); }

ls_status config_check_given(struct config *c, unsigned verb, struct options *given, bool warns)
{
    ls_layout layout;

    c->parallel.dp_is_derived = c->parallel.dp_is_derived || c->parallel.dp < 0;
    c->train.accumulate_is_derived = c->train.accumulate_is_derived || c->train.accumulate < 0;
    if (c->train.steps < 0 && c->train.time_budget == 0) c->train.steps = USUAL_STEPS;
    c->precision.automatic = c->precision.automatic || c->precision.compute == COMPUTE_AUTO;
    if (c->precision.compute == COMPUTE_AUTO)
        c->precision.compute = c->run.device_facts.memory || isa_best() >= ISA_AVX512_BF16 ? COMPUTE_BF16 : COMPUTE_FP32;
    if (verb & (VERB_TRAIN | VERB_PLAN | VERB_BENCH | VERB_PARITY | VERB_EVAL)) LS_TRY(config_check_ranks(c));
    LS_TRY(check_idle(c, verb, given, warns));
    LS_TRY(check_optimizer(c));
    LS_TRY(config_layout(c, &layout)); /* checks recompute.mode, for every verb */
    if (config_check_row_of("data.seq_len")->verbs & verb) LS_TRY(choose_seq_len(c));
    if (verb & (VERB_TRAIN | VERB_PLAN | VERB_BENCH | VERB_PARITY | VERB_EVAL)) LS_TRY(config_check_batch(c));
    if (verb & (VERB_TRAIN | VERB_PLAN | VERB_BENCH)) LS_TRY(check_in_backward(c, verb));
    if (verb & (VERB_TRAIN | VERB_PLAN | VERB_BENCH | VERB_PARITY)) LS_TRY(check_method(c, verb));
    LS_TRY(faults_check(c, verb));
    if (verb & VERB_TRAIN) LS_TRY(check_non_finite(c));
    if (verb & (VERB_TRAIN | VERB_BENCH | VERB_PARITY)) LS_TRY(config_check_fit(c));
    if (verb & VERB_TRAIN) LS_TRY(faults_check_rank(c));
    return verb & VERB_TRAIN ? check_schedule(c) : LS_OK;
}

size_t config_memory_limit(const struct config *c, const ls_machine *m, int local)
{
    const struct device_facts *gpu = &c->run.device_facts;
    size_t share = m->memory / (size_t)MAX(local, 1), of_gpu = gpu->memory;

    if (c->run.memory_limit) return c->run.memory_limit;
    if (!gpu->memory) return share;
    if (c->launch.share_gpus) of_gpu /= (size_t)MAX((local + gpu->processors - 1) / gpu->processors, 1);
    return of_gpu;
}

size_t config_host_limit(const struct config *c, const ls_machine *m, int local)
{
    if (!c->run.device_facts.memory) return 0;
    return m->memory ? m->memory / (size_t)MAX(local, 1) : SIZE_MAX / 2;
}

ls_status config_apply(const struct config *c, unsigned verb, const struct world *w)
{
    static const enum isa caps[] = { ISAS, ISA_ANY, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16, ISA_AMX };
    ls_machine m;
    int threads;

    LS_TRY(world_threads(w, &threads));
    threads_set(c->launch.threads ? (int)c->launch.threads : threads);
    isa_cap(caps[c->run.isa]);
    LS_TRY(ls_machine_this(&m));
    size_t host = config_host_limit(c, &m, w->local_size);
    size_t limit = verb & VERB_PLAN ? m.memory : config_memory_limit(c, &m, w->local_size);
    mem_set_limit(host && !(verb & VERB_PLAN) ? host : limit);
    mem_set_device_limit(host ? limit : 0);
    check_set_seed((uint64_t)c->debug.device_seed << 16 | (uint64_t)w->rank); /* each rank has its own order */
    faults_arm(c, WHEN_STARTING, w->rank);
    return LS_OK;
}
