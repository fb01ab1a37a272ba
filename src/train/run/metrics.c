/* metrics.c - lines of metrics.jsonl. */
#include "train/run/metrics.h"

#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/text.h"

void metrics_put_memory(const struct mem_stats *m, struct json_out *out)
{
    json_begin_object(out, "memory");
    for (int c = 0; c < MEM_CATEGORIES; c++) json_put_int(out, mem_category_name((enum mem_category)c), (int64_t)m->peak[c]);
    json_put_int(out, "peak", (int64_t)m->total_peak);
    if (m->device_peak) json_put_int(out, "gpu_peak", (int64_t)m->device_peak);
    json_end_object(out);
}

static void put_comm(const struct metrics *m, struct json_out *out)
{
    json_begin_object(out, "comm");
    for (int op = 0; op < LS_COLLECTIVES; op++) {
        const ls_comm_count *c = &m->comm[op];

        if (c->calls == 0) continue;
        json_begin_object(out, ls_collective_name((ls_collective)op));
        json_put_int(out, "calls", (int64_t)c->calls);
        json_put_int(out, "bytes", (int64_t)c->bytes);
        json_put_real(out, "seconds", c->seconds);
        json_put_real(out, "exposed", c->exposed);
        json_end_object(out);
    }
    json_end_object(out);
}

static void put_offload(const struct metrics *m, struct json_out *out)
{
    if (m->offload.loaded + m->offload.saved == 0) return;
    json_begin_object(out, "offload");
    json_put_int(out, "loaded", (int64_t)m->offload.loaded);
    json_put_int(out, "saved", (int64_t)m->offload.saved);
    json_put_real(out, "waited", m->offload.waited);
    json_end_object(out);
}

const char *metrics_time_name(enum metrics_time i)
{
    static const char *const names[METRICS_TIMES] = { "compute", "exposed", "bubble", "optimizer", "data", "other" };

    return names[i];
}

static void put_time(const struct metrics *m, struct json_out *out)
{
    json_begin_object(out, "time");
    for (int i = 0; i < METRICS_TIMES; i++) json_put_real(out, metrics_time_name((enum metrics_time)i), m->time[i]);
    json_end_object(out);
}

static void put_axes(const struct metrics *m, struct json_out *out)
{
    static const char *const names[METRICS_AXES] = { "dp", "cp", "tp", "pp", "ep" };
    bool any = false;

    for (int a = 0; a < METRICS_AXES; a++) any = any || m->axis[a] >= 0;
    if (!any) return;
    json_begin_object(out, "axis");
    for (int a = 0; a < METRICS_AXES; a++)
        if (m->axis[a] >= 0) json_put_real(out, names[a], m->axis[a]);
    json_end_object(out);
}

static void put_load(const struct metrics *m, struct json_out *out)
{
    json_begin_array(out, "expert_load");
    for (size_t i = 0; i < m->layers; i++) {
        json_begin_array(out, NULL);
        for (size_t e = 0; e < m->experts; e++) json_put_int(out, NULL, (int64_t)m->load[i * m->experts + e]);
        json_end_array(out);
    }
    json_end_array(out);
}

static void put_staleness(const struct metrics *m, struct json_out *out)
{
    json_begin_object(out, "staleness");
    json_put_int(out, "updates", (int64_t)m->updates);
    json_put_real(out, "mean", m->stale);
    json_put_int(out, "most", (int64_t)m->stale_most);
    json_end_object(out);
}

static void put_run(const struct metrics *m, struct json_out *out)
{
    json_begin_object(out, "run");
    json_begin_array(out, "hosts");
    for (int i = 0; i < m->ranks; i++) json_put_string(out, NULL, m->hosts + (size_t)i * m->host_bytes);
    json_end_array(out);
    json_end_object(out);
}

void metrics_put_json(const struct metrics *m, struct json_out *out)
{
    json_begin_object(out, NULL);
    json_put_int(out, "step", (int64_t)m->step);
    json_put_real(out, "loss", m->loss);
    json_put_real(out, "grad_norm", m->grad_norm);
    json_put_real(out, "lr", m->lr);
    json_put_int(out, "tokens", (int64_t)m->tokens);
    json_put_real(out, "tokens_per_second", m->tokens_per_second);
    json_put_real(out, "step_seconds", m->step_seconds);
    json_put_real(out, "mfu", m->mfu);
    json_put_real(out, "hfu", m->hfu);
    metrics_put_memory(&m->memory, out);
    put_comm(m, out);
    put_offload(m, out);
    put_time(m, out);
    put_axes(m, out);
    if (m->bubble >= 0) json_put_real(out, "bubble", m->bubble);
    if (m->load) put_load(m, out);
    if (m->updates) put_staleness(m, out);
    if (m->save_seconds > 0) json_put_real(out, "save_seconds", m->save_seconds);
    if (m->skipped) json_put_bool(out, "skipped", true);
    json_put_int(out, "tokens_seen", (int64_t)m->tokens_seen);
    if (m->evaluated) json_put_real(out, "val_loss", m->val_loss);
    if (m->hosts) put_run(m, out);
    json_end_object(out);
}

/* The step of a line; 0 if it is not a line of metrics. */
static uint64_t metrics_step_of(const char *line, size_t bytes)
{
    json_node *root;

    if (json_parse(line, bytes, "metrics", &root) != LS_OK) return 0;
    int64_t step = json_int(json_get(root, "step"), 0);
    json_close(&root);
    return step > 0 ? (uint64_t)step : 0;
}

static ls_status keep_lines(const char *path, const char *text, size_t bytes, uint64_t last)
{
    struct text kept = { 0 };

    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) - at : bytes - at;
        uint64_t step = end ? metrics_step_of(text + at, length) : 0;

        if (step >= 1 && step <= last) text_add(&kept, text + at, length + 1);
        at += length + 1;
    }
    ls_status st = text_status(&kept);
    if (st == LS_OK && kept.bytes != bytes) st = file_write(path, kept.data ? kept.data : "", kept.bytes);
    text_free(&kept);
    return st;
}

ls_status metrics_rewind(const char *path, uint64_t last)
{
    char *text;
    size_t bytes;

    if (!file_exists(path)) return LS_OK;
    LS_TRY(file_read(path, &text, &bytes));
    ls_status st = keep_lines(path, text, bytes, last);
    mem_free(text);
    return st;
}
