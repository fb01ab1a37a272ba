/* tape.c - see tape.h. */
#include "train/plan/tape.h"

#include <math.h>
#include "base/base.h"
#include "base/mem.h"
#include "ir/op_info.h"
#include "parallel/layout.h"
#include "runtime/store.h"

void tape_parts_add(struct tape_parts *to, const struct tape_parts *x, double times)
{
    to->all += times * x->all;
    to->recomputed += times * x->recomputed;
    for (int k = 0; k < SECONDS_KINDS; k++) to->kernels[k] += times * x->kernels[k];
    for (int a = 0; a < SECONDS_WAITS; a++) {
        to->exposed[a] += times * x->exposed[a];
        to->hidden[a] += times * x->hidden[a];
    }
}

void tape_seconds_add(struct tape_seconds *to, const struct tape_seconds *x, double times)
{
    tape_parts_add(&to->micro, &x->micro, times);
    tape_parts_add(&to->last, &x->last, times);
    tape_parts_add(&to->optimizer, &x->optimizer, times);
    for (size_t i = 0; i < COUNT_OF(to->action); i++) {
        to->action[i] += times * x->action[i];
        to->final[i] += times * x->final[i];
    }
    to->message += times * x->message;
    to->sent += times * x->sent;
    to->late += times * x->late;
}

/* ---- making ---- */

/* The group of a program's comm, which is one of the mesh's groups, because the step is distributed over that mesh. */
static ls_group group_of(const struct step *s, const ls_comm *comm)
{
    int g = 0;

    while (g < LS_GROUPS && ls_mesh_comm(s->ranks.mesh, (ls_group)g) != comm) g++;
    ASSERT(g < LS_GROUPS);
    return (ls_group)g;
}

/* The exchange of counts of routed rows, whose few bytes are not counted. */
static struct tape_entry shuffle_entry(const struct step *s, const struct instruction *i)
{
    return (struct tape_entry){
        .kind = TAPE_SHUFFLE, .queue = group_of(s, instruction_shuffle(i)->comm), .op = LS_COLLECTIVE_ALL_TO_ALL, .wait = LS_AXIS_EP
    };
}

static struct tape_entry exchange_entry(const struct step *s, const ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);
    struct tape_entry x = { .kind = TAPE_WAIT, .wait = e->axis, .transfer = e->id };

    if (!instruction_is_start(i)) return x;
    ls_value v = i->nin && i->in[0].id ? i->in[0] : i->out[0];
    x.kind = TAPE_START;
    x.queue = group_of(s, e->comm);
    x.op = e->op;
    x.carried = e->carried;
    x.moved.fixed = (double)e->total * (double)ls_dtype_bytes(p->values[v.id].dtype);
    return x;
}

/* The load or save of an offloaded value. Its number is that of the value, after those of the exchanges. */
static struct tape_entry offload_entry(const struct step *s, const ls_program *p, const struct instruction *i, enum segment segment)
{
    const struct unit_state *of = instruction_state(i);
    ls_offload where = of->kind == STORE_STATE ? s->layout.offload : s->layout.offload_parameters;
    ls_value v = i->nin ? i->in[0] : i->out[0];
    struct tape_entry x = { .kind = TAPE_WAIT, .queue = TAPE_COPIES, .wait = SECONDS_OFFLOAD, .transfer = p->builder.exchanges + v.id };

    if (!instruction_is_load(i) && !instruction_is_save(i)) return x;
    x.kind = TAPE_START;
    x.copy = (struct seconds_copy){ .file = where == LS_OFFLOAD_FILE, .save = instruction_is_save(i) };
    x.later = instruction_is_load(i) && of->kind == STORE_GRAD && segment != SEG_OPTIMIZER;
    x.moved.fixed = (double)value_count(&p->values[v.id]) * (double)ls_dtype_bytes(p->values[v.id].dtype);
    return x;
}

/* Number of kernels of an instruction, if each expert's matmul is a kernel of its own. */
static double kernels_of(const struct cluster *c, const struct step *s, const ls_program *p, const struct instruction *i)
{
    op_flops_fn *flops = op_info(i->op)->flops;
    bool grouped = flops == flops_grouped_linear || flops == flops_grouped_linear_dx || flops == flops_grouped_linear_dw;

    if (!c->experts_apart || !grouped) return 1;
    const struct value *w = &p->values[flops == flops_grouped_linear_dw ? i->out[0].id : i->in[1].id];
    ASSERT(w->ndim == 3);
    return (double)w->size[0] * (c->whole_experts ? (double)s->layout.ep / c->whole_experts : 1);
}

