/* schedule.c - schedules by name: the list of them, making one, the placement of its stages, and micro-batches in flight. */
#include "parallel/pipeline/schedule.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"

/* P stages, v chunks per rank, M micro-batches; few: P - M if there are fewer micro-batches than stages. */
struct sizes {
    double P, v, M, few;
};

/* Idle time of a rank, in units of one chunk's forward (= input gradient = weight gradient); sources: lockstep/pipeline.h. */
static double idle_1f1b(struct sizes s) { return 3 * (s.P - 1); }
static double idle_interleaved(struct sizes s) { return 3 * (s.P - 1 + s.few * (s.v - 1)); }
static double idle_zb_h1(struct sizes s) { return s.P - 1 + s.few; }
static double idle_zb_v(struct sizes s) { return MAX(s.P - 1, 4 * (s.P - 1) - 2 * (s.M - 1)); }
static double idle_forward(struct sizes s) { return s.P - 1 + s.few * (s.v - 1); }
static double idle_forward_v(struct sizes s) { return 2 * (s.P - 1); }

/* What each schedule is: a missing row does not compile. */
/* clang-format off */
#define SCHEDULE_gpipe       1, 1,         true, false, LS_STAGES_LOOP, order_gpipe,       idle_1f1b
#define SCHEDULE_1f1b        1, 1,         true, false, LS_STAGES_LOOP, order_1f1b,        idle_1f1b
#define SCHEDULE_interleaved 1, INT16_MAX, true, false, LS_STAGES_LOOP, order_interleaved, idle_interleaved
#define SCHEDULE_zb_h1       1, 1,         true, true,  LS_STAGES_LOOP, order_zb_h1,       idle_zb_h1
#define SCHEDULE_zb_v        2, 2,         true, true,  LS_STAGES_V,    order_zb_v,        idle_zb_v
#define SCHEDULE_ROW(id, name) { name, SCHEDULE_##id },
static const struct schedule_row {
    const char *name;
    int least, most; /* chunks */
    bool backward, split;
    ls_stage_order order;
    void (*make)(ls_pipeline_schedule *s);
    double (*idle)(struct sizes s);
} schedule_rows[] = {
    LS_PIPELINE_SCHEDULE_MAP(SCHEDULE_ROW)
    { "forward", 1, INT16_MAX, false, false, LS_STAGES_LOOP, order_forward, idle_forward },
    { "forward-v", 2, 2, false, false, LS_STAGES_V, order_forward_v, idle_forward_v },
};
/* clang-format on */

double schedule_idle(const ls_pipeline_schedule *s)
{
    for (size_t i = 0; i < COUNT_OF(schedule_rows); i++)
        if (schedule_named(s, schedule_rows[i].name))
            return schedule_rows[i].idle((struct sizes){ s->stages, s->chunks, s->micro, MAX(0, s->stages - s->micro) });
    return NAN;
}

const char *ls_pipeline_schedule_name(int i) { return i >= 0 && i < (int)COUNT_OF(schedule_rows) ? schedule_rows[i].name : NULL; }
bool schedule_named(const ls_pipeline_schedule *s, const char *name) { return strcmp(s->name, name) == 0; }
char schedule_letter(ls_action_kind kind) { return "FBW"[kind]; }

/* ---- lists ---- */

int schedule_room(const ls_pipeline_schedule *s) { return s->micro * s->chunks * (1 + s->backward + s->split); }

static ls_status check_schedule_sizes(const char *name, int stages, int chunks, int micro)
{
    if (stages < 1) return ls_fail(LS_EINVAL, "schedule %s: %d stages (parallel.pp); use 1 or more", name, stages);
    if (chunks < 1) return ls_fail(LS_EINVAL, "schedule %s: %d chunks per rank (parallel.vpp); use 1 or more", name, chunks);
    if (micro < 1) return ls_fail(LS_EINVAL, "schedule %s: %d micro-batches (train.accumulate); use 1 or more", name, micro);
    if ((int64_t)stages * chunks > SCHEDULE_MOST || (int64_t)stages * chunks * micro > SCHEDULE_MOST / 3)
        return ls_fail(LS_EINVAL, "schedule %s: %d stages x %d chunks x %d micro-batches are too many; use at most %d in all", name, stages,
                       chunks, micro, SCHEDULE_MOST / 3);
    return LS_OK;
}

ls_status schedule_new(const char *name, int stages, int chunks, int micro, bool backward, bool split, ls_stage_order order,
                       ls_pipeline_schedule *out)
{
    ls_pipeline_schedule s = { .stages = stages, .chunks = chunks, .micro = micro, .split = split, .backward = backward, .order = order };

    LS_TRY(check_schedule_sizes(name, stages, chunks, micro));
    snprintf(s.name, sizeof s.name, "%s", name);
    s.count = mem_array(MEM_OTHER, (size_t)stages, sizeof *s.count);
    s.list = mem_array(MEM_OTHER, (size_t)stages, sizeof *s.list);
    bool failed = !s.count || !s.list;
    for (int r = 0; r < stages && !failed; r++) {
        s.list[r] = mem_array(MEM_OTHER, (size_t)schedule_room(&s), sizeof *s.list[r]);
        failed = !s.list[r];
    }
    if (failed) {
        ls_pipeline_schedule_free(&s);
        return LS_ENOMEM;
    }
    *out = s;
    return LS_OK;
}

