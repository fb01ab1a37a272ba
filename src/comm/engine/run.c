/* run.c - one operation from queued to ended.
 *
 * Collectives of a comm run one after another, in the order of their calls; of the sends to one peer, and of the receives from one peer,
 * the oldest runs. A collective is the transport's native one if it has one, else a list of steps; a call that the device makes is only
 * followed: its caller says when it has ended. Any failure ends the job: every operation in flight on comms of the same origin ends with
 * the same status and line.
 */
#include "comm/engine/engine.h"

#include <stdio.h>
#include <string.h>

void queue_push(struct queue *q, ls_work *w)
{
    w->next = NULL;
    if (q->tail)
        q->tail->next = w;
    else
        q->head = w;
    q->tail = w;
}

static ls_work *queue_pop(struct queue *q)
{
    ls_work *w = q->head;

    q->head = w->next;
    if (!q->head) q->tail = NULL;
    return w;
}

struct queue queue_move(struct queue *q)
{
    struct queue all = *q;

    *q = (struct queue){ 0 };
    return all;
}

static bool run_is_message(const ls_work *w) { return w->op == LS_COLLECTIVE_SEND || w->op == LS_COLLECTIVE_RECV; }

/* The queue in which w waits for the operations before it. */
static struct queue *queue_of(ls_comm *c, const ls_work *w)
{
    return !run_is_message(w) ? &c->collectives : &c->pairs[(w->op == LS_COLLECTIVE_RECV ? c->n : 0) + w->request.root];
}

void run_take(ls_comm *c, struct queue *posted, double now)
{
    while (posted->head) {
        ls_work *w = queue_pop(posted);
        struct queue *q = queue_of(c, w);

        if (!q->head) w->taken = w->lazy ? w->queued : now;
        c->messages += run_is_message(w);
        queue_push(q, w);
    }
}

static void record_state(const ls_comm *c, const ls_work *w, enum call_state state)
{
    recorder_update(w->call, state, (uint32_t)w->step, state == CALL_RUNNING ? w->started : w->finished);
    if (!run_is_message(w) && state == CALL_RUNNING) board_begun(c->job->board, c->place, w->request.signature.sequence);
    if (!run_is_message(w) && state == CALL_DONE) board_done(c->job->board, c->place, w->request.signature.sequence);
    if (!c->transport->note) return;

    struct call_record r = { .signature = w->request.signature,
                             .queued = w->queued,
                             .started = w->started,
                             .ended = w->finished,
                             .state = state,
                             .step = (uint32_t)w->step };

    memcpy(r.name, c->name, sizeof r.name);
    c->transport->note(c->link, &r);
}

/* ---- beginning ---- */

static ls_status begin_message(ls_comm *c, ls_work *w)
{
    struct request *r = &w->request;
    bool sending = w->op == LS_COLLECTIVE_SEND;

    w->out.t = (struct transfer){
        .peer = r->root,
        .channel = 1,
        .sending = sending,
        .data = sending ? (void *)(uintptr_t)r->send : r->recv,
        .bytes = r->count * ls_dtype_bytes(r->type),
        .signature = &r->signature,
    };
    return c->transport->start(c->link, &w->out.t);
}

static ls_status begin_collective(ls_comm *c, ls_work *w)
{
    struct request *r = &w->request;

    if (transport_preferred(w)) {
        ls_status st = c->transport->begin(c->link, r);

        if (st != LS_EUNSUPPORTED) {
            w->by_transport = true;
            return st;
        }
    }
    return list_for(w, &w->list);
}

comm_delay_fault_fn *comm_delay_fault;

static double run_due(const ls_work *w)
{
    comm_delay_fault_fn *fault = __atomic_load_n(&comm_delay_fault, __ATOMIC_ACQUIRE);

    if (!fault || w->native || w->hidden) return 0;
    struct buffers b = operation_buffers(w);
    return w->started + fault(MAX(b.send, b.recv));
}

static ls_status run_start(ls_comm *c, ls_work *w)
{
    w->due = 0;
    LS_TRY(c->transport->failed(c->link));
    if (w->native) return LS_OK;
    return run_is_message(w) ? begin_message(c, w) : begin_collective(c, w);
}

static ls_status run_begin(ls_comm *c, ls_work *w)
{
    w->begun = true;
    w->started = w->moved = w->taken > 0 ? w->taken : base_now();
    w->stirred = true; /* `taken` may have been long ago */
    record_state(c, w, CALL_RUNNING);
    w->due = run_due(w);
    return w->due > 0 ? LS_OK : run_start(c, w);
}

/* True until the time at which a call begins that has been delayed. */
static bool run_delayed(ls_work *w)
{
    if (w->due == 0) return false;
    w->moved = base_now();
    return w->moved < w->due;
}

/* ---- progress ---- */

static void count_bytes(ls_comm *c, ls_work *w)
{
    for (int peer = 0; peer < c->n; peer++) {
        uint64_t bytes = peer == c->rank ? 0 : count_transport(w, peer);

        c->to[peer] += bytes;
        w->bytes += bytes;
    }
}