static struct tape_entry tape_entry_of(const struct cluster *c, const struct step *s, const ls_program *p, const struct instruction *i,
                                       enum segment segment)
{
    struct tape_entry x = { .kind = TAPE_KERNEL, .recomputed = i->phase == LS_PHASE_RECOMPUTE };
    struct seconds_work work;

    if (op_payload(i->op) == PAYLOAD_shuffle && instruction_shuffle(i)->comm)
        x = shuffle_entry(s, i);
    else if (instruction_is_exchange(i))
        x = exchange_entry(s, p, i);
    else if (op_payload(i->op) == PAYLOAD_state)
        x = offload_entry(s, p, i, segment);
    else
        x.launches.fixed = seconds_work_of(c, p, i, &work) ? kernels_of(c, s, p, i) : 0; /* views take no time */
    if (x.kind == TAPE_KERNEL) {
        x.work = work.kind;
        x.moved.fixed = work.moved;
        x.computed.fixed = work.computed;
        x.rows.fixed = work.rows;
        x.columns.fixed = work.columns;
    }
    x.when = i->when;
    x.inside = i->block > 0;
    return x;
}

/* The cast of a matmul's input, unless an earlier matmul has cast it. Cast and matmul are issued by the same call of the host. */
static bool tape_cast(const struct cluster *c, const ls_program *p, const struct instruction *i, bool *cast, struct tape_entry *out)
{
    double seconds = seconds_of_cast(c, p, i);

    if (seconds == 0 || cast[i->in[0].id]) return false;
    cast[i->in[0].id] = true;
    *out = (struct tape_entry){ .kind = TAPE_KERNEL,
                                .work = SECONDS_MEMORY,
                                .moved.fixed = seconds,
                                .launches.fixed = 1,
                                .issued = true,
                                .recomputed = i->phase == LS_PHASE_RECOMPUTE,
                                .when = i->when,
                                .inside = i->block > 0 };
    return true;
}

static bool offloads(const ls_program *p)
{
    struct program_offload bytes = program_offload(p, ~0);

    return bytes.loaded + bytes.saved > 0;
}

ls_status tape_make(const struct cluster *c, const struct step *s, const ls_program *p, struct tape *out)
{
    const struct value *sent = &p->values[p->results.stage.out.id];
    int n = 0;

    *out = (struct tape){ .transfers = p->builder.exchanges + (offloads(p) ? p->nvalues : 0) };
    for (int g = 0; g < SEGMENTS; g++) n += p->list[g].n;
    out->entry = mem_array(MEM_OTHER, 2 * (size_t)n + 1, sizeof *out->entry);
    out->end = mem_array(MEM_OTHER, (size_t)out->transfers + 1, sizeof *out->end);
    bool *cast = mem_zalloc(MEM_OTHER, ((size_t)p->nvalues + 1) * sizeof *cast);
    if (!out->entry || !out->end || !cast) {
        tape_free(out);
        mem_free(cast);
        return LS_ENOMEM;
    }
    n = 0;
    for (int g = 0; g < SEGMENTS; g++) {
        out->begin[g] = n;
        for (int k = 0; k < p->list[g].n; k++) {
            const struct instruction *i = &p->list[g].at[k];
            struct tape_entry x = tape_entry_of(c, s, p, i, (enum segment)g);

            if (c->cast_bytes > 0 && tape_cast(c, p, i, cast, &out->entry[n])) n++;
            out->carries |= x.carried;
            out->later |= x.later;
            if (x.kind != TAPE_KERNEL || x.launches.fixed > 0) out->entry[n++] = x;
        }
    }
    out->begin[SEGMENTS] = n;
    mem_free(cast);
    for (int k = 0; s->pipeline && k < ls_pipeline_chunks(s->pipeline); k++) out->chunk |= step_program(s, k) == p;
    if (p->results.stage.out.id) out->message.fixed = (double)value_count(sent) * (double)ls_dtype_bytes(sent->dtype);
    return LS_OK;
}

