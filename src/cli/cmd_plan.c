/* cmd_plan.c - `lockstep plan`: computes the memory and work of a training step without running it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/plan_cases.h"
#include "cli/plan_draw.h"
#include "cli/plan_html.h"
#include "cli/plan_print.h"
#include "cli/plan_search.h"
#include "cli/step_trace.h"
#include "train/run/dataset.h"
#include "train/plan/plan_layout.h"

static bool print_program, print_mesh, print_schedule, plan_json, search;
static int64_t rank = -1, more_ranks;
static const char *svg, *plan_machine, *cases, *out_file, *trace, *html;
static struct search_request request; /* --search */
static struct invocation *searching;
static int64_t local_ranks;         /* --machine RANKS; 0: not given */
static struct cluster plan_cluster; /* --machine NAME; zeroed: not given */

static const struct flag plan_flags[] = {
    { "print-program", FLAG_SWITCH, &print_program, 0, 0, NULL, "print the step's program, one instruction per line" },
    { "print-mesh", FLAG_SWITCH, &print_mesh, 0, 0, NULL, "print only the mesh: the grid of ranks and its groups" },
    { "machine", FLAG_STRING, &plan_machine, 0, 0, "NAME",
      "machine to plan for, by name or as a FILE.yaml: also prints how long a step takes; or the number of ranks on each machine like "
      "this one, which share its cores and memory" },
    { "print-schedule", FLAG_SWITCH, &print_schedule, 0, 0, NULL, "draw only the pipeline's schedule, for equal stages" },
    { "svg", FLAG_STRING, &svg, 0, 0, "FILE", "with --print-schedule: also write the drawing into this SVG file" },
    { "rank", FLAG_INT, &rank, -1, LS_MESH_RANKS_MOST - 1, "R", "rank whose plan is printed [-1: the rank with the most bytes]" },
    { "search", FLAG_SWITCH, &search, 0, 0, NULL,
      "with --machine NAME: find the layout of all ranks (-n) under which a step of train.global_batch samples takes the least time; "
      "parallel options on the command line are kept" },
    { "ranks", FLAG_INT, &more_ranks, 1, LS_MESH_RANKS_MOST, "N", "ranks to plan for, as -n N" },
    { "cases", FLAG_STRING, &cases, 0, 0, "FILE",
      "predict every run of a table (CSV); --machine NAME is used for runs whose gpu_type no built-in machine has, and its efficiencies "
      "for runs on its processor" },
    { "out", FLAG_STRING, &out_file, 0, 0, "FILE",
      "with --search: write the fastest layout as a config for `train`; with --cases: write the predictions as CSV" },
    { "trace", FLAG_STRING, &trace, 0, 0, "FILE",
      "with --machine NAME: write the planned step of a rank of each stage as a trace for Perfetto, as `log.trace` does of a real one" },
    { "html", FLAG_STRING, &html, 0, 0, "FILE",
      "with --machine NAME: write a page with the step's time line; with --search: with the layouts and a scatter of time against memory" },
    { "json", FLAG_SWITCH, &plan_json, 0, 0, NULL, "print the figures as JSON" },
    { 0 },
};

