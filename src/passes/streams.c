/* streams.c - the streams pass: see streams.h. */
#include "passes/streams.h"

#include <string.h>
#include "base/mem.h"
#include "runtime/store.h"

/* ---- which waits are needed ---- */

/* clock[s][t]: 1 + the last step of stream t that is over before what comes next on stream s begins; end[i]: the clock of i's stream after
 * i. One of each per variant. */
struct clocks {
    const struct stream_access *access;
    struct stream_step *step;
    int streams, n;
    int *clock[STREAM_VARIANTS], *end[STREAM_VARIANTS], *last[STREAM_VARIANTS], *before[STREAM_VARIANTS];
    int *wait, waits, room;
};

static bool steps_conflict(const struct clocks *c, int i, int j)
{
    for (int a = 0; a < c->step[i].accesses; a++)
        for (int b = 0; b < c->step[j].accesses; b++) {
            const struct stream_access *x = &c->access[c->step[i].first_access + a], *y = &c->access[c->step[j].first_access + b];

            if ((x->write || y->write) && x->space == y->space && x->begin < y->end && y->begin < x->end) return true;
        }
    return false;
}

static ls_status clocks_new(struct clocks *c)
{
    size_t s = (size_t)c->streams, n = (size_t)c->n;

    for (int v = 0; v < STREAM_VARIANTS; v++) {
        c->clock[v] = mem_array(MEM_OTHER, s * s, sizeof(int));
        c->end[v] = mem_array(MEM_OTHER, s * n, sizeof(int));
        c->last[v] = mem_array(MEM_OTHER, s, sizeof(int));
        c->before[v] = mem_array(MEM_OTHER, n, sizeof(int));
        if (!c->clock[v] || !c->end[v] || !c->last[v] || !c->before[v]) return LS_ENOMEM;
        for (int t = 0; t < c->streams; t++) c->last[v][t] = -1;
    }
    return LS_OK;
}

static void clocks_free(struct clocks *c)
{
    for (int v = 0; v < STREAM_VARIANTS; v++) {
        mem_free(c->clock[v]);
        mem_free(c->end[v]);
        mem_free(c->last[v]);
        mem_free(c->before[v]);
    }
}

/* Stream s waits for the end of step j. */
static void clocks_wait(struct clocks *c, int v, int s, int j)
{
    int *mine = c->clock[v] + (size_t)s * (size_t)c->streams;
    const int *its = c->end[v] + (size_t)j * (size_t)c->streams;

    for (int t = 0; t < c->streams; t++) mine[t] = MAX(mine[t], its[t]);
}

/* The last step of any other stream that i conflicts with and is not known to be over; -1: none. Whatever it waited for is earlier, so no
 * other step makes a wait for it needless. */
static int latest_conflict(const struct clocks *c, int v, int i)
{
    int s = c->step[i].stream, found = -1;
    const int *mine = c->clock[v] + (size_t)s * (size_t)c->streams;

    for (int t = 0; t < c->streams; t++)
        for (int j = t == s ? -1 : c->last[v][t]; j >= mine[t] && j > found; j = c->before[v][j])
            if (steps_conflict(c, i, j)) found = j;
    return found;
}

