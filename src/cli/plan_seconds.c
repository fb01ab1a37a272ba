/* plan_seconds.c - see plan_seconds.h. */
#include "cli/plan_seconds.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/text.h"

static const char *const kernel_keys[SECONDS_KINDS] = { "matmul", "attention", "memory_bound" };
/* Of the peak of all processors in the type of the matmuls; NAN if the machine file has none. */
static double shown_mfu(const struct seconds_shown *x)
{
    double peak = x->cluster->flops[x->compute] * x->ranks;

    return peak > 0 ? x->seconds->model_flops / x->seconds->step / peak : NAN;
}

static void put_part(const struct seconds_shown *x, const char *name, double seconds, const char *note)
{
    if (seconds > 1e-9 * x->seconds->step) printf("  %-28s%10.4g s  %5.1f%%%s\n", name, seconds, 100 * seconds / x->seconds->step, note);
}

void plan_seconds_print(const struct seconds_shown *x)
{
    const struct step_seconds *s = x->seconds;
    char name[64], count[32];

    printf("time        %.4g s a step on %s processor%s (%s): %s %s/s", s->step, text_count(count, x->ranks), x->ranks > 1 ? "s" : "",
           x->cluster->processor, text_count(name, (int64_t)(x->units / s->step)), x->unit);
    if (isfinite(shown_mfu(x))) printf(", MFU %.1f%%", 100 * shown_mfu(x));
    printf("\n");
    for (int k = 0; k < SECONDS_KINDS; k++) put_part(x, seconds_kind_name((enum seconds_kind)k), s->kernels[k], "");
    put_part(x, "optimizer", s->optimizer, "");
    for (int a = 0; a < LS_AXES; a++) {
        snprintf(name, sizeof name, "exposed communication, %s", axis_name((ls_axis)a));
        put_part(x, name, s->exposed[a], "");
    }
    put_part(x, "pipeline bubble", s->bubble, "");
    put_part(x, "recomputation", s->recomputed, " (part of the kernels above)");
    for (int a = 0; a < LS_AXES; a++) {
        snprintf(name, sizeof name, "hidden communication, %s", axis_name((ls_axis)a));
        put_part(x, name, s->hidden[a], " (not part of the step)");
    }
}

void plan_seconds_json(const struct seconds_shown *x, struct json_out *j)
{
    const struct step_seconds *s = x->seconds;

    json_begin_object(j, "seconds");
    json_put_string(j, "machine", x->cluster->name);
    json_put_real(j, "step", s->step);
    json_put_real(j, "units_per_second", x->units / s->step);
    json_put_string(j, "unit", x->unit);
    if (isfinite(shown_mfu(x))) json_put_real(j, "mfu", shown_mfu(x));
    for (int k = 0; k < SECONDS_KINDS; k++) json_put_real(j, kernel_keys[k], s->kernels[k]);
    json_put_real(j, "optimizer", s->optimizer);
    json_put_real(j, "recomputed", s->recomputed);
    json_put_real(j, "bubble", s->bubble);
    json_begin_object(j, "exposed");
    for (int a = 0; a < LS_AXES; a++) json_put_real(j, axis_name((ls_axis)a), s->exposed[a]);
    json_end_object(j);
    json_begin_object(j, "hidden");
    for (int a = 0; a < LS_AXES; a++) json_put_real(j, axis_name((ls_axis)a), MAX(s->hidden[a], 0));
    json_end_object(j);
    json_end_object(j);
}
