/* cmd_plan.c - `lockstep plan`: computes the memory and work of a training step without running it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/args.h"
#include "cli/plan_cases.h"
#include "cli/plan_draw.h"
#include "cli/plan_html.h"
#include "cli/plan_search.h"
#include "cli/plan_seconds.h"
#include "cli/step_trace.h"
#include "cli/terminal.h"
#include "train/run/dataset.h"
#include "train/plan/plan.h"

static bool print_program, print_mesh, print_schedule, json, search;
static int64_t rank = -1, more_ranks;
static const char *svg, *machine, *cases, *out_file, *trace, *html;
static struct search_request request; /* --search */
static struct invocation *searching;
static int64_t local_ranks;    /* --machine RANKS; 0: not given */
static struct cluster cluster; /* --machine NAME; zeroed: not given */

static const struct flag flags[] = {
    { "print-program", FLAG_SWITCH, &print_program, 0, 0, NULL, "print the step's program, one instruction per line" },
    { "print-mesh", FLAG_SWITCH, &print_mesh, 0, 0, NULL, "print only the mesh: the grid of ranks and its groups" },
    { "machine", FLAG_STRING, &machine, 0, 0, "NAME",
      "machine to plan for, by name or as a FILE.yaml: also prints how long a step takes; or the number of ranks on each machine like "
      "this one, which share its cores and memory" },
    { "print-schedule", FLAG_SWITCH, &print_schedule, 0, 0, NULL, "draw only the pipeline's schedule, for equal stages" },
    { "svg", FLAG_STRING, &svg, 0, 0, "FILE", "with --print-schedule: also write the drawing into this SVG file" },
    { "rank", FLAG_INT, &rank, -1, LS_MESH_RANKS_MOST - 1, "R", "rank whose plan is printed [-1: the rank with the most bytes]" },
    { "search", FLAG_SWITCH, &search, 0, 0, NULL,
      "with --machine NAME: find the layout of all ranks (-n) under which a step of train.global_batch samples takes the least time; "
      "parallel options that are given are kept" },
    { "ranks", FLAG_INT, &more_ranks, 1, LS_MESH_RANKS_MOST, "N", "ranks to plan for, as -n N" },
    { "cases", FLAG_STRING, &cases, 0, 0, "FILE",
      "price every run of a table (CSV); --machine NAME is for those whose gpu_type is not that of a machine that is built in, and its "
      "efficiencies for those that have its processor" },
    { "out", FLAG_STRING, &out_file, 0, 0, "FILE",
      "with --search: write the fastest layout as a config that `train` takes; with --cases: write the prices as CSV" },
    { "trace", FLAG_STRING, &trace, 0, 0, "FILE",
      "with --machine NAME: write the planned step of a rank of each stage as a trace for Perfetto, as `log.trace` does of a real one" },
    { "html", FLAG_STRING, &html, 0, 0, "FILE",
      "with --machine NAME: write a page with the step's time line; with --search: with the layouts and a scatter of time against memory" },
    { "json", FLAG_SWITCH, &json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

/* Opens the data as `train` does. *vocab: size of the data's vocabulary; 0: the preset's. */
static ls_status open_data(const struct config *c, struct dataset *d, size_t *vocab)
{
    bool given = c->data.text[0] || c->data.tokens[0], learnt = strcmp(c->data.tokenizer, "bpe") == 0;

    if (given)
        LS_TRY(dataset_open(c, NULL, d));
    else if (!learnt && strcmp(c->data.tokenizer, "bytes") != 0)
        LS_TRY(dataset_tokenizer(c, NULL, 0, &d->tokenizer));
    if (!given && d->tokenizer) d->vocab = (size_t)ls_tokenizer_vocab(d->tokenizer);
    *vocab = !given && learnt ? (size_t)c->data.vocab_size : d->vocab;
    return LS_OK;
}

struct bytes_row {
    const char *name;
    size_t bytes;
};
enum { BYTES_ROWS = 6 };

static void cmd_plan_rows_of(const ls_cost *cost, struct bytes_row out[BYTES_ROWS])
{
    out[0] = (struct bytes_row){ "parameters", cost->parameters };
    out[1] = (struct bytes_row){ "gradients", cost->gradients };
    out[2] = (struct bytes_row){ "optimizer", cost->optimizer };
    out[3] = (struct bytes_row){ "activations", cost->activations };
    out[4] = (struct bytes_row){ "communication", cost->communication };
    out[5] = (struct bytes_row){ "offload", cost->offload };
}

/* The plan of a rank that is printed, and its assumptions. */
struct picture {
    const struct config *config;
    struct plan_job job;
    ls_layout layout;
    const struct step *step; /* the rank's step */
    struct plan_bytes bytes;
    const struct dataset *data;
    int local;                   /* number of ranks on each machine */
    size_t limit;                /* memory limit of the rank; 0: unknown */
    struct step_seconds seconds; /* with a machine file */
    struct remedy remedy[REMEDIES];
    int remedies;
};

static struct seconds_shown shown(const struct picture *p)
{
    const struct step *s = p->step;

    return (struct seconds_shown){ .cluster = &cluster,
                                   .seconds = &p->seconds,
                                   .compute = config_type(p->config),
                                   .layout = &p->layout,
                                   .executed = step_executed_flops(s),
                                   .units = (double)s->global * (double)(s->model.task->sequences ? s->seq_len : 1),
                                   .unit = s->model.task->units,
                                   .ranks = s->ranks.size };
}

static size_t group_buffers(const struct picture *p) { return (size_t)group_buffers_of(&cluster, &p->layout); }

static bool cmd_plan_fits(const struct picture *p)
{
    return p->limit == 0 || p->bytes.total + p->bytes.other + group_buffers(p) <= plan_room(p->limit, p->data);
}

/* ---- JSON ---- */

static void put_remedies_json(const struct picture *p, struct json_out *j)
{
    json_begin_array(j, "what_fits");
    for (int i = 0; i < p->remedies; i++) {
        json_begin_object(j, NULL);
        json_put_string(j, "options", p->remedy[i].options);
        json_put_int(j, "total", (int64_t)p->remedy[i].total);
        json_put_int(j, "ranks", ls_layout_ranks(&p->remedy[i].layout));
        json_end_object(j);
    }
    json_end_array(j);
}

static void put_comm_json(const struct step *s, struct json_out *j)
{
    json_begin_object(j, "comm");
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        size_t calls, bytes = step_comm_bytes(s, (ls_collective)op, &calls);

        if (calls == 0) continue;
        json_begin_object(j, ls_collective_name((ls_collective)op));
        json_put_int(j, "calls", (int64_t)calls);
        json_put_int(j, "bytes", (int64_t)bytes);
        json_end_object(j);
    }
    json_end_object(j);
}

static void put_offload_json(const struct picture *p, struct json_out *j)
{
    size_t loaded, saved;

    step_offload_bytes(p->step, &loaded, &saved);
    if (loaded + saved == 0) return;
    json_begin_object(j, "offload");
    json_put_int(j, "file", (int64_t)p->bytes.cost.offload_file);
    json_put_int(j, "loaded", (int64_t)loaded);
    json_put_int(j, "saved", (int64_t)saved);
    json_end_object(j);
}

static ls_status cmd_plan_put_json(const struct picture *p)
{
    const struct config *c = p->config;
    const struct step *s = p->step;
    struct bytes_row rows[BYTES_ROWS];
    struct json_out j = { 0 };

    cmd_plan_rows_of(&p->bytes.cost, rows);
    json_begin_object(&j, NULL);
    json_put_int(&j, "parameters", (int64_t)step_parameters(s));
    json_put_int(&j, "tokens_per_step", (int64_t)(s->global * s->seq_len));
    json_put_string(&j, "compute", ls_dtype_name(config_type(c)));
    json_put_int(&j, "threads", threads_count());
    json_put_real(&j, "model_flops_per_step", step_model_flops(s));
    json_put_real(&j, "executed_flops_per_step", step_executed_flops(s));
    json_begin_object(&j, "memory");
    for (int i = 0; i < BYTES_ROWS; i++) json_put_int(&j, rows[i].name, (int64_t)rows[i].bytes);
    json_put_int(&j, "total", (int64_t)p->bytes.total);
    json_put_int(&j, "other", (int64_t)p->bytes.other);
    if (*cluster.name) json_put_int(&j, "group_buffers", (int64_t)group_buffers(p));
    if (*cluster.name) json_put_int(&j, "reserved", (int64_t)cluster.reserved);
    json_put_int(&j, "data", (int64_t)p->data->held);
    json_put_int(&j, "reading", (int64_t)p->data->peak);
    json_end_object(&j);
    json_put_int(&j, "limit", (int64_t)p->limit);
    json_put_bool(&j, "fits", cmd_plan_fits(p));
    put_remedies_json(p, &j);
    json_put_int(&j, "ranks", s->ranks.size);
    json_put_int(&j, "rank", p->bytes.rank);
    put_comm_json(s, &j);
    put_offload_json(p, &j);
    if (*cluster.name) {
        struct seconds_shown x = shown(p);

        plan_seconds_json(&x, &j);
    }
    json_end_object(&j);
    return terminal_put_json(&j);
}

/* ---- a table for people ---- */

static void put_place(const struct picture *p)
{
    static const char *const axis[5] = { "pp", "dp", "cp", "tp", "ep" };
    ls_mesh_shape shape = ls_layout_mesh(&p->step->layout);
    int place[5], size[5] = { shape.pp, shape.dp, shape.cp, shape.tp, shape.ep };
    const char *comma = "";

    ls_mesh_place(&shape, p->bytes.rank, place);
    printf("%s rank %d (", rank < 0 ? "largest:" : "this is", p->bytes.rank);
    for (int i = 0; i < 5; i++)
        if (size[i] > 1) printf("%s%s %d", comma, axis[i], place[i]), comma = ", ";
    printf(")");
}

static void put_layout(const struct picture *p)
{
    static const char *const sharded[] = { "nothing", "optimizer state", "optimizer state and gradients",
                                           "optimizer state, gradients and parameters" };
    const struct step *s = p->step;
    int shards = ls_mesh_size(s->ranks.mesh, LS_GROUP_SHARD);
    char text[160];

    printf("layout      %d ranks: %s; ", s->ranks.size, ls_layout_text(&s->layout, text, sizeof text));
    put_place(p);
    printf("\n");
    if (s->layout.zero) printf("shards      %s, over %d ranks\n", sharded[s->layout.zero], shards);
    for (int k = 0; s->pipeline && k < ls_pipeline_chunks(s->pipeline); k++) {
        ls_stage stage = ls_pipeline_stage_of(s->pipeline, k);

        printf("stage       %d of %d: layers %d to %d%s%s\n", stage.index, stage.stages, stage.begin, stage.end - 1,
               stage.index == 0 ? ", the embedding" : "", stage.index == stage.stages - 1 ? ", the head and the loss" : "");
    }
}

/* Prints the assumptions that other data or other machines would change. */
static void put_assumed(const struct picture *p)
{
    const struct config *c = p->config;
    int ranks = p->step->ranks.size;

    size_t vocab = p->step->model.transformer.vocab;

    if (vocab && !c->data.text[0] && !c->data.tokens[0] && c->model.vocab == 0 && !c->model.hf[0])
        printf("assumes     the preset's vocabulary of %zu tokens; with --data.text=FILE or --data.tokens=FILE it is the tokenizer's\n",
               vocab);
    if (ranks == 1 || *cluster.name) return;
    printf("assumes     %d ranks on each machine%s, %d thread%s per rank (--machine, --launch.threads)\n", p->local,
           p->local == ranks ? ", this one" : ", all like this one", threads_count(), threads_count() > 1 ? "s" : "");
    if (c->precision.automatic)
        printf("            %s: precision.compute=auto on this processor (%s); for another one give --precision.compute=bf16 or fp32\n",
               config_type(c) == LS_BF16 ? "bf16" : "fp32", c->run.device_facts.memory ? c->run.device_facts.name : isa_name(isa_best()));
}

static void put_wire(const struct step *s)
{
    char size[16];

    printf("wire        bytes that this rank sends per step\n");
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        size_t calls, bytes = step_comm_bytes(s, (ls_collective)op, &calls);

        if (calls)
            printf("  %-14s%12s  %14zu  in %zu call%s\n", ls_collective_name((ls_collective)op), text_bytes(size, bytes), bytes, calls,
                   calls == 1 ? "" : "s");
    }
}

