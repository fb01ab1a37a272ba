/* trainer_open.c - opens everything that a run needs for its first step: folder, data, model, checkpoint. */
#include "train/run/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "checkpoint/collective_status.h"
#include "checkpoint/folder.h"
#include "checkpoint/verify.h"
#include "device/collectives.h"
#include "device/device.h"
#include "runtime/store.h"
#include "train/plan/plan.h"
#include "train/run/reference.h"
#include "train/run/stop.h"
#include "train/run/trainer_probe.h"
#include "train/run/version.h"

/* ---- the checkpoint to start from ---- */

static ls_status refuse_used_folder(const struct trainer *t)
{
    uint64_t *steps = NULL;
    size_t count = 0;

    LS_TRY(ls_checkpoint_list(t->folder.checkpoints, &steps, &count));
    uint64_t last = count ? steps[count - 1] : 0;
    ls_free(steps);
    if (count == 0) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "%s holds checkpoints up to step %" PRIu64 ": resume with --checkpoint.resume=auto, or choose another --run.dir",
                   t->folder.checkpoints, last);
}

/* Copies a path that ls_free() frees into one that mem_free() frees. */
static ls_status take_path(char *path, char **out)
{
    *out = path ? mem_strdup(path) : NULL;
    ls_status st = path && !*out ? LS_ENOMEM : LS_OK;
    ls_free(path);
    return st;
}

static ls_status choose_checkpoint(struct trainer *t)
{
    const char *resume = t->config->checkpoint.resume;
    char *path = NULL;

    if (strcmp(resume, "none") == 0) return refuse_used_folder(t);
    bool automatic = strcmp(resume, "auto") == 0;
    ls_status st = automatic ? ls_checkpoint_latest(t->folder.checkpoints, &path) : ls_checkpoint_resolve(resume, &path);
    if (st != LS_OK) return automatic ? st : ls_fail_at(st, "checkpoint.resume");
    return take_path(path, &t->resumed);
}

/* Rank 0 chooses the checkpoint and sends its path to the others; "" means that there is none. */
static ls_status find_checkpoint(struct trainer *t)
{
    char path[4096] = "";
    ls_status st = t->ranks.rank == 0 ? choose_checkpoint(t) : LS_OK;

    if (st == LS_OK && t->resumed && strlen(t->resumed) >= sizeof path)
        st = ls_fail(LS_EINVAL, "%s: the path has %zu bytes; at most %zu are supported", t->resumed, strlen(t->resumed), sizeof path - 1);
    LS_TRY(ranks_agree(&t->ranks, st));
    if (!t->ranks.comm) return LS_OK;
    if (t->resumed) strcpy(path, t->resumed);
    LS_TRY(ls_broadcast(t->ranks.comm, path, sizeof path, LS_U8, 0, NULL));
    if (t->ranks.rank == 0 || !path[0]) return LS_OK;
    t->resumed = mem_strdup(path);
    return t->resumed ? LS_OK : LS_ENOMEM;
}

/* ---- the state that a checkpoint carries ---- */

static void put_name(char *out, size_t room, const char *name) { snprintf(out, room, "%s", name); }

static void trainer_open_describe(const struct trainer *t, ls_train_state *s)
{
    const struct config *c = t->config;

    s->seed = (uint64_t)c->train.seed;
    s->schedule_steps = (uint64_t)MAX(c->train.schedule_steps, 0);
    s->threads = threads_count();
    put_name(s->optimizer, sizeof s->optimizer, ls_optimizer_facts_of((ls_optimizer_kind)c->optim.name)->name);
    put_name(s->data, sizeof s->data, t->data.what);
    put_name(s->compute, sizeof s->compute, ls_dtype_name(config_type(c)));
    put_name(s->library, sizeof s->library, "lockstep " LOCKSTEP_VERSION);
    put_name(s->isa, sizeof s->isa, isa_name(isa_best()));
}

/* Rejects a folder with checkpoints after `step`: the next start would take them for this run's newest. */
static ls_status refuse_newer(const struct trainer *t, uint64_t step)
{
    uint64_t *steps = NULL;
    size_t count = 0;

    if (strcmp(t->config->checkpoint.resume, "auto") == 0) return LS_OK;
    LS_TRY(ls_checkpoint_list(t->folder.checkpoints, &steps, &count));
    uint64_t last = count ? steps[count - 1] : 0;
    ls_free(steps);
    if (count == 0 || last <= step) return LS_OK;
    return ls_fail(LS_EINVAL,
                   "%s holds a checkpoint of step %" PRIu64 ", which is after step %" PRIu64
                   " of %s: choose another --run.dir, or remove it",
                   t->folder.checkpoints, last, step, t->resumed);
}

