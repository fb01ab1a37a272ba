/* lanes.c - runs one step of a list: its send and its receive, concurrently.
 *
 * The bytes of a span are sent in messages of CHUNK_BYTES, the last one shorter; an empty span is one empty message. Data to be summed is
 * received into one of two bounce buffers: while one is added, the next message is received into the other. Data to be copied is received
 * in place, unless the place is wide scratch.
 */
#include "comm/engine/engine.h"

#include <string.h>
#include "comm/reduce.h"

static bool is_half(ls_dtype t) { return t == LS_BF16 || t == LS_F16; }

/* Scratch of this list holds f32 in place of a half type. */
static bool wide_place(const ls_work *w, enum place in) { return in == IN_SCRATCH && w->list->list.wide && is_half(w->request.type); }

static ls_dtype type_in(const ls_work *w, enum place in) { return wide_place(w, in) ? LS_F32 : w->request.type; }

static char *address(const ls_work *w, struct span s)
{
    char *base = s.in == IN_SEND ? (char *)(uintptr_t)w->request.send : s.in == IN_RECV ? w->request.recv : w->comm->scratch;

    return base ? base + s.at * ls_dtype_bytes(type_in(w, s.in)) : NULL; /* base may be NULL if no rank has data */
}

static void average(const ls_work *w, const struct step *s, void *at, size_t count)
{
    if (s->done && w->request.redop == LS_AVG) reduce_divide(at, count, type_in(w, s->in.in), w->comm->n);
}

/* to[count] at `in` = from, or to op from; from is in the buffer of `out`. */
static void apply(const ls_work *w, const struct step *s, void *to, const void *from, size_t count, bool from_wide)
{
    ls_dtype type = w->request.type;
    bool to_wide = wide_place(w, s->in.in), sums = s->kind == STEP_REDUCE || s->kind == STEP_LOCAL_REDUCE;

    if (sums && to_wide == from_wide)
        reduce_into(to, from, count, to_wide ? LS_F32 : type, w->request.redop);
    else if (sums && to_wide)
        reduce_wide(to, from, count, type, w->request.redop);
    else if (to_wide && !from_wide)
        reduce_widen(to, from, count, type);
    else if (from_wide && !to_wide)
        reduce_narrow(to, from, count, type, 1);
    else if (to != from && count)
        memcpy(to, from, count * ls_dtype_bytes(type_in(w, s->in.in)));
    average(w, s, to, count);
}

static void local_step(const ls_work *w, const struct step *s)
{
    apply(w, s, address(w, s->in), address(w, s->out), s->in.len, wide_place(w, s->out.in));
}

/* ---- lanes ---- */

static bool through_bounce(const ls_work *w, const struct step *s) { return s->kind == STEP_REDUCE || wide_place(w, s->in.in); }

static void lane_open(struct lane *l, int peer, char *data, size_t bytes)
{
    *l = (struct lane){ .on = peer >= 0, .data = data, .total = bytes, .t.peer = peer };
}

static bool lane_over(const struct lane *l) { return !l->on || (l->messages && !l->flying && l->begun == l->total); }

static ls_status lane_send(ls_work *w, struct lane *l, void *data)
{
    size_t bytes = MIN(l->total - l->begun, (size_t)CHUNK_BYTES);
    bool sending = l == &w->out;

    l->t = (struct transfer){ .peer = l->t.peer, .sending = sending, .data = data, .bytes = bytes, .signature = &w->request.signature };
    l->begun += bytes;
    l->messages++;
    l->flying = true;
    return w->comm->transport->start(w->comm->link, &l->t);
}

static bool more(const struct lane *l) { return !l->flying && (!l->messages || l->begun < l->total); }

/* LS_OK: a message has ended (or none is in flight). */
static ls_status lane_poll(ls_work *w, struct lane *l, bool *moved)
{
    size_t done = l->t.done;

    if (!l->flying) return LS_OK;
    ls_status st = w->comm->transport->poll(w->comm->link, &l->t);

    if (st != LS_BUSY || l->t.done != done) *moved = true;
    if (st == LS_OK) l->flying = false;
    return st;
}

static ls_status lane_out(ls_work *w, bool *moved)
{
    struct lane *l = &w->out;

    while (!lane_over(l)) {
        if (more(l)) LS_TRY(lane_send(w, l, l->data + l->begun));
        ls_status st = lane_poll(w, l, moved);

        if (st != LS_OK) return st;
        w->bytes += l->t.bytes;
        w->comm->to[l->t.peer] += l->t.bytes;
    }
    return LS_OK;
}

static void *bounce_buffer(const ls_work *w, unsigned message) { return (char *)w->comm->bounce + (message % 2) * CHUNK_BYTES; }

static ls_status lane_in(ls_work *w, const struct step *s, bool *moved)
{
    struct lane *l = &w->in;
    bool bounce = through_bounce(w, s);
    size_t size = ls_dtype_bytes(w->request.type), in_size = ls_dtype_bytes(type_in(w, s->in.in));

    while (!lane_over(l)) {
        if (more(l)) LS_TRY(lane_send(w, l, bounce ? bounce_buffer(w, l->messages) : l->data + l->begun));
        ls_status st = lane_poll(w, l, moved);

        if (st != LS_OK) return st;

        char *came = l->t.data;
        size_t bytes = l->t.bytes, at = l->begun - bytes;

        if (more(l) && bounce) LS_TRY(lane_send(w, l, bounce_buffer(w, l->messages)));
        if (bounce)
            apply(w, s, l->data + at / size * in_size, came, bytes / size, false);
        else
            average(w, s, came, bytes / size);
    }
    return LS_OK;
}

/* ---- the step ---- */

static void step_begin(ls_work *w, const struct step *s)
{
    size_t size = ls_dtype_bytes(w->request.type);

    ASSERT(s->to < 0 || !wide_place(w, s->out.in));
    lane_open(&w->out, s->to, address(w, s->out), s->out.len * size);
    lane_open(&w->in, s->from, address(w, s->in), s->in.len * size);
    w->step_begun = true;
}

ls_status step_advance(ls_work *w, bool *moved)
{
    const struct step *s = &w->list->list.step[w->step];

    if (s->kind == STEP_LOCAL || s->kind == STEP_LOCAL_REDUCE) {
        local_step(w, s);
        return LS_OK;
    }
    if (!w->step_begun) step_begin(w, s);
    ls_status out = lane_out(w, moved);

    if (out < 0) return out;
    ls_status in = lane_in(w, s, moved);
    if (in < 0) return in;
    if (out == LS_BUSY || in == LS_BUSY) return LS_BUSY;
    w->step_begun = false;
    return LS_OK;
}
