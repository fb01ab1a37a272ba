/* comm_steps.c - simulates a list of steps: each element holds the set of ranks whose contributions it contains.
 *
 * In each round every rank does all that it can at once: a send happens if its receiver is ready for it. Copies within a rank are part of
 * the round before them.
 */
#include "cli/comm_steps.h"

#include <stdint.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/text.h"

struct player {
    struct step_list list;
    size_t *at, *recv_at; /* [n + 1] */
    uint64_t *held[3];    /* by enum place; bit r of an element: it contains rank r's contribution */
    size_t room[3];
    int step;
    bool sent, received;
    struct text messages, locals; /* text of this round: messages; local steps after them */
};

struct play {
    const struct algorithm *algorithm;
    int n, root, shown;
    size_t count;
    struct player *player; /* [n] */
};

/* ---- text ---- */

/* True if the buffer is a single block: send of all_gather, recv of reduce_scatter. */
static bool is_small(const struct play *p, enum place in)
{
    return in == (p->algorithm->op == LS_COLLECTIVE_ALL_GATHER ? IN_SEND : IN_RECV) &&
           (p->algorithm->op == LS_COLLECTIVE_ALL_GATHER || p->algorithm->op == LS_COLLECTIVE_REDUCE_SCATTER);
}

/* Describes a span as blocks of the large buffer if it consists of complete blocks. */
static void put_span(const struct play *p, int r, struct span s, struct text *out)
{
    const struct player *me = &p->player[r];
    const size_t *at = s.in == IN_RECV && me->recv_at ? me->recv_at : me->at;
    int first = 0, end;

    while (first < p->n && (at[first] < s.at || at[first + 1] == at[first])) first++;
    for (end = first; end < p->n && at[end] < s.at + s.len;) end++;
    if (s.in != IN_SCRATCH && s.len == me->room[s.in])
        text_put(out, is_small(p, s.in) ? "its block" : "everything");
    else if (s.in == IN_SCRATCH)
        text_put(out, "scratch [%zu, %zu)", s.at, s.at + s.len);
    else if (is_small(p, s.in))
        text_put(out, "[%zu, %zu) of its block", s.at, s.at + s.len);
    else if (first == p->n || at[first] != s.at || at[end] != s.at + s.len)
        text_put(out, "[%zu, %zu)", s.at, s.at + s.len);
    else if (end - first == 1)
        text_put(out, "block %d", first);
    else
        text_put(out, "blocks %d-%d", first, end - 1);
}

/* Describes the contributions in a block: "0+2", "all", "." for nothing, "~" if its elements differ. */
static void put_set(const struct play *p, const uint64_t *held, size_t len, struct text *out)
{
    uint64_t all = p->n == 64 ? UINT64_MAX : ((uint64_t)1 << p->n) - 1;
    const char *plus = "";

    for (size_t i = 1; i < len; i++)
        if (held[i] != held[0]) {
            text_put(out, "~");
            return;
        }
    if (len == 0) return;
    if (held[0] == all && p->n > 2)
        text_put(out, "all");
    else if (held[0] == 0)
        text_put(out, ".");
    else
        for (int r = 0; r < p->n; r++)
            if (held[0] >> r & 1) {
                text_put(out, "%s%d", plus, r);
                plus = "+";
            }
}

/* Describes the current recv buffer, block by block. */
static void put_picture(const struct play *p, int r, struct text *out)
{
    const struct player *me = &p->player[r];
    const uint64_t *held = me->held[IN_RECV];
    const size_t *at = me->recv_at ? me->recv_at : me->at;

    if (p->algorithm->op == LS_COLLECTIVE_BARRIER) return;
    text_put(out, "[");
    if (is_small(p, IN_RECV))
        put_set(p, held, me->room[IN_RECV], out);
    else
        for (int i = 0; i < p->n; i++) {
            if (i) text_put(out, " | ");
            put_set(p, held + at[i], at[i + 1] - at[i], out);
        }
    text_put(out, "]");
}

/* ---- simulation ---- */

static uint64_t *place(const struct player *me, struct span s)
{
    ASSERT(s.at + s.len <= me->room[s.in]);
    return me->held[s.in] + s.at;
}

static const struct step *current(const struct player *me) { return me->step < me->list.n ? &me->list.step[me->step] : NULL; }

static void comm_steps_store(const struct player *me, const struct step *s, const uint64_t *came)
{
    uint64_t *in = place(me, s->in);
    bool add = s->kind == STEP_REDUCE || s->kind == STEP_LOCAL_REDUCE;

    for (size_t i = 0; i < s->in.len; i++) in[i] = add ? in[i] | came[i] : came[i];
}

static const char *place_name(enum place in) { return in == IN_SEND ? " of send" : in == IN_RECV ? " of recv" : ""; }