/* A resumed run must continue with the same samples, or it is refused. If its results cannot be bitwise identical, it warns. */
static ls_status check_resumed(const struct trainer *t, const ls_train_state *saved)
{
    if (saved->seed != t->state.seed)
        return ls_fail(LS_EINVAL, "%s was trained with train.seed=%" PRIu64 ", not %" PRIu64 ": the order of samples would differ",
                       t->resumed, saved->seed, t->state.seed);
    if (strcmp(saved->data, t->state.data) != 0)
        return ls_fail(LS_EINVAL, "%s was trained on other data: '%s' then, '%s' now", t->resumed, saved->data, t->state.data);
    if (ls_train_state_same_bits(saved, &t->state) != LS_OK) log_line(LOG_WARN, "resuming from %s: %s", t->resumed, ls_errmsg());
    return LS_OK;
}

static ls_status fail_budget(const struct trainer *t, const ls_train_state *saved)
{
    double seconds = t->config->train.time_budget;

    if (saved->budget_steps == 0)
        return ls_fail(LS_EINVAL,
                       "train.time_budget=%g: %s was trained without a time budget, up to step %" PRIu64 "; give train.steps instead",
                       seconds, t->resumed, saved->step);
    if (saved->budget_seconds != seconds)
        return ls_fail(LS_EINVAL,
                       "train.time_budget=%g: %s has a budget of %g, which fixed its number of steps at %" PRIu64
                       "; to train longer give --train.time_budget=0 with larger --train.steps and --train.schedule_steps",
                       seconds, t->resumed, saved->budget_seconds, saved->budget_steps);
    return ls_fail(LS_EINVAL,
                   "train.steps=%" PRId64 ": the time budget of %s fixed the number of steps at %" PRIu64
                   "; leave train.steps out, or also give --train.time_budget=0",
                   t->config->train.steps, t->resumed, saved->budget_steps);
}

/* Keeps the number of steps that a time budget has fixed; a checkpoint of step 0 may not have it yet. */
static ls_status keep_budget(struct trainer *t, const ls_train_state *saved)
{
    struct config *c = t->config;

    if (c->train.time_budget == 0) return LS_OK;
    if (saved->budget_steps == 0 && saved->step == 0) {
        t->state.schedule_steps = saved->schedule_steps;
        return LS_OK;
    }
    if (saved->budget_steps == 0 || saved->budget_seconds != c->train.time_budget ||
        (c->train.steps >= 0 && (uint64_t)c->train.steps < saved->budget_steps))
        return fail_budget(t, saved);
    t->state.budget_steps = saved->budget_steps;
    t->state.budget_seconds = saved->budget_seconds;
    LS_TRY(config_fix_steps(c, (int64_t)saved->budget_steps));
    t->state.schedule_steps = (uint64_t)c->train.schedule_steps;
    return LS_OK;
}

/* With checkpoint.resume=auto, a damaged checkpoint is skipped and the one before it is tried. */
static ls_status step_back(struct trainer *t)
{
    char *older, why[2048];

    snprintf(why, sizeof why, "%s", ls_errmsg()); /* the search for an older one overwrites the message */
    LS_TRY(folder_before(t->resumed, &older));
    if (!older) return ls_fail(LS_EFORMAT, "%s; no older checkpoint beside it is intact; choose another --run.dir to start anew", why);
    if (t->ranks.rank == 0) log_line(LOG_WARN, "checkpoint skipped: %s", why);
    mem_free(t->resumed);
    t->resumed = older;
    return LS_OK;
}

/* Loads the checkpoint, or an older one if it is damaged. A single rank may find the damage; all ranks have the same outcome. */
static ls_status load_checkpoint(struct trainer *t, ls_train_state *saved)
{
    bool automatic = strcmp(t->config->checkpoint.resume, "auto") == 0;

    for (;;) {
        ls_status st = ls_checkpoint_load(t->resumed, t->step.store, LS_LOAD_OPTIMIZER, saved);

        if (!automatic) st = verify_advise(st, t->resumed, "--checkpoint.resume=");
        st = agree(t->ranks.comm, st);
        if (st != LS_EFORMAT || !automatic) return st;
        LS_TRY(step_back(t));
    }
}

