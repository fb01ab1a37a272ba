/* plan_seconds.c - see plan_seconds.h. */
#include "cli/plan_seconds.h"

#include <stdio.h>
#include "base/base.h"
#include "base/text.h"

static const char *const kernel_keys[SECONDS_KINDS] = { "matmul", "attention", "memory_bound" };

/* ---- the bottleneck ---- */

/* The largest part of a step that another layout could make smaller, and how. */
struct binding {
    const char *name;
    double seconds;
    char change[240];
};

static void bind(struct binding *b, const char *name, double seconds)
{
    if (seconds > b->seconds) *b = (struct binding){ .name = name, .seconds = seconds };
}

static void say_exposed(const struct seconds_shown *x, int a, char *out, size_t room)
{
    const ls_layout *l = x->layout;

    if (a == SECONDS_OFFLOAD)
        snprintf(out, room, "%s",
                 l->offload_parameters ? "larger micro-batches, so that each load computes more; or optim.offload alone, if it fits"
                                       : "more samples per step (train.accumulate), so that it counts less");
    else if (a == LS_AXIS_TP && l->tp > x->cluster->processors)
        snprintf(out, room, "keep parallel.tp inside a node, at most %d", x->cluster->processors);
    else if (a == LS_AXIS_TP)
        snprintf(out, room, "%sa smaller parallel.tp, if it fits, with more pipeline stages or ZeRO instead",
                 l->sp ? "" : "--parallel.sp, or ");
    else if (a == LS_AXIS_DP && l->zero >= 2 && l->micro_batches > 1)
        snprintf(out, room,
                 "every micro-batch communicates with parallel.zero=%d: a larger train.micro_batch, or parallel.zero=1 if it fits",
                 l->zero);
    else if (a == LS_AXIS_DP)
        snprintf(out, room, "more samples per step (train.accumulate) hide it%s",
                 l->zero == 3 && l->replicate == 1 ? "; so does sharding inside a node alone (parallel.replicate)" : "");
    else if (a == LS_AXIS_CP)
        snprintf(out, room, "a smaller parallel.cp, if it fits, or the other parallel.cp_method");
    else if (a == LS_AXIS_EP)
        snprintf(out, room, "keep parallel.ep inside a node, which has %d processors", x->cluster->processors);
    else
        snprintf(out, room, "fewer stages");
}

static struct binding binding_of(const struct seconds_shown *x)
{
    static const char *const exposed[SECONDS_WAITS] = {
        [LS_AXIS_DP] = "communication over dp", [LS_AXIS_TP] = "communication over tp",
        [LS_AXIS_CP] = "communication over cp", [LS_AXIS_PP] = "communication over pp",
        [LS_AXIS_EP] = "communication over ep", [SECONDS_OFFLOAD] = "loading and saving what is offloaded"
    };
    const struct step_seconds *s = x->seconds;
    struct binding b = { .name = "matmuls", .seconds = 0.05 * s->step };
    int axis = -1;

    for (int a = 0; a < SECONDS_WAITS; a++)
        if (s->exposed[a] > b.seconds) bind(&b, exposed[a], s->exposed[a]), axis = a;
    bind(&b, "the pipeline bubble", s->bubble);
    bind(&b, "recomputation", s->recomputed);
    bind(&b, "the optimizer", s->optimizer);
    bind(&b, "memory-bound kernels", s->kernels[SECONDS_MEMORY]);
    if (axis >= 0 && b.name == exposed[axis])
        say_exposed(x, axis, b.change, sizeof b.change);
    else if (b.seconds == s->bubble)
        snprintf(b.change, sizeof b.change,
                 "more than %d micro-batches per step, parallel.vpp, a zero-bubble parallel.schedule, or fewer stages",
                 x->layout->micro_batches);
    else if (b.seconds == s->recomputed)
        snprintf(b.change, sizeof b.change, "recompute less, if it fits: recompute.mode=selective or none");
    else if (b.seconds == s->optimizer)
        snprintf(b.change, sizeof b.change, "%s",
                 x->layout->zero ? "more samples per step (train.accumulate), so that it counts less"
                                 : "--parallel.zero=1 divides it by dp");
    else if (b.seconds > 0.05 * s->step)
        snprintf(b.change, sizeof b.change, "a larger train.micro_batch, if it fits, or parallel.sp; otherwise it is the model's");
    else
        snprintf(b.change, sizeof b.change, "nothing else takes a twentieth of the step; --search compares other layouts");
    return b;
}