static void put_offload(const struct picture *p)
{
    char size[16];
    size_t loaded, saved;

    step_offload_bytes(p->step, &loaded, &saved);
    if (loaded + saved == 0) return;
    printf("offload     bytes that this rank loads and saves per step\n");
    if (p->bytes.cost.offload_file)
        printf("  %-14s%12s  %14zu  not in memory\n", "in files", text_bytes(size, p->bytes.cost.offload_file), p->bytes.cost.offload_file);
    printf("  %-14s%12s  %14zu\n", "loads", text_bytes(size, loaded), loaded);
    printf("  %-14s%12s  %14zu\n", "saves", text_bytes(size, saved), saved);
}

static void put_limit(const struct picture *p)
{
    char room[16], size[16];

    if (p->limit == 0) return;
    if (group_buffers(p))
        printf("  %-14s%12s  %14zu  not the step's: the communication library's, of each group\n", "group buffers",
               text_bytes(size, group_buffers(p)), group_buffers(p));
    if (*cluster.name && cluster.reserved > 0)
        printf("  %-14s%12s  %14.0f  not the step's: the driver's context and the runtime\n", "reserved",
               text_bytes(size, (size_t)cluster.reserved), cluster.reserved);
    printf("  %-14s%12s  %s", "limit", text_bytes(room, p->limit), cmd_plan_fits(p) ? "it fits" : "it does not fit");
    if (*cluster.name && !p->config->run.memory_limit)
        printf(" into the memory (%s)", cluster.processor);
    else if (p->config->run.device_facts.memory && !p->config->run.memory_limit)
        printf(" into the memory of a %s", p->config->run.device_facts.name);
    else if (!p->config->run.memory_limit && p->local > 1)
        printf(" into a rank's share of the %s that this machine has free", text_bytes(size, p->limit * (size_t)p->local));
    printf("\n");
    if (cmd_plan_fits(p)) return;
    if (p->remedies == 0) printf("what fits   %s\n", plan_nothing_fits(p->limit, p->data));
    for (int i = 0; i < p->remedies; i++)
        printf("%-12s%12s  %14zu  %s%s\n", i ? "" : "what fits", text_bytes(size, p->remedy[i].total), p->remedy[i].total,
               p->remedy[i].options, ls_layout_ranks(&p->remedy[i].layout) > p->step->ranks.size ? ", on more machines" : "");
}