static ls_status trainer_open_load(struct trainer *t)
{
    ls_train_state saved;

    if (!t->resumed) {
        if (!config_has_weights(t->config)) return LS_OK;
        return ls_hf_import(t->config->model.hf, &t->step.model.transformer, t->step.store);
    }
    LS_TRY(load_checkpoint(t, &saved));
    LS_TRY(fault_restored(&t->step.injection, t->step.store));
    LS_TRY(refuse_newer(t, saved.step));
    LS_TRY(keep_budget(t, &saved));
    LS_TRY(check_resumed(t, &saved));
    t->state.step = t->first_step = saved.step;
    t->state.samples = saved.samples;
    t->state.tokens = saved.tokens;
    t->state.grad_norm = t->step.norm = saved.grad_norm;
    if (strcmp(t->config->checkpoint.resume, "auto") == 0) t->saved_step = saved.step;
    return LS_OK;
}

/* ---- data and model ---- */

static ls_status check_tokenizer(const struct config *c)
{
    if (config_has_weights(c) && c->data.text[0] && (strcmp(c->data.tokenizer, "bytes") == 0 || strcmp(c->data.tokenizer, "bpe") == 0))
        return ls_fail(
            LS_EINVAL,
            "data.tokenizer=%s does not fit the weights of %s: name the tokenizer that they were trained with, such as --data.tokenizer=%s",
            c->data.tokenizer, c->model.hf, c->model.hf);
    return LS_OK;
}

/* A resumed run takes a tokenizer that was learned from its text (bpe) from the checkpoint. */
static const char *learned_tokenizer(const struct trainer *t)
{
    return t->resumed && strcmp(t->config->data.tokenizer, "bpe") == 0 ? t->resumed : NULL;
}

/* Adds a remedy to the message of a failed allocation: one while the data are opened, or one despite a plan that fits, because the system
 * has less memory than it reported. The data are in the category "other", which no layout makes smaller. */
static ls_status advise(ls_status st)
{
    if (st != LS_ENOMEM) return st;
    return ls_fail(st, "%s; %s", ls_errmsg(),
                   mem_failed_largest() == MEM_OTHER ? PLAN_SMALLER_DATA
                                                     : "use recompute.mode=selective or full, a smaller train.micro_batch or a higher "
                                                       "parallel.zero: see 'lockstep plan'");
}

/* The same where other ranks may be waiting for this one: they end with its message. */
static ls_status advise_all(const struct trainer *t, ls_status st)
{
    char why[1024];

    if (st != LS_ENOMEM || !t->ranks.comm) return advise(st);
    if (comm_has_failed(t->ranks.comm)) return st; /* another rank ran out of memory: the message is its own */
    advise(st);
    snprintf(why, sizeof why, "%s", ls_errmsg());
    comm_fail(t->ranks.comm, st);
    return ls_fail(st, "%s", why);
}

static ls_status open_data_and_model(struct trainer *t)
{
    struct config *c = t->config;
    const struct task *task = task_of(c);
    bool loads = t->resumed || config_has_weights(c);
    struct task_model model;

    LS_TRY(check_tokenizer(c));
    LS_TRY(ranks_settle(&t->ranks, advise(task->open_data(c, learned_tokenizer(t), &t->data))));
    LS_TRY(ranks_settle(&t->ranks, task->model(c, t->data.vocab, &model)));
    if (c->data.tokens[0]) LS_TRY(ls_tokens_check(t->data.tokens, (int32_t)model.transformer.vocab));
    LS_TRY(plan_check_memory(c, &model, &t->data, &t->ranks));
    LS_TRY(advise_all(t, reference_run(t, &model)));
    LS_TRY(advise_all(t, step_open_config(c, &model, &t->ranks, loads ? STEP_LOADED : STEP_INITIALIZED, &t->step)));
    if (task->transformer) config_put_model(c, &model.transformer);
    return LS_OK;
}

static ls_status open_model(struct trainer *t)
{
    ls_status st = open_data_and_model(t);

    t->refused = st == LS_EINVAL || st == LS_EUNSUPPORTED;
    return st;
}

ls_status trainer_start_loader(struct trainer *t)
{
    const struct task_model *m = &t->step.model;
    struct task_samples samples = { 0 };

    if (!m->task->drawn) LS_TRY(m->task->open_samples(t->config, &t->data, m, false, &samples));
    return samples_start(&t->step, &samples.text, t->state.samples, &t->samples);
}

