/* plan_print.c - prints the plan of a rank: as a table for people, or as JSON. */
#include "cli/plan_print.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/plan_seconds.h"
#include "cli/terminal.h"

struct bytes_row {
    const char *name;
    size_t bytes;
};
enum { BYTES_ROWS = 6 };

static void plan_print_rows(const ls_cost *cost, struct bytes_row out[BYTES_ROWS])
{
    out[0] = (struct bytes_row){ "parameters", cost->parameters };
    out[1] = (struct bytes_row){ "gradients", cost->gradients };
    out[2] = (struct bytes_row){ "optimizer", cost->optimizer };
    out[3] = (struct bytes_row){ "activations", cost->activations };
    out[4] = (struct bytes_row){ "communication", cost->communication };
    out[5] = (struct bytes_row){ "offload", cost->offload };
}

static struct seconds_shown shown(const struct plan_shown *p)
{
    const struct step *s = p->step;
    struct plan_parts parts = { .bytes = &p->bytes, .seconds = &p->seconds, .step = s, .limit = p->limit };

    return (struct seconds_shown){ .cluster = p->cluster,
                                   .seconds = &p->seconds,
                                   .plan = plan_of_parts(&p->job, &parts),
                                   .layout = &p->layout,
                                   .unit = s->model.task->units,
                                   .ranks = s->ranks.size };
}

size_t plan_print_group_buffers(const struct plan_shown *p) { return (size_t)group_buffers_of(p->cluster, &p->layout); }

bool plan_print_fits(const struct plan_shown *p)
{
    double room = (double)plan_step_room(&p->job, p->limit, p->data) - (double)plan_print_group_buffers(p);

    return p->limit == 0 || plan_fits(&p->job, &p->bytes, room);
}

/* ---- JSON ---- */

static void put_remedies_json(const struct plan_shown *p, struct json_out *j)
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

static void put_offload_json(const struct plan_shown *p, struct json_out *j)
{
    size_t loaded, saved;

    step_offload_bytes(p->step, &loaded, &saved);
    if (loaded + saved == 0) return;
    json_begin_object(j, "offload");
    if (p->bytes.host) json_put_int(j, "host", (int64_t)p->bytes.host);
    json_put_int(j, "file", (int64_t)p->bytes.cost.offload_file);
    json_put_int(j, "loaded", (int64_t)loaded);
    json_put_int(j, "saved", (int64_t)saved);
    json_end_object(j);
}

ls_status plan_print_json(const struct plan_shown *p)
{
    const struct config *c = p->config;
    const struct step *s = p->step;
    struct bytes_row rows[BYTES_ROWS];
    struct json_out j = { 0 };

    plan_print_rows(&p->bytes.cost, rows);
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
    if (*p->cluster->name) json_put_int(&j, "group_buffers", (int64_t)plan_print_group_buffers(p));
    if (*p->cluster->name) json_put_int(&j, "reserved", (int64_t)p->cluster->reserved);
    json_put_int(&j, "data", (int64_t)p->data->held);
    json_put_int(&j, "reading", (int64_t)p->data->peak);
    json_end_object(&j);
    json_put_int(&j, "limit", (int64_t)p->limit);
    json_put_bool(&j, "fits", plan_print_fits(p));
    put_remedies_json(p, &j);
    json_put_int(&j, "ranks", s->ranks.size);
    json_put_int(&j, "rank", p->bytes.rank);
    put_comm_json(s, &j);
    put_offload_json(p, &j);
    if (*p->cluster->name) {
        struct seconds_shown x = shown(p);

        plan_seconds_json(&x, &j);
    }
    json_end_object(&j);
    return terminal_put_json(&j);
}

/* ---- a table for people ---- */

static void put_place(const struct plan_shown *p)
{
    static const char *const axis[5] = { "pp", "dp", "cp", "tp", "ep" };
    ls_mesh_shape shape = ls_layout_mesh(&p->step->layout);
    int place[5], size[5] = { shape.pp, shape.dp, shape.cp, shape.tp, shape.ep };
    const char *comma = "";

    ls_mesh_place(&shape, p->bytes.rank, place);
    printf("%s rank %d (", p->asked ? "this is" : "largest:", p->bytes.rank);
    for (int i = 0; i < 5; i++)
        if (size[i] > 1) printf("%s%s %d", comma, axis[i], place[i]), comma = ", ";
    printf(")");
}