static void put_work(const struct config *c, const struct step *s)
{
    char most[48] = "";

    printf("work        %.4g GFLOP per step for the model, %.4g executed; ", step_model_flops(s) / 1e9, step_executed_flops(s) / 1e9);
    if (c->train.time_budget == 0) {
        printf("%.4g PFLOP for %" PRId64 " steps\n", (double)c->train.steps * step_model_flops(s) / 1e15, c->train.steps);
        return;
    }
    if (c->train.steps >= 0) snprintf(most, sizeof most, ", at most %" PRId64, c->train.steps);
    printf("as many steps as fit into train.time_budget=%g s%s: 'train' measures that\n", c->train.time_budget, most);
}

static const char *precision_text(const struct config *c)
{
    if (config_type(c) != LS_BF16) return "fp32";
    if (c->precision.master && c->precision.grads) return "bf16, gradients too, with fp32 master weights";
    if (c->precision.master) return "bf16 with fp32 master weights";
    return c->precision.stochastic_rounding ? "bf16 with stochastic rounding" : "bf16";
}

static void cmd_plan_put_table(const struct picture *p)
{
    struct bytes_row rows[BYTES_ROWS];
    char count[32], size[16], peak[16], what[TASK_TEXT];
    const struct config *c = p->config;
    const struct step *s = p->step;
    const struct task *task = s->model.task;

    cmd_plan_rows_of(&p->bytes.cost, rows);
    task->describe(&s->model, true, what);
    printf("model       %s: %s parameters, %s\n", what, text_count(count, (int64_t)step_parameters(s)), precision_text(c));
    printf("step        %" PRId64 " sample%s (%" PRId64 " x %" PRId64 " x %" PRId64 ")", c->train.global_batch,
           c->train.global_batch == 1 ? "" : "s", c->train.micro_batch, c->train.accumulate, c->parallel.dp);
    if (task->sequences) printf(" of %zu tokens: %s tokens", s->seq_len, text_count(count, (int64_t)(s->global * s->seq_len)));
    printf(", recomputation: %s\n", c->recompute.mode);
    if (s->ranks.size > 1) put_layout(p);
    put_assumed(p);
    put_work(c, s);
    printf("memory\n");
    for (int i = 0; i < BYTES_ROWS; i++)
        if (rows[i].bytes) printf("  %-14s%12s  %14zu\n", rows[i].name, text_bytes(size, rows[i].bytes), rows[i].bytes);
    printf("  %-14s%12s  %14zu\n", "total", text_bytes(size, p->bytes.total), p->bytes.total);
    printf("  %-14s%12s  at most: samples, tables, the program itself, saving checkpoints\n", "other", text_bytes(size, p->bytes.other));
    if (p->data->held)
        printf("  %-14s%12s  %14zu  at most %s while they are read\n", "data", text_bytes(size, p->data->held), p->data->held,
               text_bytes(peak, p->data->peak));
    put_limit(p);
    put_offload(p);
    if (s->ranks.size > 1) put_wire(s);
    if (*cluster.name) {
        struct seconds_shown x = shown(p);

        plan_seconds_print(&x);
    }
}