void tape_free(struct tape *t)
{
    mem_free(t->entry);
    mem_free(t->end);
    *t = (struct tape){ 0 };
}

/* ---- playing ---- */

double tape_quantity_at(const struct tape_quantity *q, const struct tape_place *place)
{
    return q->fixed + q->sample * place->samples + q->shared / place->ranks;
}

double tape_kernel_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place)
{
    struct seconds_work work = { x->work, tape_quantity_at(&x->moved, place), tape_quantity_at(&x->computed, place),
                                 tape_quantity_at(&x->rows, place), tape_quantity_at(&x->columns, place) };

    return seconds_of_work(c, &work, tape_quantity_at(&x->launches, place));
}

/* The share of a token's rows that is sent to other nodes, if each node receives one: the expected number of nodes that contain the token's
 * experts, all nodes being equally likely, divided by the number of experts. */
static double rows_between_nodes(const struct cluster *c, int nodes)
{
    double in = nodes * (1 - pow(1 - 1.0 / nodes, c->token_experts));

    return (c->token_nodes ? MIN(in, c->token_nodes) : in) / c->token_experts;
}

/* Seconds of an exchange of routed rows. */
static double exchanged_rows_seconds(const struct cluster *c, const struct tape_place *place, const struct seconds_group *group,
                                     double bytes)
{
    const struct seconds_group *tp = &place->group[LS_GROUP_TP];
    struct seconds_group over = *group;

    if (c->whole_experts) {
        over = seconds_group_of(c, &(struct mesh_position){ .size = c->whole_experts, .stride = 1 });
        bytes /= tp->ranks; /* the rows of its own tokens */
    }
    if (c->token_experts) over.slowed *= rows_between_nodes(c, over.nodes);
    if (!c->routes_shards || c->whole_experts) return seconds_of_collective(c, &over, LS_COLLECTIVE_ALL_TO_ALL, bytes);
    return seconds_of_collective(c, &over, LS_COLLECTIVE_ALL_TO_ALL, bytes / tp->ranks) +
           seconds_of_collective(c, tp, LS_COLLECTIVE_ALL_GATHER, bytes);
}

double tape_exchange_seconds(const struct cluster *c, const struct tape_entry *x, const struct tape_place *place,
                             const struct seconds_group *group)
{
    double bytes = tape_quantity_at(&x->moved, place);

    if (x->queue == TAPE_COPIES) return seconds_of_copy(c, x->copy, bytes);
    if (x->op == LS_COLLECTIVE_ALL_TO_ALL && x->wait == LS_AXIS_EP) return exchanged_rows_seconds(c, place, group, bytes);
    bool each = c->gathers > 1 && x->inside && x->wait == LS_AXIS_DP && x->op == LS_COLLECTIVE_ALL_GATHER;
    return seconds_of_collective(c, group, x->op, bytes) + (each ? (c->gathers - 1) * seconds_of_collective(c, group, x->op, 1) : 0);
}

double tape_beside(const struct cluster *c, double seconds, double busy)
{
    double left = 1 - (double)c->channels / c->units;

    if (busy <= 0) return seconds;
    return seconds <= busy * left ? seconds / left : busy + seconds - busy * left;
}

struct tape_place tape_place_of(const struct cluster *c, const ls_layout *l, int rank)
{
    ls_mesh_shape shape = ls_layout_mesh(l);
    struct mesh_position pair = mesh_position_of(&shape, LS_GROUP_PP, rank);
    struct tape_place out = { .samples = l->micro_batch, .ranks = (double)l->dp / MAX(l->replicate, 1) * l->cp };

    for (int g = 0; g < LS_GROUPS; g++) {
        struct mesh_position at = mesh_position_of(&shape, (ls_group)g, rank);

        out.group[g] = seconds_group_of(c, &at);
    }
    pair.size = 2; /* a stage and the next one: the pair that is furthest apart */
    out.neighbor = seconds_group_of(c, &pair);
    return out;
}

struct hash_words tape_place_words(const struct tape_place *place)
{
    struct {
        double samples, ranks, slowed[LS_GROUPS + 1];
        int at[LS_GROUPS + 1][4]; /* the last element is 0: the struct has no padding, so that its bytes can be hashed */
    } x = { .samples = place->samples, .ranks = place->ranks };