static ls_status advance_transport(ls_comm *c, ls_work *w, bool *moved)
{
    int phase = w->request.phase;
    ls_status st = c->transport->advance(c->link, &w->request);

    if (st != LS_BUSY || w->request.phase != phase) *moved = true;
    if (st == LS_OK) count_bytes(c, w);
    return st;
}

/* Its caller says when it has ended. */
static ls_status advance_native(ls_comm *c, ls_work *w)
{
    if (!atomic_load(&w->passed)) return LS_BUSY;
    if (w->op != LS_COLLECTIVE_SEND)
        count_bytes(c, w);
    else
        c->to[w->request.root] += w->bytes = w->request.count * ls_dtype_bytes(w->request.type);
    return LS_OK;
}

static ls_status advance_list(ls_work *w, bool *moved)
{
    while (w->step < w->list->list.n) {
        ls_status st = step_advance(w, moved);

        if (st != LS_OK) return st;
        w->step++;
        *moved = true;
    }
    return LS_OK;
}

static ls_status advance_message(ls_comm *c, ls_work *w, bool *moved)
{
    size_t done = w->out.t.done;
    ls_status st = c->transport->poll(c->link, &w->out.t);

    if (st != LS_BUSY || w->out.t.done != done) *moved = true;
    if (st == LS_OK && w->out.t.sending) {
        w->bytes = w->out.t.bytes;
        c->to[w->out.t.peer] += w->bytes;
    }
    return st;
}

static void run_finish(ls_comm *c, ls_work *w, ls_status st)
{
    w->finished = base_now();
    w->status = st;
    record_state(c, w, st == LS_OK ? CALL_DONE : CALL_FAILED);
    engine_ended(w);
}

/* Advances the head of q; LS_BUSY if there is more to do. */
static bool run_head(ls_comm *c, struct queue *q)
{
    ls_work *w = q->head;
    ls_status st = LS_OK;
    bool moved = !w->begun;

    if (!w->begun) st = run_begin(c, w);
    if (st >= 0 && run_delayed(w)) return moved;
    if (st >= 0 && w->due > 0) st = run_start(c, w);
    if (st >= 0) {
        if (w->native)
            st = advance_native(c, w);
        else if (run_is_message(w))
            st = advance_message(c, w, &moved);
        else
            st = w->by_transport ? advance_transport(c, w, &moved) : advance_list(w, &moved);
    }
    if (st == LS_OK) {
        queue_pop(q);
        c->messages -= run_is_message(w);
        moved = true;
        run_finish(c, w, atomic_load(&w->passed) < 0 ? LS_EPEER : LS_OK);
    } else if (st == LS_BUSY) {
        if (moved) w->stirred = true;
    } else {
        run_fail(c, st);
    }
    return moved;
}

static void end_all(ls_comm *c, ls_status st)
{
    while (c->collectives.head) run_finish(c, queue_pop(&c->collectives), st);
    for (int i = 0; i < 2 * c->n; i++)
        while (c->pairs[i].head) run_finish(c, queue_pop(&c->pairs[i]), st);
    c->messages = 0;
}

bool run_comm(ls_comm *c)
{
    bool moved = false;
    int failed = atomic_load(&c->job->status);

    if (failed) {
        end_all(c, (ls_status)failed);
        return true;
    }
    if (c->collectives.head && run_head(c, &c->collectives)) moved = true;
    for (int i = 0; c->messages && i < 2 * c->n && !atomic_load(&c->job->status); i++)
        if (c->pairs[i].head && run_head(c, &c->pairs[i])) moved = true;
    return moved;
}

/* ---- ends ---- */

void run_fail(ls_comm *c, ls_status st)
{
    char line[LINE_ROOM];

    if (atomic_load(&c->job->status)) return;
    if (st == LS_EPEER || st == LS_ETIMEOUT)
        snprintf(line, sizeof line, "%s", ls_errmsg());
    else
        snprintf(line, sizeof line, "rank %d: %s", link_base(c->link)->member[c->rank], ls_errmsg());
    c->transport->fail(c->link, st, line);

    ls_status first = c->transport->failed(c->link); /* another rank's line may have been there before */

    if (first >= 0) first = ls_fail(st, "%s", line);
    snprintf(c->job->line, sizeof c->job->line, "%s", ls_errmsg());
    atomic_store(&c->job->status, (int)first);
}

static ls_status look_at(ls_comm *c, ls_work *w, double now)
{
    if (w->stirred) w->moved = now;
    w->stirred = false;
    return verdict_look(c, w, now);
}

void run_look(ls_comm *c, double now)
{
    ls_status st = c->transport->failed(c->link);

    if (st == LS_OK && c->collectives.head) st = look_at(c, c->collectives.head, now);
    for (int i = 0; st == LS_OK && c->messages && i < 2 * c->n; i++)
        if (c->pairs[i].head) st = look_at(c, c->pairs[i].head, now);
    if (st < 0) run_fail(c, st);
}