ls_status trainer_open_samples(struct trainer *t)
{
    const struct task_model *m = &t->step.model;
    struct task_samples samples;

    LS_TRY(m->task->open_samples(t->config, &t->data, m, true, &samples));
    if (samples.count) LS_TRY(evaluation_open(&t->step, &samples, (size_t)t->config->train.eval_batches, &t->evaluation));
    return trainer_start_loader(t);
}

static ls_status start_folder(struct trainer *t)
{
    struct text yaml = { 0 };
    ls_status st = trainer_config_text(t, &yaml);

    if (st == LS_OK) st = run_folder_start(&t->folder, t->config, yaml.data, t->data.tokenizer, t->state.step);
    text_free(&yaml);
    return st;
}

/* Rank 0 chooses the folder's name if run.dir is empty. */
static ls_status name_folder(struct trainer *t)
{
    char name[512] = "";

    if (t->ranks.rank == 0) {
        LS_TRY(run_folder_name(t->config, &t->folder));
        put_name(name, sizeof name, t->folder.path);
    }
    if (!t->ranks.comm) return LS_OK;
    LS_TRY(ls_broadcast(t->ranks.comm, name, sizeof name, LS_U8, 0, NULL));
    if (t->ranks.rank == 0) return LS_OK;
    char *path = mem_strdup(name);
    if (!path) return LS_ENOMEM;
    mem_free(t->config->run.dir);
    t->config->run.dir = path;
    return run_folder_name(t->config, &t->folder);
}

/* Opens this rank's own files in the run folder, which rank 0 has created, and allocates the list of hosts. */
static ls_status open_own(struct trainer *t)
{
    struct world world;

    LS_TRY(world_find(&world));
    if (t->ranks.rank > 0) LS_TRY(run_folder_follow(&t->folder, t->config, t->ranks.rank, t->state.step));
    LS_TRY(run_folder_calls(&t->folder, t->ranks.rank, t->ranks.size, strncmp(world.where, "shm:fd:", 7) == 0, &t->calls));
    t->folder.hosts = mem_array(MEM_OTHER, (size_t)t->ranks.size, RUN_HOST);
    return t->folder.hosts ? LS_OK : LS_ENOMEM;
}

/* Gathers the hosts of all ranks for the first line of metrics. */
static ls_status gather_hosts(struct trainer *t)
{
    char own[RUN_HOST] = "";

    run_host(own);
    t->folder.ranks = t->ranks.size;
    memcpy(t->folder.hosts, own, sizeof own);
    return t->ranks.comm ? ls_all_gather(t->ranks.comm, own, t->folder.hosts, RUN_HOST, LS_U8, NULL) : LS_OK;
}

static ls_status open_folder(struct trainer *t)
{
    LS_TRY(ranks_agree(&t->ranks, t->ranks.rank == 0 ? start_folder(t) : LS_OK));
    ls_status st = ranks_settle(&t->ranks, open_own(t));
    recorder_use(t->calls); /* even if another rank has failed: the flight recorder then shows how this rank ends */
    LS_TRY(st);
    recorder_doing("starting");
    recorder_stepped(t->state.step, (uint64_t)MAX(t->config->train.steps, 0), 0, t->step.model.task->units);
    return gather_hosts(t);
}

/* Sets the bytes of the rank with the most: t->planned by category, and the GPU memory in use. */
static ls_status note_planned(struct trainer *t)
{
    ls_cost own = step_cost(&t->step), evaluation = evaluation_cost(&t->evaluation), *p = &t->planned;
    size_t *to[] = { &p->parameters,    &p->gradients, &p->optimizer,    &p->activations,
                     &p->communication, &p->offload,   &t->taken.device, &t->taken.collectives };

    own.activations += evaluation.activations;
    own.communication += evaluation.communication;
    double bytes[] = { (double)own.parameters,    (double)own.gradients, (double)own.optimizer,   (double)own.activations,
                       (double)own.communication, (double)own.offload,   (double)t->device_taken, (double)t->collectives_taken };
    LS_TRY(ranks_most(&t->ranks, bytes, COUNT_OF(bytes)));
    for (size_t i = 0; i < COUNT_OF(bytes); i++) *to[i] = (size_t)bytes[i];
    return LS_OK;
}

static ls_status find_peak(struct trainer *t)
{
    LS_TRY(peak_of_ranks(t->config, &t->ranks, &t->peak));
    t->peak_flops = t->peak.flops;
    return LS_OK;
}