    for (int g = 0; g <= LS_GROUPS; g++) {
        const struct seconds_group *from = g < LS_GROUPS ? &place->group[g] : &place->neighbor;

        x.slowed[g] = from->slowed;
        x.at[g][0] = from->ranks, x.at[g][1] = from->nodes, x.at[g][2] = from->pods;
    }
    return hash_words_of(&x, sizeof x);
}

/* A rank's clock. Collectives of a group run one after another; receives overlap sends. */
struct clock {
    struct tape *tape;
    const struct cluster *cluster;
    const struct tape_place *place;
    double now, idle_from[TAPE_QUEUES][2];
    double host; /* when the host has issued everything so far */
    bool first;  /* in a step's first micro-batch */
    struct tape_parts *parts;
};

static double exchange_seconds(const struct clock *t, const struct tape_entry *x)
{
    return tape_exchange_seconds(t->cluster, x, t->place, x->queue < LS_GROUPS ? &t->place->group[x->queue] : NULL);
}

/* A kernel starts when the host has issued it; the wait for that counts as kernel time. */
static void clock_issue(struct clock *t, double launches)
{
    t->host += launches * t->cluster->host;
    if (t->host <= t->now) return;
    t->parts->kernels[SECONDS_MEMORY] += t->host - t->now;
    t->now = t->host;
}

/* The time until which some collective is in flight. */
static double clock_busy(const struct clock *t)
{
    double busy = 0;

    for (int g = 0; g < LS_GROUPS; g++) busy = MAX(busy, MAX(t->idle_from[g][0], t->idle_from[g][1]));
    return busy;
}

static void clock_kernel(struct clock *t, const struct tape_entry *x)
{
    double seconds = tape_kernel_seconds(t->cluster, x, t->place);

    if (!x->issued) clock_issue(t, tape_quantity_at(&x->launches, t->place));
    if (t->cluster->channels) seconds = tape_beside(t->cluster, seconds, clock_busy(t) - t->now);
    t->now += seconds;
    t->parts->kernels[x->work] += seconds;
    if (x->recomputed) t->parts->recomputed += seconds;
}

static void clock_wait(struct clock *t, const struct tape_entry *x)
{
    double waited = t->tape->end[x->transfer] - t->now;

    if (waited <= 0) return;
    if (t->cluster->chunks_tp && x->wait == LS_AXIS_TP) waited /= t->place->group[LS_GROUP_TP].ranks;
    t->now += waited;
    t->parts->exposed[x->wait] += waited;
    t->parts->hidden[x->wait] -= waited;
}

static void clock_start(struct clock *t, const struct tape_entry *x)
{
    double *idle_from = &t->idle_from[x->queue][x->op == LS_COLLECTIVE_RECV], seconds = exchange_seconds(t, x);

    bool chunked = t->cluster->tp_issues && x->wait == LS_AXIS_TP && x->inside;

    clock_issue(t, chunked ? t->cluster->tp_issues * t->place->group[LS_GROUP_TP].ranks : 1);
    t->tape->end[x->transfer] = *idle_from = MAX(t->now, *idle_from) + seconds;
    t->parts->hidden[x->wait] += seconds;
    if (t->cluster->serial && x->queue != TAPE_COPIES) clock_wait(t, x);
}

/* Counts of routed rows are exchanged while nothing else runs. */
static void clock_shuffle(struct clock *t, const struct tape_entry *x)
{
    double seconds = exchange_seconds(t, x);

    t->now += seconds;
    t->parts->exposed[x->wait] += seconds;
}

/* Runs a segment in the last micro-batch, or in one before it. */
static void clock_segment(struct clock *t, enum segment s, bool last)
{
    double begin = t->now;

    for (int n = t->tape->begin[s]; n < t->tape->begin[s + 1]; n++) {
        const struct tape_entry *x = &t->tape->entry[n];

        if (x->when == (last ? LS_WHEN_NOT_LAST : LS_WHEN_LAST) || (x->later && t->first)) continue;
        switch (x->kind) {
        case TAPE_KERNEL: clock_kernel(t, x); break;
        case TAPE_START: clock_start(t, x); break;
        case TAPE_WAIT: clock_wait(t, x); break;
        case TAPE_SHUFFLE: clock_shuffle(t, x); break;
        }
    }
    t->parts->all += t->now - begin;
}