/* Opens the data as `train` does. *vocab: size of the data's vocabulary; 0: the preset's. */
static ls_status open_data(const struct config *c, struct dataset *d, size_t *vocab)
{
    bool given = c->data.text[0] || c->data.tokens[0], learned = strcmp(c->data.tokenizer, "bpe") == 0;

    if (given)
        LS_TRY(dataset_open(c, NULL, d));
    else if (!learned && strcmp(c->data.tokenizer, "bytes") != 0)
        LS_TRY(dataset_tokenizer(c, NULL, 0, &d->tokenizer));
    if (!given && d->tokenizer) d->vocab = (size_t)ls_tokenizer_vocab(d->tokenizer);
    *vocab = !given && learned ? (size_t)c->data.vocab_size : d->vocab;
    return LS_OK;
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

static ls_status show(struct plan_shown *p)
{
    if (!plan_print_fits(p)) {
        size_t room = plan_step_room(&p->job, p->limit, p->data), buffers = MIN(room, plan_print_group_buffers(p));

        LS_TRY(plan_remedies(&p->job, &p->layout, room - buffers, p->remedy, &p->remedies));
    }
    if (print_program) LS_TRY(put_program(p->step));
    if (plan_json) return plan_print_json(p);
    plan_print_table(p);
    return LS_OK;
}

static ls_status show_rank(struct plan_shown *p)
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

static ls_status search_with(const struct plan_shown *p)
{
    request.cluster = &plan_cluster;
    request.room = (double)plan_step_room(&p->job, p->limit, p->data);
    request.json = plan_json;
    request.out = out_file;
    request.html = html;
    return plan_search_run(searching, &request, &p->job, &p->layout);
}

/* Writes the time line of the step, with the memory of a rank of each stage. */
static ls_status write_page(const struct plan_shown *p, struct step_sim *sim)
{
    int stages = step_sim_stages(sim), ranks = (int)ls_layout_ranks(&p->layout);
    struct stage_bytes *bytes = mem_array(MEM_OTHER, (size_t)stages, sizeof *bytes);
    char title[TASK_TEXT + 400], what[TASK_TEXT], layout[LS_LAYOUT_TEXT];
    ls_status st = bytes ? LS_OK : LS_ENOMEM;

    for (int i = 0; i < stages && st == LS_OK; i++) {
        struct plan_bytes plan;

        st = plan_of_rank(&p->job, &p->layout, ranks / stages * i, &plan);
        bytes[i].activations = (double)plan.cost.activations;
        bytes[i].always = (double)plan.total - bytes[i].activations;
    }
    p->job.model->task->describe(p->job.model, true, what);
    snprintf(title, sizeof title, "%s: %s, %d ranks of %s; a step takes %.4g s", what, ls_layout_text(&p->layout, layout, sizeof layout),
             ranks, plan_cluster.processor, p->seconds.step);
    if (st == LS_OK) st = plan_html_step(html, title, sim, bytes);
    mem_free(bytes);
    return st;
}

static ls_status write_pictures(const struct plan_shown *p)
{
    struct variation none = { .slower = 1 };
    struct step_sim *sim;

    LS_TRY(step_sim_open(&p->job, &p->layout, &plan_cluster, &none, &sim));
    ls_status st = trace ? step_trace_write(sim, trace) : LS_OK;
    if (st == LS_OK && html) st = write_page(p, sim);
    step_sim_close(&sim);
    return st;
}

static ls_status plan_with(const struct config *c, size_t vocab, struct plan_shown *p)
{
    struct task_model model;

    LS_TRY(task_model_of(c, vocab, &model));
    LS_TRY(plan_of_config(c, &model, &p->job, &p->layout));
    p->job.host = p->host ? MAX(plan_room(p->host, p->data), (size_t)1) : 0;
    if (*plan_cluster.name) p->job.cluster = &plan_cluster;
    if (search) return search_with(p);
    if (*plan_cluster.name) LS_TRY(step_seconds_of(&p->job, &p->layout, &plan_cluster, &p->seconds));
    if (trace || html) LS_TRY(write_pictures(p));
    LS_TRY(rank < 0 ? plan_of_largest(&p->job, &p->layout, &p->bytes, NULL) : plan_of_rank(&p->job, &p->layout, (int)rank, &p->bytes));
    return show_rank(p);
}

static ls_status plan(const struct config *c)
{
    int ranks = (int)c->launch.ranks;
    struct dataset data = { 0 };
    struct plan_shown p = { .config = c,
                            .data = &data,
                            .cluster = &plan_cluster,
                            .asked = rank >= 0,
                            .local = local_ranks ? (int)MIN(local_ranks, ranks) : ranks };
    ls_machine here;
    size_t vocab;

    LS_TRY(ls_machine_this(&here));
    p.limit = config_memory_limit(c, &here, p.local);
    p.host = config_host_limit(c, &here, p.local);
    if (*plan_cluster.name && !c->run.memory_limit) p.limit = plan_limit_of(&plan_cluster);
    plan_set_threads(c, p.local, *plan_cluster.name);
    ls_status st = open_data(c, &data, &vocab);
    if (st == LS_OK) st = plan_with(c, vocab, &p);
    dataset_close(&data);
    return st;
}

static ls_status cmd_plan_draw(const struct config *c)
{
    if (print_mesh) LS_TRY(plan_draw_mesh(c, *plan_cluster.name ? plan_cluster.processors : (int)local_ranks));
    if (print_mesh && print_schedule) puts("");
    return print_schedule ? plan_draw_schedule(c, svg) : LS_OK;
}

static ls_status cmd_plan_run(struct invocation *in)
{
    searching = in;
    mem_keep_pages();
    if (cases) return args_refuse(in, plan_cases_run(cases, out_file, *plan_cluster.name ? &plan_cluster : NULL));
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
    if (!plan_machine && cases) step_seconds_settle(c, &plan_cluster); /* the rows of the table are for other machines, too */
    if (!plan_machine) return search ? fail_search_machine() : LS_OK;
    if (text_read_int(plan_machine, &local_ranks)) {
        if (search) return fail_search_machine();
        if (local_ranks >= 1 && local_ranks <= LS_MESH_RANKS_MOST) return LS_OK;
        return ls_fail(LS_EINVAL, "--machine %s: use 1 to %d ranks, or the name of a machine", plan_machine, LS_MESH_RANKS_MOST);
    }
    LS_TRY(cases ? cluster_read(plan_machine, &plan_cluster) : cluster_read_own(plan_machine, &plan_cluster));
    step_seconds_settle(c, &plan_cluster);
    return search ? plan_search_complete(in, &request) : LS_OK;
}

/* A table describes its runs completely. */
static ls_status check_cases(const struct invocation *in)
{
    const struct option_table *t = config_table();

    if (!out_file) return ls_fail(LS_EINVAL, "--cases %s needs a file for the predictions: add --out FILE.csv", cases);
    if (search || plan_json || print_mesh || print_schedule || print_program || rank >= 0)
        return ls_fail(LS_EINVAL, "--cases %s writes one table; leave out all flags except --machine and --out", cases);
    if (plan_machine && !*plan_cluster.name)
        return ls_fail(LS_EINVAL, "--machine %s with --cases: use the name of a machine", plan_machine);
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(options_origin(&in->options, t->rows[i].name), "default") != 0)
            return ls_fail(LS_EINVAL, "%s with --cases: models and layouts come from the table; leave it out", t->rows[i].name);
    return LS_OK;
}

