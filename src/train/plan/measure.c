/* measure.c - see measure.h. */
#include "train/plan/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "plan/seconds.h"
#include "train/run/random_tokens.h"

enum { MEASURED_MOST = 16384 };

/* An instruction that ran: the size of its operands, and mean seconds. */
struct measured_run {
    char name[CURVE_NAME];
    double size, seconds;
};
struct measured {
    struct measured_run run[MEASURED_MOST];
    int runs;
};

ls_status measured_new(struct measured **out) { return (*out = mem_zalloc(MEM_OTHER, sizeof **out)) ? LS_OK : LS_ENOMEM; }

void measured_free(struct measured **m)
{
    mem_free(*m);
    *m = NULL;
}

/* ---- running ---- */

static void forget_seconds(ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            struct instruction_run *r = instruction_run(p, &p->list[s].at[n]);

            r->seconds = 0;
            r->runs = 0;
        }
}

static void take_seconds(struct measured *m, const ls_program *p)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n && m->runs < MEASURED_MOST; n++) {
            const struct instruction *i = &p->list[s].at[n];
            const struct instruction_run *r = instruction_run(p, i);
            struct measured_run *run = &m->run[m->runs];

            if (instruction_is_view(i) || instruction_is_exchange(i) || r->runs == 0) continue;
            if (!seconds_curve_of(p, i, run->name, &run->size)) continue;
            run->seconds = r->seconds / (double)r->runs;
            m->runs++;
        }
}

static ls_status run_steps(struct measured *m, const struct config *c, struct step *s)
{
    uint64_t warmup = (uint64_t)c->bench.warmup, steps = (uint64_t)c->bench.steps;
    double loss, norm;
    size_t valid;

    for (uint64_t i = 0; i < warmup + steps; i++) {
        random_tokens(s, i, 0);
        if (i == warmup) forget_seconds(s->program);
        LS_TRY(step_set(s, 1e-4, i + 1));
        LS_TRY(step_gradients(s, i, &loss, &valid));
        LS_TRY(step_update(s, i + 1, &norm));
    }
    take_seconds(m, s->program);
    return LS_OK;
}

ls_status measured_add(struct measured *m, const struct config *c)
{
    struct ranks alone = RANKS_ALONE;
    struct task_model model;
    struct step s;

    LS_TRY(task_model_of(c, 0, &model));
    LS_TRY(step_open_config(c, &model, &alone, STEP_INITIALIZED, &s));
    ls_status st = run_steps(m, c, &s);
    step_close(&s);
    return st;
}

/* ---- curves ---- */

static int by_name_and_size(const void *a, const void *b)
{
    const struct measured_run *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* Converts one op's runs [from, to), whose sizes ascend, to points: sizes within a factor of `near` become one point at their mean. Returns
 * how many. */
static int curve_of_runs(const struct measured_run *run, int from, int to, double near, struct cluster_curve *out)
{
    int points = 0;

    for (int i = from, next; i < to; i = next) {
        double size = 0, seconds = 0;

        for (next = i; next < to && run[next].size <= run[i].size * near; next++) size += run[next].size, seconds += run[next].seconds;
        if (out && points < CURVE_POINTS) {
            out->size[points] = size / (next - i);
            out->seconds[points] = fmax(seconds / (next - i), 1e-9);
            out->points = points + 1;
        }
        points++;
    }
    return points;
}

ls_status measured_put(const struct measured *m, struct cluster *c)
{
    struct measured_run *sorted = mem_array(MEM_OTHER, (size_t)m->runs + 1, sizeof *sorted);

    if (!sorted) return LS_ENOMEM;
    memcpy(sorted, m->run, (size_t)m->runs * sizeof *sorted);
    qsort(sorted, (size_t)m->runs, sizeof *sorted, by_name_and_size);
    for (int from = 0, to; from < m->runs && c->curves < CURVES_MOST; from = to) {
        struct cluster_curve *x = &c->curve[c->curves++];
        double near = 1.02;

        for (to = from; to < m->runs && strcmp(sorted[to].name, sorted[from].name) == 0;) to++;
        memcpy(x->name, sorted[from].name, sizeof x->name);
        while (curve_of_runs(sorted, from, to, near, NULL) > CURVE_POINTS) near *= 1.2;
        curve_of_runs(sorted, from, to, near, x);
    }
    mem_free(sorted);
    return LS_OK;
}