/* Runs the local steps up to the next message. Consecutive sums are reported as one. */
static void do_locals(struct play *p, int r)
{
    struct player *me = &p->player[r];
    struct text *out = &me->locals;
    int sums = 0;

    for (const struct step *s; (s = current(me)) && s->to < 0 && s->from < 0; me->step++) {
        comm_steps_store(me, s, place(me, s->out));
        if (s->kind == STEP_LOCAL_REDUCE) {
            sums++;
            continue;
        }
        if (sums) text_put(out, ", adds %d parts of scratch to it", sums);
        sums = 0;
        text_put(out, "%scopies ", out->bytes ? ", " : "");
        put_span(p, r, s->out, out);
        text_put(out, "%s to ", place_name(s->out.in));
        put_span(p, r, s->in, out);
        text_put(out, "%s", place_name(s->in.in));
    }
}

static void put_send(struct play *p, int r, const struct step *s)
{
    struct text *out = &p->player[r].messages;

    text_put(out, "%s-> %d: ", out->bytes ? "; " : "", s->to);
    put_span(p, r, s->out, out);
}

static void put_receive(struct play *p, int r, const struct step *s)
{
    struct text *out = &p->player[r].messages;

    text_put(out, "%s<- %d: ", out->bytes ? "; " : "", s->from);
    put_span(p, r, s->in, out);
    if (s->kind == STEP_REDUCE) text_put(out, ", added");
}

/* The rank whose step in this round receives r's send, or -1. */
static int receiver(const struct play *p, int r)
{
    const struct player *me = &p->player[r];
    const struct step *s = current(me);

    if (!s || s->to < 0 || me->sent) return -1;
    const struct step *other = current(&p->player[s->to]);
    return other && other->from == r && !p->player[s->to].received ? s->to : -1;
}

/* Reads all data that are sent in this round before it stores any, because all messages of a round happen at the same time. */
static ls_status do_round(struct play *p, bool *any)
{
    uint64_t *came[STEPS_RANKS_MOST] = { 0 };
    int to[STEPS_RANKS_MOST];
    ls_status st = LS_OK;

    *any = false;
    for (int r = 0; r < p->n && st == LS_OK; r++) {
        const struct step *s = current(&p->player[r]);

        if ((to[r] = receiver(p, r)) < 0) continue;
        came[r] = mem_array(MEM_OTHER, s->out.len, sizeof *came[r]);
        if (!came[r]) st = LS_ENOMEM;
        for (size_t i = 0; st == LS_OK && i < s->out.len; i++) came[r][i] = place(&p->player[r], s->out)[i];
    }
    for (int r = 0; r < p->n && st == LS_OK; r++) {
        if (to[r] < 0) continue;
        struct player *other = &p->player[to[r]];
        put_send(p, r, current(&p->player[r]));
        comm_steps_store(other, current(other), came[r]);
        p->player[r].sent = other->received = *any = true;
    }
    for (int r = 0; r < p->n; r++) mem_free(came[r]);
    return st;
}

static void end_round(struct play *p)
{
    for (int r = 0; r < p->n; r++) {
        struct player *me = &p->player[r];
        const struct step *s = current(me);

        if (!s) continue;
        if (s->from >= 0 && me->received) put_receive(p, r, s);
        if ((s->to >= 0 && !me->sent) || (s->from >= 0 && !me->received)) continue;
        me->sent = me->received = false;
        me->step++;
    }
    for (int r = 0; r < p->n; r++) do_locals(p, r);
}

/* ---- the page ---- */

static ls_status comm_steps_put_rank(const struct play *p, int r, int width)
{
    const struct player *me = &p->player[r];
    struct text picture = { 0 };

    put_picture(p, r, &picture);
    ls_status st = text_status(&picture);
    if (st == LS_OK) st = text_status(&me->messages);
    if (st == LS_OK) st = text_status(&me->locals);
    if (st == LS_OK) {
        const struct text *first = me->messages.bytes ? &me->messages : &me->locals;

        printf("  rank %-3d %-*s  %s\n", r, width, first->bytes ? first->data : "", picture.data ? picture.data : "");
        if (first == &me->messages && me->locals.bytes) printf("           then %s\n", me->locals.data);
    }
    text_free(&picture);
    return st;
}

static ls_status put_round(struct play *p, const char *title)
{
    ls_status st = LS_OK;
    int width = 0;

    puts(title);
    for (int r = 0; r < p->n; r++) {
        const struct player *me = &p->player[r];

        width = MAX(width, (int)(me->messages.bytes ? me->messages.bytes : me->locals.bytes));
    }
    for (int r = 0; r < p->n; r++) {
        if (st == LS_OK && (p->shown < 0 || p->shown == r)) st = comm_steps_put_rank(p, r, width);
        text_free(&p->player[r].messages);
        text_free(&p->player[r].locals);
    }
    return st;
}

