/* cmd_doctor.c - `lockstep doctor`: what the ranks of a run are doing, or how they ended. */
#include <inttypes.h>
#include <stdio.h>
#include "base/base.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "train/doctor/doctor.h"

static bool doctor_json;
static int64_t most = 3;

static const struct flag doctor_flags[] = {
    { "calls", FLAG_INT, &most, 1, RECORDER_CALLS, "N", "number of last calls to show for each rank [3]" },
    { "json", FLAG_SWITCH, &doctor_json, 0, 0, NULL, "print as JSON" },
    { 0 },
};

static const char *state_name(int state)
{
    static const char *const names[] = { "none", "queued", "running", "done", "failed" };

    return names[state];
}

static int first_shown(const struct recorder_read *c) { return MAX(0, c->n - (int)most); }

/* ---- text ---- */

static void put_call(const struct doctor *d, int rank, const struct call_record *r)
{
    char call[192];

    printf("  %-7s  %s", state_name(r->state), signature_text(&r->signature, r->name, call, sizeof call));
    if (r->step > 0 && r->state != CALL_DONE) printf(", %u steps completed", r->step);
    printf(", began %.1f s ago", d->now - doctor_time(d, rank, r->queued));
    if (r->ended > 0) printf(", took %.6f s", r->ended - r->queued);
    printf("\n");
}

static ls_status cmd_doctor_put_rank(const struct doctor *d, int rank)
{
    const struct rank_status *p = &d->status[rank];
    struct text progress = { 0 };

    printf("rank %d  %s", rank, doctor_state(d, rank));
    if (!p->calls && p->pid) printf(", process %" PRId64, p->pid);
    if (!p->calls) {
        if (p->end[0]) printf(", %s", p->end);
        printf("%s%s\n", p->why[0] ? ": " : "", p->why);
        return LS_OK;
    }
    doctor_progress(d, rank, &progress);
    ls_status st = text_status(&progress);
    printf(", process %lld on %s", (long long)p->calls->pid, p->calls->status.host);
    if (p->end[0] && doctor_unreported(d, rank)) printf(", %s", p->end);
    if (st == LS_OK && progress.data) printf(", %s", progress.data);
    if (d->ranks > 1) printf(", %llu calls", (unsigned long long)p->calls->calls);
    printf("\n");
    text_free(&progress);
    for (int i = first_shown(p->calls); i < p->calls->n; i++) put_call(d, rank, &p->calls->last[i]);
    return st;
}

static int count_running(const struct doctor *d)
{
    int running = 0;

    for (int i = 0; i < d->ranks; i++) running += d->status[i].life == LIFE_RUNNING && !doctor_ended(d, i);
    return running;
}

static ls_status cmd_doctor_put_text(const struct doctor *d)
{
    struct text out = { 0 };

    for (int i = 0; i < d->ranks; i++) LS_TRY(cmd_doctor_put_rank(d, i));
    bool has_ended = doctor_outcome(d, &out);
    if (has_ended) text_put(&out, "\n");
    bool stopped = doctor_stopped(d, &out);
    if (stopped) text_put(&out, "\n");
    for (int i = 0; i < d->n; i++) {
        doctor_say(d, &d->finding[i], &out);
        text_put(&out, "\n");
    }
    if (d->n == 0 && !has_ended && d->ranks == 1)
        text_put(&out, "the run has not ended\n");
    else if (d->n == 0 && !has_ended && !stopped)
        text_put(&out, "no rank is missing from a call; %d of %d ranks are running\n", count_running(d), d->ranks);
    ls_status st = text_status(&out);
    if (st == LS_OK) printf("\n%s", out.data);
    text_free(&out);
    return st;
}

/* ---- JSON ---- */

static void put_json_call(const struct doctor *d, int rank, const struct call_record *r, struct json_out *j)
{
    char call[192];

    json_begin_object(j, NULL);
    json_put_string(j, "call", signature_text(&r->signature, r->name, call, sizeof call));
    json_put_string(j, "op", ls_collective_name((ls_collective)r->signature.op));
    json_put_string(j, "group", r->name);
    json_put_int(j, "sequence", (int64_t)r->signature.sequence);
    json_put_string(j, "state", state_name(r->state));
    json_put_int(j, "steps", r->step);
    json_put_real(j, "began", doctor_time(d, rank, r->queued));
    if (r->ended > 0) json_put_real(j, "ended", doctor_time(d, rank, r->ended));
    json_end_object(j);
}