static ls_status put_program(const struct step *s)
{
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++) {
        char *text;

        LS_TRY(ls_program_text(p, &text));
        fputs(text, stdout);
        ls_free(text);
    }
    return LS_OK;
}

static ls_status show(struct picture *p)
{
    if (!cmd_plan_fits(p)) {
        size_t room = plan_room(p->limit, p->data), buffers = MIN(room, group_buffers(p));

        LS_TRY(plan_remedies(&p->job, &p->layout, room - buffers, p->remedy, &p->remedies));
    }
    if (print_program) LS_TRY(put_program(p->step));
    if (json) return cmd_plan_put_json(p);
    cmd_plan_put_table(p);
    return LS_OK;
}

static ls_status show_rank(struct picture *p)
{
    struct ranks ranks;
    struct step s;

    LS_TRY(ranks_plan(&p->layout, p->bytes.rank, &ranks));
    ls_status st = step_open(p->job.model, &p->layout, &p->job.step, &ranks, true, &s);
    p->step = &s;
    if (st == LS_OK) {
        st = show(p);
        step_close(&s);
    }
    ranks_close(&ranks);
    return st;
}

static ls_status search_with(const struct picture *p)
{
    request.cluster = &cluster;
    request.room = (double)plan_room(p->limit, p->data);
    request.json = json;
    request.out = out_file;
    request.html = html;
    return plan_search_run(searching, &request, &p->job, &p->layout);
}