/* One micro-batch; action[3]: seconds of its forward, backward and weight gradients. */
static void clock_micro(struct clock *t, bool last, struct tape_parts *parts, double *action)
{
    t->parts = parts;
    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++) {
        double begin = t->now;

        clock_segment(t, (enum segment)s, last);
        action[s] += t->now - begin;
    }
}

/* Sets the clock to the beginning of a step, with the gathers in flight that the previous step started. */
static void clock_carry(struct clock *t)
{
    struct tape_parts before = { 0 };

    t->parts = &before;
    clock_segment(t, SEG_OPTIMIZER, true);
    for (int i = 0; i < t->tape->transfers; i++) t->tape->end[i] -= t->now;
    for (int g = 0; g < TAPE_QUEUES; g++)
        for (int k = 0; k < 2; k++) t->idle_from[g][k] -= t->now;
    t->host -= t->now;
    t->now = 0;
}

void tape_play(struct tape *tape, const struct cluster *c, const struct tape_place *place, struct tape_seconds *out)
{
    struct clock t = { .tape = tape, .cluster = c, .place = place };
    struct tape_parts first = { 0 }, micro = { 0 }, last = { 0 };
    double unused[3] = {
        0
    }; /* a program with carried gathers is not a stage; a stage's first loads are assumed to be those of the next step */
    bool first_differs = tape->carries || tape->later;

    for (int i = 0; i < tape->transfers; i++) tape->end[i] = 0;
    if (tape->carries) clock_carry(&t);
    t.first = first_differs;
    if (first_differs) clock_micro(&t, false, &first, unused);
    t.first = false;
    clock_micro(&t, false, &micro, out->action);
    clock_micro(&t, true, &last, out->final);
    double waited = out->optimizer.exposed[LS_AXIS_DP];
    t.parts = &out->optimizer;
    clock_segment(&t, SEG_OPTIMIZER, true);
    if (tape->chunk) {
        out->late += out->optimizer.exposed[LS_AXIS_DP] - waited;
        out->sent += last.exposed[LS_AXIS_DP] + last.hidden[LS_AXIS_DP];
    }
    tape_parts_add(&out->micro, &micro, 1);
    tape_parts_add(&out->last, &last, 1);
    tape_parts_add(&out->last, &micro, -1);
    if (!first_differs) first = micro;
    tape_parts_add(&out->last, &first, 1); /* a step has one first micro-batch, as it has one last */
    tape_parts_add(&out->last, &micro, -1);
    double message = tape_quantity_at(&tape->message, place);
    if (message > 0) out->message = MAX(out->message, seconds_of_collective(c, &place->neighbor, LS_COLLECTIVE_SEND, message));
}

/* ---- the chunks of a rank ---- */

struct tape_chunk tape_chunk_of(const struct tape_seconds *x)
{
    return (struct tape_chunk){ .sent = x->sent,
                                .late = x->late,
                                .round = x->action[SEG_BACKWARD] + x->action[SEG_WEIGHTS],
                                .last = x->final[SEG_BACKWARD] + x->final[SEG_WEIGHTS] };
}

void tape_hide_chunks(const struct cluster *c, const ls_layout *l, const struct tape_chunk *chunk, struct tape_seconds *rank)
{
    double queue = 0, late = 0; /* what the group still has to send when a chunk's last backward ends; the same without overlap */

    if (l->pp == 1 || l->vpp == 1 || layout_is_v(l)) return;
    for (int k = l->vpp - 1; k >= 0; k--) {
        queue = MAX(chunk[k].late, queue + chunk[k].sent - chunk[k].last);
        late += chunk[k].late;
        if (k > 0) queue = MAX(0, queue - (l->pp - 1) * chunk[k - 1].round);
    }
    double hidden = late - queue, slower = c->units ? hidden * c->channels / c->units : 0;
    rank->optimizer.all += slower - hidden;
    rank->optimizer.exposed[LS_AXIS_DP] += slower - hidden;
    rank->optimizer.hidden[LS_AXIS_DP] += hidden - slower;
}
