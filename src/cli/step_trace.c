/* step_trace.c - see step_trace.h. */
#include "cli/step_trace.h"

#include <inttypes.h>
#include <stdio.h>
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "train/run/trace.h"

struct step_trace {
    struct json_out json;
    int64_t *rank; /* [stages] 1 + the rank of each stage that is shown; 0: none yet */
    int stages;
};

static void put_rank(struct json_out *j, const struct sim_event *e)
{
    char name[48];

    snprintf(name, sizeof name, "rank %d (stage %d)", e->rank, e->stage);
    trace_put_names(j, e->rank, name);
}

static void name_event(const struct sim_event *e, char *out, size_t room)
{
    static const char *const actions[] = { "forward", "backward", "weight gradients", "optimizer" };

    switch (e->kind) {
    case SIM_KERNELS:
        if (e->action == 3)
            snprintf(out, room, "optimizer");
        else
            snprintf(out, room, "%s, chunk %d, micro-batch %d", actions[e->action], e->chunk, e->micro);
        break;
    case SIM_COLLECTIVE: snprintf(out, room, "%s (%s)", ls_collective_name(e->op), seconds_wait_name(e->wait)); break;
    case SIM_COPY: snprintf(out, room, "%s (offload)", e->save ? "save" : "load"); break;
    case SIM_WAIT: snprintf(out, room, "wait (%s)", seconds_wait_name(e->wait)); break;
    case SIM_MESSAGE: snprintf(out, room, "wait for stage"); break;
    }
}

static void put_event(void *ctx, const struct sim_event *e)
{
    static const char *const categories[] = { "kernels", "communication", "offload", "wait", "wait" };
    struct step_trace *t = ctx;
    struct json_out *j = &t->json;
    char name[96];

    if (!t->rank[e->stage]) {
        t->rank[e->stage] = e->rank + 1;
        put_rank(j, e);
    }
    if (t->rank[e->stage] != e->rank + 1) return;
    name_event(e, name, sizeof name);
    json_begin_object(j, NULL);
    json_put_string(j, "name", name);
    json_put_string(j, "cat", categories[e->kind]);
    json_put_string(j, "ph", "X");
    json_put_real(j, "ts", 1e6 * e->begin);
    json_put_real(j, "dur", 1e6 * (e->end - e->begin));
    json_put_int(j, "pid", e->rank);
    json_put_int(j, "tid", e->kind == SIM_COLLECTIVE || e->kind == SIM_COPY ? TRACE_ROW_COMMUNICATION : TRACE_ROW_PROGRAM);
    json_end_object(j);
}

ls_status step_trace_write(struct step_sim *s, const char *path)
{
    struct step_trace t = { .stages = step_sim_stages(s) };
    struct sim_step step;

    if (!(t.rank = mem_array(MEM_OTHER, (size_t)t.stages, sizeof *t.rank))) return LS_ENOMEM;
    json_begin_object(&t.json, NULL);
    json_put_string(&t.json, "displayTimeUnit", "ms");
    json_begin_array(&t.json, "traceEvents");
    ls_status st = step_sim_play(s, 0, put_event, &t, &step);
    json_end_array(&t.json);
    json_end_object(&t.json);
    if (st == LS_OK) st = json_out_status(&t.json);
    if (st == LS_OK) st = file_write(path, t.json.text, t.json.bytes);
    json_out_free(&t.json);
    mem_free(t.rank);
    return st;
}
