/* pipeline_plan.c - computes the plan of a run, see pipeline_plan.h. A pure function of the schedule. */
#include "parallel/pipeline/pipeline_plan.h"

#include "base/base.h"
#include "base/mem.h"
#include "parallel/pipeline/schedule.h"

/* The messages of one kind that one peer sends to this rank, in its order, as the actions of this rank that receive them. */
struct queue {
    ls_action *message;
    int n, posted;
};

struct maker {
    const ls_pipeline_schedule *s;
    int rank, room;
    struct queue *queue; /* [stages][2], by peer and kind, FORWARD or BACKWARD */
    int *slot_of;        /* [chunks][micro]; -1: none */
    bool *taken;         /* [chunks][micro] by slot */
    struct pipeline_plan plan;
};

static int *slot_at(struct maker *m, int chunk, int micro) { return &m->slot_of[chunk * m->s->micro + micro]; }

/* ---- what peers send ---- */

static ls_status list_messages(struct maker *m)
{
    for (int q = 0; q < m->s->stages; q++) {
        struct queue *both = &m->queue[2 * q];

        for (int k = 0; k < 2; k++)
            if (!(both[k].message = mem_array(MEM_OTHER, (size_t)m->s->count[q] + 1, sizeof *both[k].message))) return LS_ENOMEM;
        for (int i = 0; q != m->rank && i < m->s->count[q]; i++) {
            ls_action a = m->s->list[q][i];
            int to = schedule_send_stage(m->s, q, &a), chunk;

            if (to >= 0 && ls_pipeline_rank(m->s, to, &chunk) == m->rank)
                both[a.kind].message[both[a.kind].n++] = (ls_action){ a.kind, chunk, a.micro };
        }
    }
    return LS_OK;
}

static bool is_same(ls_action a, ls_action b) { return a.kind == b.kind && a.chunk == b.chunk && a.micro == b.micro; }

/* ---- slots ---- */

static int take_slot(struct maker *m, int chunk, int micro)
{
    bool *taken = &m->taken[chunk * m->s->micro];
    int slot = 0;

    while (taken[slot]) /* there are never more slots in use than micro-batches */
        slot++;
    taken[slot] = true;
    m->plan.slots[chunk] = MAX(m->plan.slots[chunk], slot + 1);
    return *slot_at(m, chunk, micro) = slot;
}

/* True if one of the slots in use so far is free. */
static bool has_free_slot(const struct maker *m, int chunk)
{
    for (int slot = 0; slot < m->plan.slots[chunk]; slot++)
        if (!m->taken[chunk * m->s->micro + slot]) return true;
    return false;
}

static void give_back(struct maker *m, int chunk, int micro) { m->taken[chunk * m->s->micro + *slot_at(m, chunk, micro)] = false; }

static void release(struct maker *m, ls_action a)
{
    ls_action_kind end = !m->s->backward ? LS_ACTION_FORWARD : m->s->split ? LS_ACTION_WEIGHTS : LS_ACTION_BACKWARD;
    int to = schedule_send_stage(m->s, m->rank, &a), from = schedule_recv_stage(m->s, m->rank, &a), chunk;
    bool forwards = end == LS_ACTION_FORWARD; /* then a neighbor on this rank may still have to read it */

    if (a.kind != end) return;
    if (!forwards || to < 0 || ls_pipeline_rank(m->s, to, &chunk) != m->rank) give_back(m, a.chunk, a.micro);
    if (forwards && from >= 0 && ls_pipeline_rank(m->s, from, &chunk) == m->rank) give_back(m, chunk, a.micro);
}

/* ---- steps ---- */

static void pipeline_plan_add(struct maker *m, struct plan_step step)
{
    ASSERT(m->plan.n < m->room);
    m->plan.step[m->plan.n++] = step;
}

/* The rank whose message a needs, -1: none; *chunk: the neighboring chunk if it is on this rank. */
static int source(const struct maker *m, ls_action a, int *chunk)
{
    int stage = schedule_recv_stage(m->s, m->rank, &a);

    *chunk = -1;
    return stage < 0 ? -1 : ls_pipeline_rank(m->s, stage, chunk);
}

static void pipeline_plan_post(struct maker *m, struct queue *q, int peer)
{
    ls_action a = q->message[q->posted++];
    int slot = a.kind == LS_ACTION_FORWARD ? take_slot(m, a.chunk, a.micro) : *slot_at(m, a.chunk, a.micro);

    ASSERT(slot >= 0); /* the forward was here first: the peer's backward waited for it */
    pipeline_plan_add(m, (struct plan_step){ true, a, slot, peer, -1, -1, -1, false });
}