static void put_layout(const struct plan_shown *p)
{
    static const char *const sharded[] = { "nothing", "optimizer state", "optimizer state and gradients",
                                           "optimizer state, gradients and parameters" };
    const struct step *s = p->step;
    int shards = ls_mesh_size(s->ranks.mesh, LS_GROUP_SHARD);
    char text[LS_LAYOUT_TEXT];

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

/* Prints the assumptions that depend on data and machine. */
static void put_assumed(const struct plan_shown *p)
{
    const struct config *c = p->config;
    int ranks = p->step->ranks.size;

    size_t vocab = p->step->model.transformer.vocab;

    if (vocab && !c->data.text[0] && !c->data.tokens[0] && c->model.vocab == 0 && !c->model.hf[0])
        printf("assumes     the preset's vocabulary of %zu tokens; with --data.text=FILE or --data.tokens=FILE it is the tokenizer's\n",
               vocab);
    if (ranks == 1 || *p->cluster->name) return;
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

static void put_offload(const struct plan_shown *p)
{
    char size[16], share[16];
    size_t loaded, saved;

    step_offload_bytes(p->step, &loaded, &saved);
    if (loaded + saved == 0) return;
    printf("offload     bytes that this rank loads and saves per step\n");
    if (p->bytes.host)
        printf("  %-14s%12s  %14zu  a processor's part of the host's memory: %s\n", "in the host", text_bytes(size, p->bytes.host),
               p->bytes.host, text_bytes(share, (size_t)plan_host_room(&p->job)));
    if (p->bytes.cost.offload_file)
        printf("  %-14s%12s  %14zu  not in memory\n", "in files", text_bytes(size, p->bytes.cost.offload_file), p->bytes.cost.offload_file);
    printf("  %-14s%12s  %14zu\n", "loads", text_bytes(size, loaded), loaded);
    printf("  %-14s%12s  %14zu\n", "saves", text_bytes(size, saved), saved);
}

static void put_limit(const struct plan_shown *p)
{
    char room[16], size[16];

    if (p->limit == 0) return;
    if (plan_print_group_buffers(p))
        printf("  %-14s%12s  %14zu  outside the step: the communication library's buffers, for each group\n", "group buffers",
               text_bytes(size, plan_print_group_buffers(p)), plan_print_group_buffers(p));
    if (*p->cluster->name && p->cluster->reserved > 0)
        printf("  %-14s%12s  %14.0f  outside the step: the driver's context and the runtime\n", "reserved",
               text_bytes(size, (size_t)p->cluster->reserved), p->cluster->reserved);
    printf("  %-14s%12s  %s", "limit", text_bytes(room, p->limit), plan_print_fits(p) ? "it fits" : "it does not fit");
    if ((double)p->bytes.host > plan_host_room(&p->job))
        printf(" into the memory of the host");
    else if (*p->cluster->name && !p->config->run.memory_limit)
        printf(" into the memory (%s)", p->cluster->processor);
    else if (p->config->run.device_facts.memory && !p->config->run.memory_limit)
        printf(" into the memory of a %s", p->config->run.device_facts.name);
    else if (!p->config->run.memory_limit && p->local > 1)
        printf(" into a rank's share of the %s that this machine has free", text_bytes(size, p->limit * (size_t)p->local));
    printf("\n");
    if (plan_print_fits(p)) return;
    if (p->remedies == 0) printf("what fits   %s\n", plan_nothing_fits(&p->job, p->limit, p->data));
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

void plan_print_table(const struct plan_shown *p)
{
    struct bytes_row rows[BYTES_ROWS];
    char count[32], size[16], peak[16], what[TASK_TEXT];
    const struct config *c = p->config;
    const struct step *s = p->step;
    const struct task *task = s->model.task;

    plan_print_rows(&p->bytes.cost, rows);
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
    if (*p->cluster->name) {
        struct seconds_shown x = shown(p);

        plan_seconds_print(&x);
    }
}