void schedule_put(ls_pipeline_schedule *s, int rank, ls_action_kind kind, int chunk, int micro)
{
    ASSERT(s->count[rank] < schedule_room(s));
    s->list[rank][s->count[rank]++] = (ls_action){ kind, chunk, micro };
}

void ls_pipeline_schedule_free(ls_pipeline_schedule *s)
{
    for (int r = 0; s->list && r < s->stages; r++) mem_free(s->list[r]);
    mem_free(s->list);
    mem_free(s->count);
    *s = (ls_pipeline_schedule){ 0 };
}

static const struct schedule_row *row_of(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(schedule_rows); i++)
        if (strcmp(name, schedule_rows[i].name) == 0) return &schedule_rows[i];
    return NULL;
}

static ls_status fail_name(const char *name)
{
    char names[128] = "";

    for (size_t i = 0, at = 0; i < COUNT_OF(schedule_rows); i++)
        if (schedule_rows[i].backward && at < sizeof names)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s, ", schedule_rows[i].name);
    return ls_fail(LS_EINVAL, "parallel.schedule=%s does not exist; use %sor file:PATH", name, names);
}

/* Finds the row of that name and checks that it supports these sizes. */
static ls_status find_row(const char *name, int stages, int chunks, int micro, const struct schedule_row **out)
{
    const struct schedule_row *row = row_of(name);

    if (!row) return fail_name(name);
    if (row->least == row->most && chunks != row->least)
        return ls_fail(LS_EINVAL, "parallel.schedule=%s with parallel.vpp=%d: this schedule has %d chunk%s per rank; use parallel.vpp=%d%s",
                       name, chunks, row->least, row->least == 1 ? "" : "s", row->least,
                       row->most == 1 ? ", or interleaved for several chunks" : "");
    *out = row;
    return check_schedule_sizes(name, stages, chunks, micro);
}

int schedule_least_chunks(const char *name)
{
    const struct schedule_row *row = row_of(name);

    return row ? row->least : 1;
}

bool schedule_splits(const char *name)
{
    const struct schedule_row *row = row_of(name);

    return row && row->split;
}

bool schedule_is_v(const char *name)
{
    const struct schedule_row *row = row_of(name);

    return row && row->order == LS_STAGES_V;
}

ls_status schedule_find(const char *name, int stages, int chunks, int micro, bool *backward)
{
    const struct schedule_row *row;

    LS_TRY(find_row(name, stages, chunks, micro, &row));
    *backward = row->backward;
    return LS_OK;
}

ls_status ls_pipeline_schedule_make(const char *name, int stages, int chunks, int micro, ls_pipeline_schedule *out)
{
    const struct schedule_row *row;
    ls_pipeline_schedule s;

    LS_TRY(find_row(name, stages, chunks, micro, &row));
    LS_TRY(schedule_new(name, stages, chunks, micro, row->backward, row->split, row->order, &s));
    row->make(&s);
    *out = s;
    return LS_OK;
}

/* ---- placement of stages ---- */

int ls_pipeline_stage(const ls_pipeline_schedule *s, int rank, int chunk)
{
    if (s->order == LS_STAGES_V && chunk) return 2 * s->stages - 1 - rank;
    return chunk * s->stages + rank;
}

int ls_pipeline_rank(const ls_pipeline_schedule *s, int stage, int *chunk)
{
    int c = stage / s->stages, rank = stage % s->stages;

    if (chunk) *chunk = c;
    return s->order == LS_STAGES_V && c ? s->stages - 1 - rank : rank;
}

/* ---- in flight ---- */

static ls_action_kind last_kind(const ls_pipeline_schedule *s)
{
    return s->split ? LS_ACTION_WEIGHTS : s->backward ? LS_ACTION_BACKWARD : LS_ACTION_FORWARD;
}

/* chunk < 0: all chunks. */
static int peak(const ls_pipeline_schedule *s, int rank, int chunk)
{
    int now = 0, most = 0;

    for (int i = 0; i < s->count[rank]; i++) {
        const ls_action *a = &s->list[rank][i];

        if (chunk >= 0 && a->chunk != chunk) continue;
        now += a->kind == LS_ACTION_FORWARD;
        most = MAX(most, now);
        now -= a->kind == last_kind(s);
    }
    return most;
}

int ls_pipeline_schedule_slots(const ls_pipeline_schedule *s, int rank, int chunk) { return peak(s, rank, chunk); }
int schedule_in_flight(const ls_pipeline_schedule *s, int rank) { return peak(s, rank, -1); }