/* The time line of the step, with the memory of a rank of each stage. */
static ls_status write_page(const struct picture *p, struct step_sim *sim)
{
    int stages = step_sim_stages(sim), ranks = (int)ls_layout_ranks(&p->layout);
    struct stage_bytes *bytes = mem_array(MEM_OTHER, (size_t)stages, sizeof *bytes);
    char title[TASK_TEXT + 400], what[TASK_TEXT], layout[160];
    ls_status st = bytes ? LS_OK : LS_ENOMEM;

    for (int i = 0; i < stages && st == LS_OK; i++) {
        struct plan_bytes plan;

        st = plan_of_rank(&p->job, &p->layout, ranks / stages * i, &plan);
        bytes[i].activations = (double)plan.cost.activations;
        bytes[i].always = (double)plan.total - bytes[i].activations;
    }
    p->job.model->task->describe(p->job.model, true, what);
    snprintf(title, sizeof title, "%s: %s, %d ranks of %s; a step takes %.4g s", what, ls_layout_text(&p->layout, layout, sizeof layout),
             ranks, cluster.processor, p->seconds.step);
    if (st == LS_OK) st = plan_html_step(html, title, sim, bytes);
    mem_free(bytes);
    return st;
}

static ls_status write_pictures(const struct picture *p)
{
    struct variation none = { .slower = 1 };
    struct step_sim *sim;

    LS_TRY(step_sim_open(&p->job, &p->layout, &cluster, &none, &sim));
    ls_status st = trace ? step_trace_write(sim, trace) : LS_OK;
    if (st == LS_OK && html) st = write_page(p, sim);
    step_sim_close(&sim);
    return st;
}