static ls_status comm_steps_play(struct play *p)
{
    char title[32];
    bool any = true;

    for (int r = 0; r < p->n; r++) do_locals(p, r);
    LS_TRY(put_round(p, "start"));
    for (int round = 1;; round++) {
        LS_TRY(do_round(p, &any));
        if (!any) break;
        end_round(p);
        snprintf(title, sizeof title, "round %d", round);
        LS_TRY(put_round(p, title));
    }
    for (int r = 0; r < p->n; r++) ASSERT(!current(&p->player[r])); /* else the list is wrong */
    return LS_OK;
}

static void comm_steps_put_head(const struct play *p)
{
    size_t least = SIZE_MAX, most = 0;

    for (int r = 0; r < p->n; r++) {
        size_t sent = steps_sent(&p->player[r].list);

        least = MIN(least, sent);
        most = MAX(most, sent);
    }
    printf("%s by %s: %s\n", ls_collective_name(p->algorithm->op), p->algorithm->name, p->algorithm->about);
    printf("%d ranks, D = %zu elements in %d blocks; a rank sends %zu", p->n, p->count, p->n, least);
    if (most != least) printf(" to %zu", most);
    printf(" elements\n");
    if (p->algorithm->op != LS_COLLECTIVE_BARRIER)
        puts("each line ends with the rank's recv buffer after the round, block by block; 1+2: the sum of the data of ranks 1 and 2,\n"
             "all: of all ranks, '.': not written yet, '~': the elements of the block differ");
    puts("");
}

/* ---- buffers ---- */

static ls_status make_borders(const struct play *p, int r, struct player *out)
{
    bool exchange = p->algorithm->op == LS_COLLECTIVE_ALL_TO_ALL;
    size_t mine = block_at(p->count, r + 1, p->n) - block_at(p->count, r, p->n);

    out->at = mem_array(MEM_OTHER, (size_t)p->n + 1, sizeof *out->at);
    if (exchange) out->recv_at = mem_array(MEM_OTHER, (size_t)p->n + 1, sizeof *out->at);
    if (!out->at || (exchange && !out->recv_at)) return LS_ENOMEM;
    for (int i = 0; i <= p->n; i++) {
        out->at[i] = block_at(p->count, i, p->n);
        if (exchange) out->recv_at[i] = (size_t)i * mine;
    }
    return LS_OK;
}

static ls_status make_player(const struct play *p, int r, struct player *out)
{
    ls_collective op = p->algorithm->op;

    LS_TRY(make_borders(p, r, out));
    struct shape_of_call c = { .rank = r, .n = p->n, .root = p->root, .at = out->at, .recv_at = out->recv_at };
    size_t own = out->at[r + 1] - out->at[r];
    LS_TRY(p->algorithm->make(&c, &out->list));
    out->room[IN_SEND] = op == LS_COLLECTIVE_ALL_GATHER ? own : p->count;
    out->room[IN_RECV] = op == LS_COLLECTIVE_REDUCE_SCATTER ? own : out->recv_at ? out->recv_at[p->n] : p->count;
    out->room[IN_SCRATCH] = out->list.scratch;
    for (int i = 0; i < 3; i++)
        if (!(out->held[i] = mem_array(MEM_OTHER, out->room[i], sizeof **out->held))) return LS_ENOMEM;
    for (size_t i = 0; i < out->room[IN_SEND]; i++) out->held[IN_SEND][i] = (uint64_t)1 << r;
    for (size_t i = 0; op == LS_COLLECTIVE_BROADCAST && r == p->root && i < p->count; i++) out->held[IN_RECV][i] = (uint64_t)1 << r;
    return LS_OK;
}

static void free_player(struct player *me)
{
    for (int i = 0; i < 3; i++) mem_free(me->held[i]);
    mem_free(me->at);
    mem_free(me->recv_at);
    text_free(&me->messages);
    text_free(&me->locals);
    steps_free(&me->list);
}

ls_status comm_steps_print(const struct algorithm *a, int n, size_t count, int root, int rank)
{
    struct play p = { a, n, root, rank, count, NULL };
    ls_status st = LS_OK;

    p.player = mem_array(MEM_OTHER, (size_t)n, sizeof *p.player);
    if (!p.player) return LS_ENOMEM;
    for (int r = 0; r < n && st == LS_OK; r++) st = make_player(&p, r, &p.player[r]);
    if (st == LS_OK) {
        comm_steps_put_head(&p);
        st = comm_steps_play(&p);
    }
    for (int r = 0; r < n; r++) free_player(&p.player[r]);
    mem_free(p.player);
    return st;
}
