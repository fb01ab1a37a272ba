/* helper_virtual.c - see helper_virtual.h. */
#include "helper_virtual.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

#define WANT(cond, ...)                     \
    do {                                    \
        if (!(cond)) fail_msg(__VA_ARGS__); \
    } while (0)

double virtual_round(enum virtual_type t, double x)
{
    switch (t) {
    case VIRTUAL_F32:  return (float)x;
    case VIRTUAL_BF16: return ls_bf16_to_f32(ls_f32_to_bf16((float)x));
    default:           return x;
    }
}

/* Exact: small integers. Else: numbers of many sizes, whose sum depends on the order. */
double virtual_value(enum virtual_type t, int rank, size_t i)
{
    uint64_t h = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)i + 1) * 0xc2b2ae3d27d4eb4fu;

    if (t == VIRTUAL_EXACT) return (double)((size_t)rank * 31 + i * 17 % 1000);
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    return virtual_round(t, ldexp((double)(int32_t)(uint32_t)h, (int)(h >> 40 & 7) - 34));
}

/* ---- one rank ---- */

struct message { struct message *next; size_t len; double data[]; };

struct machine {
    const struct virtual_case *c;
    struct virtual_run *run;
    int      step[VIRTUAL_RANKS];
    bool     sent[VIRTUAL_RANKS], received[VIRTUAL_RANKS];
    struct message *first[VIRTUAL_RANKS][VIRTUAL_RANKS], *last[VIRTUAL_RANKS][VIRTUAL_RANKS];  /* [from][to] */
    unsigned seed;
};

static unsigned machine_draw(struct machine *m, unsigned below)
{
    m->seed = m->seed * 1664525u + 1013904223u;
    return (m->seed >> 8) % below;
}

static const struct step *current(const struct machine *m, int r)
{
    const struct step_list *l = &m->run->list[r];

    return m->step[r] < l->n ? &l->step[m->step[r]] : NULL;
}

static double *machine_place(const struct machine *m, int r, struct span s)
{
    const struct virtual_run *v = m->run;
    size_t room = s.in == IN_SEND ? v->sends[r] : s.in == IN_RECV ? v->recvs[r] : v->list[r].scratch;

    WANT(s.at + s.len <= room, "%s, rank %d of %d, step %d: [%zu, %zu) of %zu elements", m->c->algorithm->name, r, m->c->n,
         m->step[r], s.at, s.at + s.len, room);
    return (s.in == IN_SEND ? v->send[r] : s.in == IN_RECV ? v->recv[r] : v->scratch[r]) + s.at;
}

/* The type of a place: wide scratch is f32. */
static enum virtual_type type_of(const struct machine *m, int r, enum place in)
{
    bool wide = in == IN_SCRATCH && m->run->list[r].wide && m->c->type == VIRTUAL_BF16;

    return wide ? VIRTUAL_F32 : m->c->type;
}

static void store(const struct machine *m, int r, const struct step *s, const double *came)
{
    double *in = machine_place(m, r, s->in);
    bool add = s->kind == STEP_REDUCE || s->kind == STEP_LOCAL_REDUCE;
    enum virtual_type t = type_of(m, r, s->in.in);

    WANT(s->in.in != IN_SEND, "rank %d writes its send buffer", r);
    if (in == came && !add) return;  /* the runtime drops a copy onto itself */
    for (size_t i = 0; i < s->in.len; i++) {
        in[i] = virtual_round(t, add ? in[i] + came[i] : came[i]);
        if (s->done && m->c->average) in[i] = virtual_round(t, in[i] / m->c->n);
    }
}

static const double *leaving(const struct machine *m, int r, const struct step *s)
{
    WANT(!(s->out.in == IN_SCRATCH && m->run->list[r].wide), "rank %d sends from wide scratch", r);
    return machine_place(m, r, s->out);
}

static bool advance_when_done(struct machine *m, int r)
{
    const struct step *s = current(m, r);

    if ((s->to >= 0 && !m->sent[r]) || (s->from >= 0 && !m->received[r])) return false;
    m->sent[r] = m->received[r] = false;
    m->step[r]++;
    return true;
}

static bool do_local(struct machine *m, int r)
{
    const struct step *s = current(m, r);

    if (!s || s->to >= 0 || s->from >= 0) return false;
    store(m, r, s, machine_place(m, r, s->out));
    return advance_when_done(m, r);
}

/* ---- moving ---- */

static bool send_rendezvous(struct machine *m, int r)
{
    const struct step *s = current(m, r);

    if (!s || s->to < 0 || m->sent[r]) return false;
    const struct step *peer = current(m, s->to);
    if (!peer || peer->from != r || m->received[s->to]) return false;
    WANT(peer->in.len == s->out.len, "%d sends %zu elements, %d wants %zu", r, s->out.len, s->to, peer->in.len);
    int to = s->to;
    store(m, to, peer, leaving(m, r, s));
    m->sent[r] = m->received[to] = true;
    advance_when_done(m, r);
    if (to != r) advance_when_done(m, to);
    return true;
}

