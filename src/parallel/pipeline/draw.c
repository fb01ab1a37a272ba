/* draw.c - text shared by the two drawings of a simulated schedule. */
#include "parallel/pipeline/draw.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"

char *draw_label(char out[32], const ls_pipeline_schedule *s, const ls_action *a)
{
    char kind = schedule_letter(a->kind);

    if (s->chunks == 1)
        snprintf(out, 32, "%c%d", kind, a->micro);
    else if (s->chunks <= 26)
        snprintf(out, 32, "%c%c%d", kind, 'a' + a->chunk, a->micro);
    else
        snprintf(out, 32, "%c%d.%d", kind, a->chunk, a->micro);
    return out;
}

void draw_title(struct text *t, const ls_pipeline_schedule *s)
{
    text_put(t, "%s: %d rank%s", s->name, s->stages, s->stages == 1 ? "" : "s");
    if (s->chunks > 1) text_put(t, ", %d chunks each%s", s->chunks, s->order == LS_STAGES_V ? " in a V" : "");
    text_put(t, ", %d micro-batch%s", s->micro, s->micro == 1 ? "" : "es");
}

void draw_bubble(struct text *t, const ls_pipeline_schedule *s, const ls_pipeline_times *times, const ls_pipeline_timeline *p)
{
    double closed = ls_pipeline_bubble(s);

    text_put(t, "bubble %.1f%%", 100 * p->bubble);
    if (times && !isnan(closed)) text_put(t, " (equal stages: %.1f%%)", 100 * closed);
}

void draw_stages(struct text *t, const ls_pipeline_schedule *s, int rank)
{
    text_put(t, "virtual stages %d, ", ls_pipeline_stage(s, rank, 0));
    if (s->chunks == 3) text_put(t, "%d, ", ls_pipeline_stage(s, rank, 1));
    if (s->chunks > 3) text_put(t, ".., ");
    text_put(t, "%d", ls_pipeline_stage(s, rank, s->chunks - 1));
}

double draw_shortest(const ls_pipeline_schedule *s, const ls_pipeline_times *times)
{
    double shortest = INFINITY;

    for (int r = 0; r < s->stages; r++)
        for (int i = 0; i < s->count[r]; i++) {
            double seconds = action_seconds(s, times, r, &s->list[r][i]);

            if (seconds > 0) shortest = fmin(shortest, seconds);
        }
    return isinf(shortest) ? 1 : shortest;
}
