/* step_sim_make.c - makes a simulated step of a layout's programs: activities of their tapes, classes of ranks, clocks. */
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/rng.h"
#include "train/plan/step_sim_parts.h"

/* Appends an entry to the activities of a list that begins at `begin`. */
static void activity_put(struct sim_program *p, int begin, int *n, const struct tape_entry *x, double seconds)
{
    struct activity *last = *n > begin ? &p->activity[*n - 1] : NULL;

    if (x->kind == TAPE_KERNEL && last && last->kind == ACTIVITY_KERNELS) {
        last->seconds += seconds;
        return;
    }
    p->activity[*n] = (struct activity){ .entry = *x, .seconds = seconds };
    switch (x->kind) {
    case TAPE_KERNEL: p->activity[*n].kind = ACTIVITY_KERNELS; break;
    case TAPE_START: p->activity[*n].kind = x->queue == TAPE_COPIES ? ACTIVITY_COPY : ACTIVITY_START; break;
    case TAPE_WAIT: p->activity[*n].kind = ACTIVITY_WAIT; break;
    case TAPE_SHUFFLE: p->activity[*n].kind = ACTIVITY_SHUFFLE; break;
    }
    ++*n;
}

static ls_status sim_program_make(struct step_sim *s, const struct tape *t, const struct tape_place *place, struct sim_program *out)
{
    int n = 0;

    out->transfers = t->transfers;
    out->carries = t->carries;
    out->activity = mem_array(MEM_OTHER, 2 * (size_t)t->begin[SEGMENTS] + 1, sizeof *out->activity);
    out->posted = mem_array(MEM_OTHER, (size_t)t->transfers + 1, sizeof *out->posted);
    if (!out->activity || !out->posted) return LS_ENOMEM;
    for (int last = 0; last < 2; last++) {
        for (int g = 0; g < SEGMENTS; g++) {
            out->begin[last][g] = n;
            for (int k = t->begin[g]; k < t->begin[g + 1]; k++) {
                const struct tape_entry *x = &t->entry[k];

                if (x->when == (last ? LS_WHEN_NOT_LAST : LS_WHEN_LAST)) continue;
                if (x->kind == TAPE_START || x->kind == TAPE_SHUFFLE) s->used |= 1u << x->queue;
                activity_put(out, out->begin[last][g], &n, x, x->kind == TAPE_KERNEL ? tape_kernel_seconds(s->cluster, x, place) : 0);
            }
        }
        out->begin[last][SEGMENTS] = n;
    }
    return LS_OK;
}

static ls_status player_make(struct step_sim *s, const struct step *step, int stage, int *transfers)
{
    struct player *p = &s->stage[stage];
    const ls_program *program;

    p->place = tape_place_of(s->cluster, &step->layout, step->ranks.rank);
    while (step_program(step, p->programs)) p->programs++;
    if (!(p->program = mem_array(MEM_OTHER, (size_t)p->programs, sizeof *p->program))) return LS_ENOMEM;
    for (int i = 0; (program = step_program(step, i)); i++) {
        struct tape t;

        LS_TRY(tape_make(s->cluster, step, program, &t));
        ls_status st = sim_program_make(s, &t, &p->place, &p->program[i]);
        double message = tape_quantity_at(&t.message, &p->place);
        if (message > 0) s->message = MAX(s->message, seconds_of_collective(s->cluster, &p->place.neighbor, LS_COLLECTIVE_SEND, message));
        transfers[i] = t.transfers;
        tape_free(&t);
        if (st < 0) return st;
    }
    return LS_OK;
}

/* transfers: how many each stage's programs have, [stages][chunks + 1]. */
static ls_status stage_make(struct step_sim *s, const struct plan_job *j, const ls_layout *l, int stage, int *transfers)
{
    struct ranks ranks;
    struct step step;

    pulse();
    LS_TRY(ranks_plan(l, (int)(ls_layout_ranks(l) / l->pp) * (stage + 1) - 1, &ranks));
    ls_status st = step_open(j->model, l, &j->step, &ranks, true, &step);
    if (st == LS_OK) {
        st = player_make(s, &step, stage, transfers);
        step_close(&step);
    }
    ranks_close(&ranks);
    return st;
}

/* Clocks, once the classes are known. */
static ls_status player_clocks(struct step_sim *s, int stage, const int *transfers)
{
    struct player *p = &s->stage[stage];
    size_t n = (size_t)s->ranks.stage[stage].classes;

    p->now = mem_array(MEM_OTHER, n, sizeof *p->now);
    p->kernels = mem_array(MEM_OTHER, n, sizeof *p->kernels);
    p->exposed = mem_array(MEM_OTHER, n, sizeof *p->exposed);
    if (!p->now || !p->kernels || !p->exposed) return LS_ENOMEM;
    for (int g = 0; g < TAPE_QUEUES; g++)
        for (int k = 0; k < 2; k++)
            if (s->used >> g & 1 && !(p->idle_from[g][k] = mem_array(MEM_OTHER, n, sizeof(double)))) return LS_ENOMEM;
    for (int i = 0; i < p->programs; i++)
        if (!(p->program[i].end = mem_array(MEM_OTHER, ((size_t)transfers[i] + 1) * n, sizeof(double)))) return LS_ENOMEM;
    return LS_OK;
}