static bool send_eager(struct machine *m, int r)
{
    const struct step *s = current(m, r);
    struct message *q;

    if (!s || s->to < 0 || m->sent[r]) return false;
    q = malloc(sizeof *q + s->out.len * sizeof(double));
    assert_non_null(q);
    *q = (struct message){ NULL, s->out.len };
    memcpy(q->data, leaving(m, r, s), s->out.len * sizeof(double));
    if (m->first[r][s->to]) m->last[r][s->to]->next = q;
    else m->first[r][s->to] = q;
    m->last[r][s->to] = q;
    m->sent[r] = true;
    advance_when_done(m, r);
    return true;
}

static bool receive_eager(struct machine *m, int r)
{
    const struct step *s = current(m, r);
    struct message *q;

    if (!s || s->from < 0 || m->received[r] || !(q = m->first[s->from][r])) return false;
    WANT(q->len == s->in.len, "%d sends %zu elements, %d wants %zu", s->from, q->len, r, s->in.len);
    m->first[s->from][r] = q->next;
    store(m, r, s, q->data);
    free(q);
    m->received[r] = true;
    advance_when_done(m, r);
    return true;
}

/* One of the possible events on rank r. */
static bool act(struct machine *m, int r)
{
    if (do_local(m, r)) return true;
    if (m->c->mode == VIRTUAL_RENDEZVOUS) return send_rendezvous(m, r);
    return machine_draw(m, 2) ? send_eager(m, r) || receive_eager(m, r) : receive_eager(m, r) || send_eager(m, r);
}

/* The first rank, from a random one on, that can make progress does so; sometimes it makes several steps. */
static bool round_of_acts(struct machine *m)
{
    int n = m->c->n, start = (int)machine_draw(m, (unsigned)n);

    for (int i = 0; i < n; i++) {
        int r = (start + i) % n;

        if (!act(m, r)) continue;
        while (machine_draw(m, 3) && act(m, r)) {}
        return true;
    }
    return false;
}

static void check_end(const struct machine *m)
{
    for (int r = 0; r < m->c->n; r++) {
        const struct step *s = current(m, r);

        WANT(!s, "%s of %s, %d ranks: rank %d is stuck in step %d (to %d, from %d)", m->c->algorithm->name,
             ls_collective_name(m->c->algorithm->op), m->c->n, r, m->step[r], s->to, s->from);
        for (int to = 0; to < m->c->n; to++)
            WANT(!m->first[r][to], "a message of %d to %d was never received", r, to);
    }
}

/* ---- a case ---- */

static double *room(size_t count)
{
    double *p = malloc((count + 1) * sizeof *p);

    assert_non_null(p);
    for (size_t i = 0; i < count; i++) p[i] = -1e300; /* marks elements that are never written */
    return p;
}

static void make_buffers(const struct virtual_case *c, int r, struct virtual_run *v)
{
    size_t all = c->at[r][c->n], own = c->at[r][r + 1] - c->at[r][r], at = c->at[r][r];
    ls_collective op = c->algorithm->op;
    bool small_send = op == LS_COLLECTIVE_ALL_GATHER, small_recv = op == LS_COLLECTIVE_REDUCE_SCATTER;

    v->sends[r] = small_send ? own : all;
    v->recvs[r] = small_recv ? own : op == LS_COLLECTIVE_ALL_TO_ALL ? c->recv_at[r][c->n] : all;
    v->memory[r] = room(c->in_place ? MAX(v->sends[r], v->recvs[r]) : v->sends[r] + v->recvs[r]);
    v->send[r] = v->memory[r] + (c->in_place && small_send ? at : 0);
    v->recv[r] = c->in_place ? v->memory[r] + (small_recv ? at : 0) : v->memory[r] + v->sends[r];
    v->scratch[r] = room(v->list[r].scratch);
    for (size_t i = 0; i < v->sends[r]; i++) v->send[r][i] = virtual_value(c->type, r, i);
    if (op == LS_COLLECTIVE_BROADCAST && r == c->root)
        for (size_t i = 0; i < all; i++) v->recv[r][i] = virtual_value(c->type, r, i);
}

void virtual_run(const struct virtual_case *c, struct virtual_run *out)
{
    struct machine m = { .c = c, .run = out, .seed = c->seed };

    *out = (struct virtual_run){ 0 };
    for (int r = 0; r < c->n; r++) {
        struct shape_of_call shape = { r, c->n, c->root, c->at[r], c->recv_at[r], c->chunk, c->in_place };

        assert_int_equal(c->algorithm->make(&shape, &out->list[r]), LS_OK);
        make_buffers(c, r, out);
    }
    while (round_of_acts(&m)) {}
    check_end(&m);
}

void virtual_free(struct virtual_run *v)
{
    for (int r = 0; r < VIRTUAL_RANKS; r++) {
        steps_free(&v->list[r]);
        free(v->memory[r]);
        free(v->scratch[r]);
    }
}
