/* bench_time.c - adds up the time of instructions, comms and pipelines: counters after the timed steps minus counters before them. */
#include "cli/bench_time.h"

#include "base/mem.h"
#include "ir/program.h"

static double seconds_of(const ls_program *p, enum segment s, bool exchanges_too)
{
    const struct list *l = &p->list[s];
    double sum = 0;

    for (int n = 0; n < l->n; n++)
        if (exchanges_too || !instruction_communicates(&l->at[n])) sum += instruction_run(p, &l->at[n])->seconds;
    return sum;
}

static size_t stages_of(const struct step *s) { return s->pipeline ? (size_t)(s->schedule.stages * s->schedule.chunks) : 0; }

static void bench_time_add(const struct step *s, struct bench_time *t, double sign)
{
    static const enum segment of_action[] = { SEG_FORWARD, SEG_BACKWARD, SEG_WEIGHTS };
    ls_program *p;

    for (int i = 0; (p = step_program(s, i)); i++)
        for (int k = 0; k < SEGMENTS; k++) t->kernels += sign * seconds_of(p, (enum segment)k, false);
    for (int op = 0; op < LS_COLLECTIVES; op++) t->exposed += sign * comm_counted((ls_collective)op).exposed;
    for (int c = 0; s->pipeline && c < ls_pipeline_chunks(s->pipeline); c++)
        for (size_t k = 0; k < COUNT_OF(of_action); k++)
            t->stage[k * stages_of(s) + (size_t)ls_pipeline_stage_of(s->pipeline, c).index] +=
                sign * seconds_of(ls_pipeline_program(s->pipeline, c), of_action[k], true);
}

ls_status bench_time_open(const struct step *s, struct bench_time *out)
{
    struct bench_time t = { 0 };

    if (s->pipeline && !(t.stage = mem_array(MEM_OTHER, 3 * stages_of(s), sizeof *t.stage))) return LS_ENOMEM;
    for (size_t i = 0; i < 3 * stages_of(s); i++) t.stage[i] = 0;
    *out = t;
    return LS_OK;
}

void bench_time_close(struct bench_time *t)
{
    mem_free(t->stage);
    t->stage = NULL;
}

void bench_time_begin(const struct step *s, struct bench_time *t) { bench_time_add(s, t, -1); }
void bench_time_end(const struct step *s, struct bench_time *t) { bench_time_add(s, t, 1); }

void bench_time_step(const struct step *s, struct bench_time *t)
{
    if (!s->pipeline) return;
    ls_pipeline_spent spent = ls_pipeline_last_times(s->pipeline);
    t->busy += spent.forward + spent.backward + spent.weights;
    t->run += spent.total;
}

static ls_status bench_time_play(const struct step *s, struct bench_time *t)
{
    size_t n = stages_of(s);
    ls_pipeline_times times = { .forward = t->stage, .backward = t->stage + n, .weights = t->stage + 2 * n };
    ls_pipeline_timeline played;

    LS_TRY(ls_pipeline_play(&s->schedule, &times, &played));
    t->played = played.bubble;
    ls_pipeline_played_free(&s->schedule, &played);
    return LS_OK;
}

ls_status bench_time_sync(const struct step *s, int64_t steps, struct bench_time *t)
{
    double busy = t->busy, longest = t->run;

    if (!s->pipeline) return LS_OK;
    double copies = (double)s->ranks.size / s->schedule.stages; /* ranks with the same stages */
    LS_TRY(ranks_sum(&s->ranks, &busy, 1));
    LS_TRY(ranks_most(&s->ranks, &longest, 1));
    LS_TRY(ranks_sum(&s->ranks, t->stage, 3 * stages_of(s)));
    for (size_t i = 0; i < 3 * stages_of(s); i++) t->stage[i] /= copies * (double)steps * s->schedule.micro;
    t->bubble = 1 - busy / (longest * s->ranks.size);
    t->equal = ls_pipeline_bubble(&s->schedule);
    return bench_time_play(s, t);
}

double bench_time_overhead(const struct bench_time *t) { return 1 - (t->kernels + t->exposed) / t->wall; }
