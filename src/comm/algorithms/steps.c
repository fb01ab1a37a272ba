/* steps.c - lists of steps: appending, counting, and the short calls that algorithms use. */
#include "comm/algorithms/alg.h"

#include "base/base.h"
#include "base/mem.h"

static bool travels(const struct step *s) { return s->to >= 0 || s->from >= 0; }

static bool is_local(const struct step *s) { return s->kind == STEP_LOCAL || s->kind == STEP_LOCAL_REDUCE; }

static bool same(struct span a, struct span b) { return a.in == b.in && a.at == b.at && a.len == b.len; }

/* An empty span is not sent: the peer knows the sizes, too, and expects nothing. */
static bool tidy(struct step *s)
{
    if (is_local(s)) return s->in.len > 0 && !(s->kind == STEP_LOCAL && same(s->in, s->out));
    if (s->to < 0 || s->out.len == 0) s->to = -1, s->out = span_none();
    if (s->from < 0 || s->in.len == 0) s->from = -1, s->in = span_none(), s->kind = STEP_COPY, s->done = false;
    return travels(s);
}

ls_status steps_push(struct step_list *l, struct step s)
{
    if (!tidy(&s)) return LS_OK;
    ASSERT(!is_local(&s) || (s.to < 0 && s.from < 0 && s.in.len == s.out.len));
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 16;
        struct step *step = mem_resize(l->step, (size_t)room * sizeof *step);

        if (!step) return LS_ENOMEM;
        l->step = step;
        l->room = room;
    }
    l->step[l->n++] = s;
    return LS_OK;
}

void steps_free(struct step_list *l)
{
    mem_free(l->step);
    *l = (struct step_list){ 0 };
}

size_t steps_sent(const struct step_list *l)
{
    size_t sent = 0;

    for (int i = 0; i < l->n; i++) sent += l->step[i].to >= 0 ? l->step[i].out.len : 0;
    return sent;
}

ls_status steps_copy(struct step_list *l, int to, struct span out, int from, struct span in)
{
    return steps_push(l, (struct step){ to, from, out, in, STEP_COPY, false });
}

ls_status steps_reduce(struct step_list *l, int to, struct span out, int from, struct span in, bool done)
{
    return steps_push(l, (struct step){ to, from, out, in, STEP_REDUCE, done });
}

ls_status steps_local(struct step_list *l, struct span out, struct span in, bool done)
{
    return steps_push(l, (struct step){ -1, -1, out, in, STEP_LOCAL, done });
}

ls_status steps_local_reduce(struct step_list *l, struct span out, struct span in, bool done)
{
    return steps_push(l, (struct step){ -1, -1, out, in, STEP_LOCAL_REDUCE, done });
}

static size_t largest_block(const struct shape_of_call *c)
{
    size_t most = 0;

    for (int i = 0; i < c->n; i++) most = MAX(most, c->at[i + 1] - c->at[i]);
    return most;
}

size_t steps_chunk(const struct shape_of_call *c)
{
    size_t most = MAX(largest_block(c), (size_t)1);

    return c->chunk ? MIN(c->chunk, most) : most;
}

size_t steps_chunks(const struct shape_of_call *c)
{
    size_t chunk = steps_chunk(c);

    return MAX((largest_block(c) + chunk - 1) / chunk, (size_t)1);
}