static ls_status cmd_plan_check(const struct invocation *in)
{
    bool draws = print_mesh || print_schedule;

    if (draws && (print_program || plan_json))
        return ls_fail(LS_EINVAL, "%s cannot be combined with %s", print_mesh ? "--print-mesh" : "--print-schedule",
                       plan_json ? "--json" : "--print-program");
    if (svg && !print_schedule) return ls_fail(LS_EINVAL, "--svg %s needs --print-schedule, which it draws", svg);
    if (plan_machine && print_schedule && !print_mesh)
        return ls_fail(LS_EINVAL, "--machine %s: --print-schedule shows no machines; leave it out", plan_machine);
    if (html && (!*plan_cluster.name || cases || draws))
        return ls_fail(LS_EINVAL, "--html %s needs --machine NAME, and no --cases or drawing", html);
    if (trace && (!*plan_cluster.name || search || cases || draws))
        return ls_fail(LS_EINVAL, "--trace %s shows one planned step: it needs --machine NAME, and no --search, --cases or drawing", trace);
    if (search && (draws || print_program || rank >= 0))
        return ls_fail(LS_EINVAL, "--search prints the fastest layouts; run it first, and %s with one of them",
                       rank >= 0       ? "--rank"
                       : print_program ? "--print-program"
                       : print_mesh    ? "--print-mesh"
                                       : "--print-schedule");
    if (out_file && !search && !cases) return ls_fail(LS_EINVAL, "--out %s needs --search or --cases, whose result it stores", out_file);
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
    .flags = plan_flags,
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
        "  lockstep plan --print-schedule --parallel.pp=4 --parallel.schedule=zb-h1 --train.accumulate=8 --svg zb-h1.svg\n"
        "  lockstep plan --config runs/book/config.yaml --print-program | less -S\n",
};