static ls_status plan_with(const struct config *c, size_t vocab, struct picture *p)
{
    struct task_model model;

    LS_TRY(task_model_of(c, vocab, &model));
    LS_TRY(plan_of_config(c, &model, &p->job, &p->layout));
    if (search) return search_with(p);
    if (*cluster.name) LS_TRY(step_seconds_of(&p->job, &p->layout, &cluster, &p->seconds));
    if (trace || html) LS_TRY(write_pictures(p));
    LS_TRY(rank < 0 ? plan_of_largest(&p->job, &p->layout, &p->bytes, NULL) : plan_of_rank(&p->job, &p->layout, (int)rank, &p->bytes));
    return show_rank(p);
}

static ls_status plan(const struct config *c)
{
    int ranks = (int)c->launch.ranks;
    struct dataset data = { 0 };
    struct picture p = { .config = c, .data = &data, .local = local_ranks ? (int)MIN(local_ranks, ranks) : ranks };
    ls_machine here;
    size_t vocab;

    LS_TRY(ls_machine_this(&here));
    p.limit = config_memory_limit(c, &here, p.local);
    if (*cluster.name && !c->run.memory_limit) p.limit = (size_t)(cluster.memory - cluster.reserved);
    plan_set_threads(c, p.local, *cluster.name);
    ls_status st = open_data(c, &data, &vocab);
    if (st == LS_OK) st = plan_with(c, vocab, &p);
    dataset_close(&data);
    return st;
}

static ls_status cmd_plan_draw(const struct config *c)
{
    if (print_mesh) LS_TRY(plan_draw_mesh(c, *cluster.name ? cluster.processors : (int)local_ranks));
    if (print_mesh && print_schedule) puts("");
    return print_schedule ? plan_draw_schedule(c, svg) : LS_OK;
}

static ls_status cmd_plan_run(struct invocation *in)
{
    searching = in;
    mem_keep_pages();
    if (cases) return args_refuse(in, plan_cases_run(cases, out_file, *cluster.name ? &cluster : NULL));
    return args_refuse(in, print_mesh || print_schedule ? cmd_plan_draw(&in->config) : plan(&in->config));
}

static ls_status fail_search_machine(void)
{
    return ls_fail(LS_EINVAL, "--search compares seconds: add --machine NAME, such as --machine %s", cluster_builtin(0));
}

static ls_status cmd_plan_complete(struct invocation *in)
{
    struct config *c = &in->config;

    if (more_ranks > 0 && c->launch.ranks > 0 && c->launch.ranks != more_ranks)
        return ls_fail(LS_EINVAL, "--ranks %" PRId64 " and -n %" PRId64 ": leave one of them out", more_ranks, c->launch.ranks);
    if (more_ranks > 0) c->launch.ranks = more_ranks;
    if (!machine && cases) step_seconds_settle(c, &cluster); /* the machines of the table's rows are not this one either */
    if (!machine) return search ? fail_search_machine() : LS_OK;
    if (text_read_int(machine, &local_ranks)) {
        if (search) return fail_search_machine();
        if (local_ranks >= 1 && local_ranks <= LS_MESH_RANKS_MOST) return LS_OK;
        return ls_fail(LS_EINVAL, "--machine %s: use 1 to %d ranks, or the name of a machine", machine, LS_MESH_RANKS_MOST);
    }
    LS_TRY(cluster_read(machine, &cluster));
    if (!cases) cluster.host = 0; /* our steps are issued as graphs, or run ahead */
    step_seconds_settle(c, &cluster);
    return search ? plan_search_complete(in, &request) : LS_OK;
}