/* Draws the factors on the planned seconds of each rank's kernels. */
static double *vary(const struct variation *v, int ranks)
{
    double *out = mem_array(MEM_OTHER, (size_t)ranks, sizeof *out);

    if (!out) return NULL;
    for (int r = 0; r < ranks; r++) out[r] = 1;
    if (v->spread > 0) rng_normals(v->seed, rng_stream("spread"), 0, (size_t)ranks, out);
    for (int r = 0; v->spread > 0 && r < ranks; r++) out[r] = MAX(0.01, 1 + v->spread * out[r]);
    for (int i = 0; i < MIN(v->slow, ranks); i++) out[rng_permute(v->seed, rng_stream("slow"), (uint64_t)i, (uint64_t)ranks)] *= v->slower;
    return out;
}

static ls_status step_sim_make(struct step_sim *s, const struct plan_job *j, const ls_layout *l, int *transfers)
{
    int per_stage = l->vpp + 1;
    struct sim_division d = { .cluster = s->cluster,
                              .shape = ls_layout_mesh(l),
                              .seed = s->variation.seed,
                              .collide = s->variation.collide,
                              .unfolded = s->variation.unfolded || s->variation.jitter > 0 };
    double *seconds;

    for (int i = 0; i < l->pp; i++) LS_TRY(stage_make(s, j, l, i, transfers + i * per_stage));
    if (l->pp > 1) LS_TRY(ls_layout_schedule(l, &s->schedule));
    if (!(seconds = vary(&s->variation, (int)ls_layout_ranks(l)))) return LS_ENOMEM;
    d.used = s->used;
    LS_TRY(sim_ranks_divide(&d, seconds, &s->ranks));
    for (int i = 0; i < l->pp; i++) LS_TRY(player_clocks(s, i, transfers + i * per_stage));
    s->top = mem_array(MEM_OTHER, (size_t)s->ranks.per_stage, sizeof *s->top);
    s->normal = mem_array(MEM_OTHER, (size_t)s->ranks.per_stage, sizeof *s->normal);
    s->message_at = mem_array(MEM_OTHER, 2 * (size_t)(l->pp * s->chunks) * (size_t)s->micros, sizeof *s->message_at);
    return s->top && s->normal && s->message_at ? LS_OK : LS_ENOMEM;
}

ls_status step_sim_open(const struct plan_job *j, const ls_layout *l, const struct cluster *c, const struct variation *v,
                        struct step_sim **out)
{
    struct step_sim *s;
    int *transfers;

    LS_TRY(task_check_layout(j->model, l));
    LS_TRY(plan_check_seconds(l, c));
    if (!(s = *out = mem_zalloc(MEM_OTHER, sizeof *s))) return LS_ENOMEM;
    *s = (struct step_sim){
        .cluster = c, .variation = *v, .stages = l->pp, .micros = l->micro_batches, .chunks = l->pp > 1 ? MAX(l->vpp, 1) : 1
    };
    s->stage = mem_array(MEM_OTHER, (size_t)l->pp, sizeof *s->stage);
    transfers = mem_array(MEM_OTHER, (size_t)(l->pp * (l->vpp + 1)), sizeof *transfers);
    ls_status st = s->stage && transfers ? step_sim_make(s, j, l, transfers) : LS_ENOMEM;
    mem_free(transfers);
    if (st < 0) step_sim_close(out);
    return st;
}

static void player_free(struct player *p)
{
    for (int i = 0; p->program && i < p->programs; i++) {
        mem_free(p->program[i].activity);
        mem_free(p->program[i].end);
        mem_free(p->program[i].posted);
    }
    for (int k = 0; k < CROSSES; k++) {
        for (int i = 0; i < p->posts[k].room; i++) mem_free(p->posts[k].at[i]);
        mem_free(p->posts[k].at);
    }
    for (int g = 0; g < TAPE_QUEUES; g++)
        for (int k = 0; k < 2; k++) mem_free(p->idle_from[g][k]);
    mem_free(p->exposed);
    mem_free(p->kernels);
    mem_free(p->now);
    mem_free(p->program);
}

void step_sim_close(struct step_sim **out)
{
    struct step_sim *s = *out;

    if (!s) return;
    for (int i = 0; s->message_at && i < 2 * s->stages * s->chunks * s->micros; i++) mem_free(s->message_at[i]);
    for (int i = 0; s->stage && i < s->stages; i++) player_free(&s->stage[i]);
    mem_free(s->stage);
    mem_free(s->message_at);
    mem_free(s->normal);
    mem_free(s->top);
    sim_ranks_free(&s->ranks);
    ls_pipeline_schedule_free(&s->schedule);
    mem_free(s);
    *out = NULL;
}

int step_sim_classes(const struct step_sim *s) { return s->ranks.classes; }
int step_sim_stages(const struct step_sim *s) { return s->stages; }
bool step_sim_splits(const struct step_sim *s) { return s->stages > 1 && s->schedule.split; }

double step_sim_collisions(const struct step_sim *s)
{
    double most = 1;

    for (int i = 0; i < s->stages; i++)
        for (int g = 0; g < LS_GROUPS; g++) most = MAX(most, s->ranks.stage[i].group[g].most);
    return most;
}