/* Logs the peak FLOP/s. Call it after the run's log has been opened. */
static void log_peak(const struct trainer *t)
{
    const struct peak *p = &t->peak;

    if (t->ranks.rank > 0 || isnan(p->flops)) return;
    log_line(LOG_INFO, "peak: %.1f GFLOP/s on %d of %d processors, %s, %s", p->flops / 1e9, p->threads, p->machine.processors,
             p->measured ? "measured now" : "cached", p->path[0] ? p->path : "not kept");
    if (p->note[0]) log_line(LOG_INFO, "peak: the cache was not used: %s", p->note);
}

/* If our launcher started the ranks, it prints the line that acknowledges a signal; otherwise rank 0 does. */
static ls_status take_signals(void)
{
    struct world world;

    LS_TRY(world_find(&world));
    stop_install(world.rank == 0 && world.launcher != LAUNCHER_OWN);
    return LS_OK;
}

/* Records the bytes of GPU memory that are not available to the run, and lowers the limit of allocations by them. */
static ls_status note_taken(struct trainer *t, const struct device *d)
{
    LS_TRY(d->taken(&t->device_taken));
    t->collectives_taken = t->ranks.native ? t->ranks.native->taken() : 0;
    size_t taken = t->device_taken + t->collectives_taken;
    if (!t->config->run.memory_limit && mem_device_limit()) mem_set_device_limit(mem_device_limit() - MIN(taken, mem_device_limit() - 1));
    return LS_OK;
}

static ls_status open_ranks(struct trainer *t)
{
    const struct device *d = device_find(config_device(t->config));
    ls_status st = ranks_open(t->config, &t->ranks);

    t->refused = st == LS_EINVAL;
    return st < 0 || !d->taken ? st : note_taken(t, d);
}

/* Opens what this rank records in addition to metrics: the cost of a method other than allreduce, and the trace. */
static ls_status open_records(struct trainer *t)
{
    if (t->step.layout.method != LS_METHOD_ALLREDUCE) LS_TRY(cost_open(&t->ranks, t->reference.after, &t->cost));
    return t->config->log.trace ? trace_open(&t->step, &t->trace) : LS_OK;
}

static ls_status open_all(struct trainer *t)
{
    LS_TRY(take_signals());
    LS_TRY(open_ranks(t));
    faults_arm(t->config, WHEN_OPENING, t->ranks.rank);
    LS_TRY(name_folder(t));
    LS_TRY(ranks_agree(&t->ranks, t->ranks.rank == 0 ? run_folder_lock(&t->folder) : LS_OK));
    LS_TRY(trainer_probe_folders(t));
    LS_TRY(find_checkpoint(t));
    LS_TRY(open_model(t));
    trainer_open_describe(t, &t->state);
    LS_TRY(advise(trainer_open_load(t)));
    LS_TRY(trainer_probe_space(t));
    LS_TRY(find_peak(t)); /* before the loader starts, whose thread would disturb the measurement */
    LS_TRY(advise_all(t, trainer_open_samples(t)));
    LS_TRY(note_planned(t));
    LS_TRY(open_folder(t));
    log_peak(t);
    t->schedule = config_schedule(t->config);
    LS_TRY(ranks_settle(&t->ranks, open_records(t)));
    faults_arm(t->config, WHEN_TRAINING, t->ranks.rank);
    return LS_OK;
}

ls_status trainer_open(struct config *config, const struct options *options, bool *refused, struct trainer **out)
{
    struct trainer *t = mem_zalloc(MEM_OTHER, sizeof *t);

    *refused = false;
    if (!t) return LS_ENOMEM;
    t->config = config;
    t->options = options;
    t->opened = base_now();
    t->folder = (struct run_folder)RUN_FOLDER_NONE;
    t->saved_step = UINT64_MAX;
    t->val_loss = NAN;
    ls_status st = open_all(t);
    *refused = t->refused;
    if (st == LS_OK) {
        *out = t;
        return LS_OK;
    }
    if (st == LS_EPEER && t->ranks.comm) comm_fail(t->ranks.comm, st); /* a device has failed: the other ranks end with this message */
    trainer_note_end(t, st);
    trainer_close(&t);
    return st;
}

void trainer_close(struct trainer **tp)
{
    struct trainer *t = *tp;

    if (!t) return;
    stop_uninstall();
    faults_disarm();
    samples_close(&t->samples);
    cost_close(&t->cost);
    trace_close(&t->trace);
    evaluation_close(&t->evaluation);
    step_close(&t->step);
    dataset_close(&t->data);
    run_folder_close(&t->folder);
    ranks_close(&t->ranks);
    recorder_use(NULL);
    recorder_close(&t->calls);
    mem_free(t->resumed);
    mem_free(t);
    *tp = NULL;
}