static bool is_posted(const struct queue *q, ls_action a)
{
    for (int i = 0; i < q->posted; i++)
        if (is_same(q->message[i], a)) return true;
    return false;
}

static void post_for(struct maker *m, ls_action a)
{
    int chunk, peer = source(m, a, &chunk);
    struct queue *q = peer >= 0 && peer != m->rank ? &m->queue[2 * peer + (int)a.kind] : NULL;

    while (q && !is_posted(q, a)) {
        ASSERT(q->posted < q->n);
        pipeline_plan_post(m, q, peer);
    }
}

static bool can_post(struct maker *m, ls_action a)
{
    return a.kind == LS_ACTION_FORWARD ? has_free_slot(m, a.chunk) : *slot_at(m, a.chunk, a.micro) >= 0;
}

static void post_early(struct maker *m)
{
    for (int k = 0; k < 2 * m->s->stages; k++) {
        struct queue *q = &m->queue[k];

        while (q->posted < q->n && can_post(m, q->message[q->posted])) pipeline_plan_post(m, q, k / 2);
    }
}

static bool is_last(const struct maker *m, int k)
{
    ls_action a = m->s->list[m->rank][k];

    for (int i = k + 1; i < m->s->count[m->rank]; i++)
        if (m->s->list[m->rank][i].kind == a.kind && m->s->list[m->rank][i].chunk == a.chunk) return false;
    return true;
}

static void pipeline_plan_run(struct maker *m, int k)
{
    ls_action a = m->s->list[m->rank][k];
    int chunk, to = schedule_send_stage(m->s, m->rank, &a), next = -1;
    struct plan_step step = { .action = a, .from = -1, .to = -1, .chunk = -1, .other = -1, .last = is_last(m, k) };

    post_for(m, a);
    int from = source(m, a, &chunk);
    if (a.kind == LS_ACTION_FORWARD && (from < 0 || from == m->rank)) take_slot(m, a.chunk, a.micro);
    step.slot = *slot_at(m, a.chunk, a.micro);
    if (a.kind == LS_ACTION_FORWARD && from == m->rank) {
        step.chunk = chunk;
        step.other = *slot_at(m, chunk, a.micro);
    } else if (from >= 0 && from != m->rank) {
        step.from = from;
    }
    if (to >= 0) step.to = ls_pipeline_rank(m->s, to, &next);
    if (step.to == m->rank) {
        step.to = -1;
        if (a.kind == LS_ACTION_BACKWARD) {
            step.chunk = next;
            step.other = *slot_at(m, next, a.micro);
        }
    }
    post_early(m);
    pipeline_plan_add(m, step);
    release(m, a);
}

/* ---- the complete plan ---- */

static ls_status pipeline_plan_allocate(struct maker *m)
{
    size_t most = (size_t)m->s->chunks * (size_t)m->s->micro;

    m->room = 2 * m->s->count[m->rank] + 1;
    m->queue = mem_array(MEM_OTHER, 2 * (size_t)m->s->stages, sizeof *m->queue);
    m->slot_of = mem_array(MEM_OTHER, most, sizeof *m->slot_of);
    m->taken = mem_array(MEM_OTHER, most, sizeof *m->taken);
    m->plan.step = mem_array(MEM_OTHER, (size_t)m->room, sizeof *m->plan.step);
    m->plan.slots = mem_array(MEM_OTHER, (size_t)m->s->chunks, sizeof *m->plan.slots);
    if (!m->queue || !m->slot_of || !m->taken || !m->plan.step || !m->plan.slots) return LS_ENOMEM;
    for (size_t i = 0; i < most; i++) m->slot_of[i] = -1;
    for (int c = 0; c < m->s->chunks; c++) m->plan.slots[c] = ls_pipeline_schedule_slots(m->s, m->rank, c);
    return list_messages(m);
}

ls_status pipeline_plan_make(const ls_pipeline_schedule *s, int rank, struct pipeline_plan *out)
{
    struct maker m = { .s = s, .rank = rank };
    ls_status st = pipeline_plan_allocate(&m);

    for (int k = 0; st == LS_OK && k < s->count[rank]; k++) pipeline_plan_run(&m, k);
    for (int q = 0; m.queue && q < 2 * s->stages; q++) mem_free(m.queue[q].message);
    mem_free(m.queue);
    mem_free(m.slot_of);
    mem_free(m.taken);
    if (st == LS_OK)
        *out = m.plan;
    else
        pipeline_plan_free(&m.plan);
    return st;
}

void pipeline_plan_free(struct pipeline_plan *p)
{
    mem_free(p->step);
    mem_free(p->slots);
    *p = (struct pipeline_plan){ 0 };
}