static ls_status add_wait(struct clocks *c, int i, int j)
{
    if (c->waits == c->room) {
        int room = c->room ? 2 * c->room : 64, *grown = mem_resize(c->wait, (size_t)room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        c->wait = grown;
        c->room = room;
    }
    c->wait[c->waits++] = j;
    c->step[i].waits++;
    return LS_OK;
}

static ls_status step_variant(struct clocks *c, int v, int i)
{
    struct stream_step *x = &c->step[i];
    int *mine = c->clock[v] + (size_t)x->stream * (size_t)c->streams;

    for (int k = 0; k < x->waits; k++) /* those of the other variant */
        if (c->step[c->wait[x->first_wait + k]].variants >> v & 1) clocks_wait(c, v, x->stream, c->wait[x->first_wait + k]);
    for (int j = latest_conflict(c, v, i); j >= 0; j = latest_conflict(c, v, i)) {
        LS_TRY(add_wait(c, i, j));
        clocks_wait(c, v, x->stream, j);
    }
    mine[x->stream] = i + 1;
    memcpy(c->end[v] + (size_t)i * (size_t)c->streams, mine, (size_t)c->streams * sizeof *mine);
    c->before[v][i] = c->last[v][x->stream];
    c->last[v][x->stream] = i;
    return LS_OK;
}

ls_status stream_waits(const struct stream_access *access, struct stream_step *step, int n, int streams, int **wait)
{
    struct clocks c = { .access = access, .step = step, .streams = streams, .n = n };
    ls_status st = clocks_new(&c);

    for (int i = 0; i < n && st == LS_OK; i++) {
        step[i].first_wait = c.waits;
        step[i].waits = 0;
        for (int v = 0; v < STREAM_VARIANTS && st == LS_OK; v++)
            if (step[i].stream >= 0 && step[i].variants >> v & 1) st = step_variant(&c, v, i);
    }
    clocks_free(&c);
    if (st < 0) {
        mem_free(c.wait);
        c.wait = NULL;
    }
    *wait = c.wait;
    return st;
}

/* ---- what a program's instructions touch ---- */

/* Spaces: the arenas, then one for all bound tensors (by their addresses), then what the store holds. */
enum { SPACE_BOUND = ARENAS, SPACE_STORE };
struct space {
    int unit, param;
    ls_role role;
    const char *state;
};

struct touched {
    ls_program *p;
    struct stream_access *access;
    struct stream_step *step;
    int n, accesses, room;
    struct space *space;
    int spaces, space_room;
};

static ls_status space_find(struct touched *t, struct space x, int *out)
{
    for (int k = 0; k < t->spaces; k++) {
        const struct space *y = &t->space[k];

        if (x.unit == y->unit && x.param == y->param && x.role == y->role && (!x.state || strcmp(x.state, y->state) == 0)) {
            *out = SPACE_STORE + k;
            return LS_OK;
        }
    }
    if (t->spaces == t->space_room) {
        int room = t->space_room ? 2 * t->space_room : 64;
        struct space *grown = mem_resize(t->space, (size_t)room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        t->space = grown;
        t->space_room = room;
    }
    t->space[t->spaces] = x;
    *out = SPACE_STORE + t->spaces++;
    return LS_OK;
}

/* The space that root's bytes are in, and where they begin. A parameter of a unit is a stretch of the unit's buffer. */
static ls_status place_root(struct touched *t, const struct value *root, int *space, size_t *at)
{
    static const enum store_kind kinds[] = {
        [LS_ROLE_PARAMETER] = STORE_VALUE, [LS_ROLE_GRADIENT] = STORE_GRAD, [LS_ROLE_OPTIMIZER] = STORE_STATE
    };
    struct space x = { root->unit, -1, root->role, root->role == LS_ROLE_OPTIMIZER ? root->state : NULL };

    *at = 0;
    if (root->role == LS_ROLE_BOUND) {
        *space = SPACE_BOUND;
        *at = (size_t)(uintptr_t)ls_tensor_data(root->tensor);
        return LS_OK;
    }
    if (root->unit < 0 && root->param < 0) {
        *space = (int)root->arena;
        *at = root->at;
        return LS_OK;
    }
    if (root->unit < 0) x.unit = store_unit_of(t->p->store, (size_t)root->param);
    if (x.unit < 0) {
        x.param = root->param;
    } else if (root->unit < 0) {
        const struct store_unit *g = store_unit_at(t->p->store, x.unit);
        size_t first = g->sharded >> kinds[root->role] & 1 ? g->begin : 0;
        int k = 0;

        while (g->params[k] != root->param) k++;
        *at = (g->at[k] - MIN(first, g->at[k])) * ls_dtype_bytes(root->dtype);
    }
    return space_find(t, x, space);
}

static ls_status add_access(struct touched *t, struct stream_access a)
{
    if (t->accesses == t->room) {
        int room = t->room ? 2 * t->room : 256;
        struct stream_access *grown = mem_resize(t->access, (size_t)room * sizeof *grown);

        if (!grown) return LS_ENOMEM;
        t->access = grown;
        t->room = room;
    }
    t->access[t->accesses++] = a;
    t->step[t->n].accesses++;
    return LS_OK;
}

static ls_status touch_value(struct touched *t, ls_value x, int stream, bool write)
{
    const struct value *v = &t->p->values[x.id];
    struct value *root = &t->p->values[v->root];
    struct view view = value_view(v, NULL);
    ptrdiff_t low, high, esize = (ptrdiff_t)ls_dtype_bytes(v->dtype);
    int space;
    size_t at;

    if (!x.id || !view_reach(&view, &low, &high)) return LS_OK;
    root->streams |= (uint64_t)1 << MIN(stream, 63);
    LS_TRY(place_root(t, root, &space, &at));
    at += (size_t)((v->offset + low) * esize);
    return add_access(t, (struct stream_access){ space, at, at + (size_t)((high - low + 1) * esize), write });
}

static ls_status stream_find(ls_program *p, const ls_comm *comm, int lane, int *out)
{
    struct program_stream *grown;

    for (int k = 0; k < p->results.nstreams; k++)
        if (p->results.stream[k].comm == comm && p->results.stream[k].lane == lane) {
            *out = k;
            return LS_OK;
        }
    grown = mem_resize(p->results.stream, ((size_t)p->results.nstreams + 1) * sizeof *grown);
    if (!grown) return LS_ENOMEM;
    p->results.stream = grown;
    p->results.stream[p->results.nstreams] = (struct program_stream){ comm, lane, -1 };
    *out = p->results.nstreams++;
    return LS_OK;
}

static ls_status choose_stream(ls_program *p, const struct instruction *i, int *out)
{
    const struct exchange *e;
    struct stream_key key;

    switch (op_run_kind(i->op)) {
    case RUN_NOTHING: *out = -1; return LS_OK;
    case RUN_WAIT: *out = instruction_is_carried(i) ? STREAM_COMPUTE : -1; return LS_OK;
    case RUN_OFFLOAD_WAIT: *out = -1; return LS_OK; /* what touches the bytes waits */
    case RUN_LOAD:
    case RUN_SAVE: *out = STREAM_COPY; return LS_OK;
    case RUN_START:
        e = instruction_exchange(i);
        key = stream_key_of(e->comm, e->op, e->root);
        return stream_find(p, key.comm, key.lane, out);
    case RUN_SHUFFLE_COUNTS:
    case RUN_SHUFFLE:
        if (instruction_shuffle(i)->comm) return stream_find(p, instruction_shuffle(i)->comm, 0, out);
        *out = STREAM_COMPUTE;
        return LS_OK;
    case RUN_KERNEL: *out = STREAM_COMPUTE; return LS_OK;
    case RUN_LOWERED: break;
    }
    ASSERT(!"a composite instruction after the lower pass");
    return LS_EINVAL;
}

static ls_status touch_instruction(struct touched *t, struct instruction *i)
{
    struct stream_step *s = &t->step[t->n];

    LS_TRY(choose_stream(t->p, i, &i->stream));
    *s = (struct stream_step){ .stream = i->stream, .first_access = t->accesses };
    for (int v = 0; v < STREAM_VARIANTS; v++) s->variants |= (unsigned)instruction_runs(i, v ? LS_LAST : 0) << v;
    for (int k = 0; k < i->nin && i->stream >= 0; k++) LS_TRY(touch_value(t, i->in[k], i->stream, false));
    for (int k = 0; k < i->nout && i->stream >= 0; k++) LS_TRY(touch_value(t, i->out[k], i->stream, true));
    if (i->scratch_bytes)
        LS_TRY(add_access(t, (struct stream_access){ ARENA_ACTIVATIONS, i->scratch_at, i->scratch_at + i->scratch_bytes, true }));
    t->n++;
    return LS_OK;
}

static ls_status touch_all(struct touched *t)
{
    int fixed;

    LS_TRY(stream_find(t->p, NULL, STREAM_COMPUTE, &fixed));
    LS_TRY(stream_find(t->p, NULL, STREAM_COPY, &fixed));
    for (int v = 1; v < t->p->nvalues; v++) t->p->values[v].streams = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < t->p->list[s].n; n++) LS_TRY(touch_instruction(t, &t->p->list[s].at[n]));
    return LS_OK;
}

static struct instruction *instruction_numbered(ls_program *p, int number)
{
    int s = 0;

    for (; number >= p->list[s].n; s++) number -= p->list[s].n;
    return &p->list[s].at[number];
}

static void keep_waits(ls_program *p, const struct stream_step *step)
{
    for (int s = 0, at = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, at++) {
            struct instruction *i = &p->list[s].at[n];

            i->first_wait = step[at].first_wait;
            i->waits = step[at].waits;
            for (int k = 0; k < i->waits; k++) instruction_numbered(p, p->results.wait[i->first_wait + k])->waited_for = true;
        }
}

void streams_clear(ls_program *p)
{
    mem_free(p->results.stream);
    mem_free(p->results.wait);
    p->results.stream = NULL;
    p->results.wait = NULL;
    p->results.nstreams = 0;
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++) {
            struct instruction *i = &p->list[s].at[n];

            i->stream = i->first_wait = i->waits = 0;
            i->waited_for = false;
        }
}

ls_status streams_pass(ls_program *p)
{
    struct touched t = { .p = p };
    int total = 0;

    streams_clear(p);
    if (store_device(p->store)->immediate) return LS_OK;
    for (int s = 0; s < SEGMENTS; s++) total += p->list[s].n;
    t.step = mem_array(MEM_OTHER, (size_t)total, sizeof *t.step);
    ls_status st = t.step ? touch_all(&t) : LS_ENOMEM;
    if (st == LS_OK) st = stream_waits(t.access, t.step, t.n, p->results.nstreams, &p->results.wait);
    if (st == LS_OK) keep_waits(p, t.step);
    mem_free(t.step);
    mem_free(t.access);
    mem_free(t.space);
    return st;
}