static void put_json_status(const struct doctor *d, int rank, struct json_out *j)
{
    const struct recorder_status *s = &d->status[rank].calls->status;

    json_put_string(j, "host", s->host);
    json_put_string(j, "doing", s->doing);
    if (s->since > 0) json_put_real(j, "since", doctor_time(d, rank, s->since));
    json_put_int(j, "step", (int64_t)s->step);
    json_put_int(j, "steps", (int64_t)s->steps);
    if (s->skipped) json_put_int(j, "skipped", (int64_t)s->skipped);
    json_put_real(j, "rate", s->rate);
    if (s->ended > 0) json_put_int(j, "exit", s->code);
    if (s->why[0]) json_put_string(j, "why", s->why);
}

static ls_status put_json_outcome(const struct doctor *d, struct json_out *j)
{
    struct text out = { 0 };
    bool has_ended = doctor_outcome(d, &out);
    ls_status st = text_status(&out);

    if (st == LS_OK && has_ended) json_put_string(j, "outcome", out.data);
    text_free(&out);
    return st;
}

static void put_json_rank(const struct doctor *d, int rank, struct json_out *j)
{
    const struct rank_status *p = &d->status[rank];

    json_begin_object(j, NULL);
    json_put_int(j, "rank", rank);
    json_put_string(j, "state", doctor_state(d, rank));
    if (p->why[0]) json_put_string(j, "why", p->why);
    if (p->end[0]) json_put_string(j, "end", p->end);
    if (p->pid) json_put_int(j, "process", p->pid);
    if (p->calls) {
        put_json_status(d, rank, j);
        json_put_int(j, "calls", (int64_t)p->calls->calls);
        json_begin_array(j, "last");
        for (int i = first_shown(p->calls); i < p->calls->n; i++) put_json_call(d, rank, &p->calls->last[i], j);
        json_end_array(j);
    }
    json_end_object(j);
}

static void put_json_ranks(const char *key, const bool *is, int ranks, struct json_out *j)
{
    json_begin_array(j, key);
    for (int i = 0; i < ranks; i++)
        if (is[i]) json_put_int(j, NULL, i);
    json_end_array(j);
}

static ls_status put_json_finding(const struct doctor *d, const struct finding *f, struct json_out *j)
{
    struct text out = { 0 };

    doctor_say(d, f, &out);
    ls_status st = text_status(&out);
    if (st == LS_OK) {
        json_begin_object(j, NULL);
        json_put_string(j, "text", out.data);
        json_put_bool(j, "cause", f->cause);
        put_json_ranks("missing", f->missing, d->ranks, j);
        put_json_ranks("differing", f->differs, d->ranks, j);
        put_json_ranks("held", f->held, d->ranks, j);
        put_json_ranks("waiting", f->waits, d->ranks, j);
        json_put_real(j, "since", f->since);
        json_end_object(j);
    }
    text_free(&out);
    return st;
}

static ls_status cmd_doctor_put_json(const struct doctor *d, const char *run)
{
    struct json_out j = { 0 };
    ls_status st = LS_OK;

    json_begin_object(&j, NULL);
    json_put_string(&j, "run", run);
    json_put_real(&j, "time", d->now);
    json_put_int(&j, "running", count_running(d));
    st = put_json_outcome(d, &j);
    json_begin_array(&j, "ranks");
    for (int i = 0; i < d->ranks; i++) put_json_rank(d, i, &j);
    json_end_array(&j);
    json_begin_array(&j, "findings");
    for (int i = 0; i < d->n && st == LS_OK; i++) st = put_json_finding(d, &d->finding[i], &j);
    json_end_array(&j);
    json_end_object(&j);
    if (st == LS_OK) st = json_out_status(&j);
    if (st == LS_OK) puts(j.text);
    json_out_free(&j);
    return st;
}

static ls_status cmd_doctor_run(struct invocation *in)
{
    struct doctor d;

    LS_TRY(doctor_open(in->arguments[0], &d));
    ls_status st = doctor_json ? cmd_doctor_put_json(&d, in->arguments[0]) : cmd_doctor_put_text(&d);
    doctor_close(&d);
    return st;
}

const struct command command_doctor = {
    .name = "doctor",
    .arguments = "RUN",
    .least = 1,
    .most = 1,
    .summary = "show what each rank of a run is doing or how it ended: step, speed, host, and which rank waits for which in which call",
    .flags = doctor_flags,
    .run = cmd_doctor_run,
    .about =
        "RUN is a run folder (--run.dir). The command reads the flight recorder of each rank, RUN/calls/rank_NNNN, during the run or "
        "after\n"
        "it has ended or was killed. It prints the state, the progress and the last calls of each rank. Then it prints how the run ended,\n"
        "which ranks are stopped, and which rank has not made a call that other ranks wait in; root causes come first.\n",
    .examples = "  lockstep doctor runs/book\n"
                "  lockstep doctor runs/book --calls 20 --json\n",
};