/* ---- for people ---- */

static void put_part(const struct seconds_shown *x, const char *name, double seconds, const char *note)
{
    if (seconds > 1e-9 * x->seconds->step) printf("  %-28s%10.4g s  %5.1f%%%s\n", name, seconds, 100 * seconds / x->seconds->step, note);
}

void plan_seconds_print(const struct seconds_shown *x)
{
    const struct step_seconds *s = x->seconds;
    char name[64], count[32];

    printf("time        %.4g s a step on %s processor%s (%s): %s %s/s", s->step, text_count(count, x->ranks), x->ranks > 1 ? "s" : "",
           x->cluster->processor, text_count(name, (int64_t)x->plan.tokens_per_second), x->unit);
    if (x->plan.mfu > 0) printf(", MFU %.1f%%, HFU %.1f%%", 100 * x->plan.mfu, 100 * x->plan.hfu);
    printf("\n");
    for (int k = 0; k < SECONDS_KINDS; k++) put_part(x, seconds_kind_name((enum seconds_kind)k), s->kernels[k], "");
    put_part(x, "optimizer", s->optimizer, "");
    for (int a = 0; a < LS_AXES; a++) {
        snprintf(name, sizeof name, "exposed communication, %s", axis_name((ls_axis)a));
        put_part(x, name, s->exposed[a], "");
    }
    put_part(x, "exposed offload", s->exposed[SECONDS_OFFLOAD], "");
    put_part(x, "pipeline bubble", s->bubble, "");
    put_part(x, "recomputation", s->recomputed, " (part of the kernels above)");
    for (int a = 0; a < LS_AXES; a++) {
        snprintf(name, sizeof name, "hidden communication, %s", axis_name((ls_axis)a));
        put_part(x, name, s->hidden[a], " (not part of the step)");
    }
    put_part(x, "hidden offload", s->hidden[SECONDS_OFFLOAD], " (not part of the step)");
    struct binding b = binding_of(x);
    printf("binds       %s, %.1f%% of the step\n", b.name,
           100 * (b.seconds > 0.05 * s->step ? b.seconds : s->kernels[SECONDS_MATMUL]) / s->step);
    printf("change      %s\n", b.change);
    if (x->cluster->price > 0)
        printf("price       %.3g %s for a million %s, at %g per processor and hour\n", x->plan.price_of_million, x->cluster->currency,
               x->unit, x->cluster->price);
}

void plan_seconds_json(const struct seconds_shown *x, struct json_out *j)
{
    const struct step_seconds *s = x->seconds;

    json_begin_object(j, "seconds");
    json_put_string(j, "machine", x->cluster->name);
    json_put_real(j, "step", s->step);
    json_put_real(j, "units_per_second", x->plan.tokens_per_second);
    json_put_string(j, "unit", x->unit);
    if (x->plan.mfu > 0) {
        json_put_real(j, "mfu", x->plan.mfu);
        json_put_real(j, "hfu", x->plan.hfu);
    }
    struct binding b = binding_of(x);
    json_put_string(j, "binds", b.name);
    json_put_string(j, "change", b.change);
    if (x->cluster->price > 0) json_put_real(j, "price_of_million", x->plan.price_of_million);
    for (int k = 0; k < SECONDS_KINDS; k++) json_put_real(j, kernel_keys[k], s->kernels[k]);
    json_put_real(j, "optimizer", s->optimizer);
    json_put_real(j, "recomputed", s->recomputed);
    json_put_real(j, "bubble", s->bubble);
    json_begin_object(j, "exposed");
    for (int a = 0; a < SECONDS_WAITS; a++) json_put_real(j, seconds_wait_name(a), s->exposed[a]);
    json_end_object(j);
    json_begin_object(j, "hidden");
    for (int a = 0; a < SECONDS_WAITS; a++) json_put_real(j, seconds_wait_name(a), x->plan.seconds.hidden[a]);
    json_end_object(j);
    json_end_object(j);
}