/* A table says all of its runs. */
static ls_status check_cases(const struct invocation *in)
{
    const struct option_table *t = config_table();

    if (!out_file) return ls_fail(LS_EINVAL, "--cases %s needs a file for the prices: add --out FILE.csv", cases);
    if (search || json || print_mesh || print_schedule || print_program || rank >= 0)
        return ls_fail(LS_EINVAL, "--cases %s writes one table; leave the other flags but --machine and --out away", cases);
    if (machine && !*cluster.name) return ls_fail(LS_EINVAL, "--machine %s with --cases: use the name of a machine", machine);
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(options_origin(&in->options, t->rows[i].name), "default") != 0)
            return ls_fail(LS_EINVAL, "%s with --cases: the table says the models and layouts; leave it out", t->rows[i].name);
    return LS_OK;
}

static ls_status cmd_plan_check(const struct invocation *in)
{
    bool draws = print_mesh || print_schedule;

    if (draws && (print_program || json))
        return ls_fail(LS_EINVAL, "%s cannot be combined with %s", print_mesh ? "--print-mesh" : "--print-schedule",
                       json ? "--json" : "--print-program");
    if (svg && !print_schedule) return ls_fail(LS_EINVAL, "--svg %s needs --print-schedule, which it draws", svg);
    if (machine && print_schedule && !print_mesh)
        return ls_fail(LS_EINVAL, "--machine %s: --print-schedule shows no machines; leave it out", machine);
    if (*cluster.name && (in->config.optim.offload != OFFLOAD_NONE || in->config.parallel.offload_parameters != OFFLOAD_NONE))
        return ls_fail(LS_EINVAL, "%s with --machine %s: how long loads and saves take is not known; leave one of them out",
                       in->config.optim.offload != OFFLOAD_NONE ? "optim.offload" : "parallel.offload_parameters", machine);
    if (html && (!*cluster.name || cases || draws))
        return ls_fail(LS_EINVAL, "--html %s needs --machine NAME, and no --cases or drawing", html);
    if (trace && (!*cluster.name || search || cases || draws))
        return ls_fail(LS_EINVAL, "--trace %s is of one planned step: it needs --machine NAME, and no --search, --cases or drawing", trace);
    if (search && (draws || print_program || rank >= 0))
        return ls_fail(LS_EINVAL, "--search prints the fastest layouts; run it first, and %s with one of them",
                       rank >= 0       ? "--rank"
                       : print_program ? "--print-program"
                       : print_mesh    ? "--print-mesh"
                                       : "--print-schedule");
    if (out_file && !search && !cases) return ls_fail(LS_EINVAL, "--out %s needs --search or --cases, whose result it is", out_file);
    if (cases) return check_cases(in);
    if (rank >= in->config.launch.ranks)
        return ls_fail(LS_EINVAL, "--rank %" PRId64 ": the layout has %" PRId64 " ranks", rank, in->config.launch.ranks);
    if (draws) return LS_OK; /* a drawing needs neither data nor a model that fits the layout */
    LS_TRY(config_check_data(&in->config, false));
    return config_check_fit(&in->config);
}

const struct command command_plan = {
    .name = "plan",
    .arguments = "[TEXT]",
    .most = 1,
    .plain = "data.text",
    .summary = "print the memory, work and communication of a training step without running it",
    .verb = VERB_PLAN,
    .flags = flags,
    .complete = cmd_plan_complete,
    .check = cmd_plan_check,
    .run = cmd_plan_run,
    .about = "A text is read and encoded as `train` does, because its tokens take memory; without a text nothing is read.\n",
    .examples =
        "  lockstep plan --model.preset=gpt2-124m --data.seq_len=1024 --train.micro_batch=4\n"
        "  lockstep plan --model.preset=llama3-8b --data.seq_len=4096 --recompute.mode=full --json\n"
        "  lockstep plan --parallel.dp=64 --parallel.zero=3 --model.preset=llama3-8b --machine 8 --run.memory_limit=80GiB\n"
        "  lockstep plan --machine h100-dgx -n 64 --parallel.zero=3 --model.preset=llama3-8b --data.seq_len=8192 --train.micro_batch=2\n"
        "  lockstep plan --print-mesh --parallel.pp=2 --parallel.tp=4 --parallel.dp=2 --machine 8\n"
        "  lockstep plan --print-schedule --parallel.pp=4 --parallel.schedule=zb-h1 --parallel.accumulate=8 --svg zb-h1.svg\n"
        "  lockstep plan --config runs/book/config.yaml --print-program | less -S\n",
};
