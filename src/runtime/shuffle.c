/* shuffle.c - tokens' rows to the ranks that have their experts, and back: all-to-alls whose counts are known at run time.
 *
 *   SHUFFLE_COUNTS  counts[1,E] of the own tokens -> there[n,e]: what each rank sends to this rank's e experts
 *   SHUFFLE         rows[M,C] by expert, counts, there -> rows[M',C] by rank, then by expert; back: the other way
 *
 * Rank r of the comm's n has experts [E*r/n, E*(r+1)/n). Sizes are static: M' is as many rows as all ranks can send to one, or `factor`
 * times those of an even load; a run into which more arrive fails before their exchange, because rows are never dropped here. Rows that
 * are not in use are zeros. The gradient of one way is the other. The counts are exchanged at once, because the host needs them to begin
 * the exchange of rows; that is lowered to a start and a wait, which overlap with what does not depend on them (overlap.c): a shared
 * expert, weight gradients.
 */
#include "passes/gradient.h"

#include <math.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "device/device.h"
#include "runtime/store.h"

static int ranks_of(const struct shuffle *s) { return s->comm ? ls_comm_size(s->comm) : 1; }

static size_t experts_of(const struct shuffle *s, size_t experts)
{
    int r = s->comm ? ls_comm_rank(s->comm) : 0, n = ranks_of(s);

    return shard_begin(experts, 1, r + 1, n) - shard_begin(experts, 1, r, n);
}

/* ---- building ---- */

static ls_value emit(ls_program *p, int op, const struct shuffle *s, int nin, const ls_value *in, ls_value out)
{
    struct instruction *i;
    struct cursor before;

    if (!program_ok(p) || !out.id) return LS_NONE;
    before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    i = program_append(p, op, NULL, nin, in, 1, &out);
    program_cursor_end(p, before);
    if (!i) return LS_NONE;
    instruction_set_shuffle(i, s);
    return out;
}

ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts)
{
    struct shuffle s = { comm, false, 0, false, 0 };
    size_t size[2];

    if (!program_ok(p) || !counts.id) return LS_NONE;
    size[0] = (size_t)ranks_of(&s);
    size[1] = experts_of(&s, program_value(p, counts)->size[1]);
    return emit(p, OP_SHUFFLE_COUNTS, &s, 1, &counts, program_new_value(p, "shuffle_counts", LS_I32, 2, size));
}

ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out)
{
    return emit(p, OP_SHUFFLE, s, 3, (ls_value[]){ rows, counts, there }, out);
}

void program_shuffle_lower(ls_program *p, const struct instruction *i)
{
    const struct shuffle *s = instruction_shuffle(i);
    struct exchange e = { .op = LS_COLLECTIVE_ALL_TO_ALL, .comm = s->comm, .axis = LS_AXIS_EP, .floating = s->floating, .rows = *s };
    struct cursor before = program_cursor_phase(p, LS_PHASE_COMMUNICATE);
    struct instruction *start;

    e.total = s->expected * program_value(p, i->in[0])->size[1];
    e.slot = p->slots++;
    start = program_append(p, OP_COMM_START, NULL, i->nin, i->in, 1, i->out);
    if (start) instruction_set_exchange(start, &e);
    program_cursor_end(p, before);
    program_exchange_wait(p, &e, i->in[0], i->out[0]);
}

void gradient_shuffle(struct gradient *g, const struct instruction *i, ls_value dy)
{
    struct value v = *program_value(g->p, i->in[0]);
    struct shuffle s = *instruction_shuffle(i);

    s.back = !s.back;
    if (gradient_needs(g, i->in[0]))
        gradient_give(g, i->in[0],
                      program_shuffle(g->p, &s, dy, i->in[1], i->in[2], program_new_value(g->p, "shuffle_grad", v.dtype, v.ndim, v.size)));
}

size_t shuffle_bytes(const ls_program *p, const struct instruction *i)
{
    const struct value *v = &p->values[i->out[0].id];
    size_t n = (size_t)ranks_of(instruction_rows(i));

    return instruction_rows(i)->expected * (n - 1) / n * v->size[1] * ls_dtype_bytes(v->dtype);
}

/* ---- running ---- */

/* What the host knows of a shuffle's counts. sizes[2 * ranks]: of the call being made. counts[E], there[n * e]: copies, one of each per
 * slot, as SHUFFLE_COUNTS left them; NULL where the host can read the values themselves. */
struct shuffle_host {
    size_t *sizes;
    int32_t *counts, *there;
    size_t experts, received;         /* E, n * e */
    struct device_event **copied;     /* [slots] */
    const struct instruction *source; /* for rows: the SHUFFLE_COUNTS that made their counts */
};

static const struct instruction *find_counts(const ls_program *p, const struct instruction *i)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (op_run_kind(p->list[s].at[n].op) == RUN_SHUFFLE_COUNTS && p->list[s].at[n].out[0].id == i->in[2].id)
                return &p->list[s].at[n];
    return NULL;
}

static ls_status bind_counts(const ls_program *p, const struct instruction *i, struct shuffle_host *h)
{
    const struct device *d = store_device(p->store);
    size_t slots = (size_t)program_slots(p);

    h->experts = view_count(&i->call->in[0]);
    h->received = view_count(&i->call->out[0]);
    h->counts = mem_array(MEM_OTHER, slots * (h->experts + h->received), sizeof *h->counts);
    h->copied = mem_array(MEM_OTHER, slots, sizeof(struct device_event *));
    if (!h->counts || !h->copied) return LS_ENOMEM;
    h->there = h->counts + slots * h->experts;
    for (size_t k = 0; k < slots; k++) LS_TRY(d->event_new(&h->copied[k]));
    return LS_OK;
}

ls_status shuffle_bind(ls_program *p, struct instruction *i)
{
    struct shuffle_host *h;

    if (!instruction_rows(i)) return LS_OK;
    h = i->host = mem_zalloc(MEM_OTHER, sizeof *h);
    if (!h) return LS_ENOMEM;
    h->sizes = mem_array(MEM_OTHER, 2 * (size_t)ranks_of(instruction_rows(i)), sizeof *h->sizes);
    if (!h->sizes) return LS_ENOMEM;
    if (store_device(p->store)->host_visible) return LS_OK;
    if (op_run_kind(i->op) == RUN_SHUFFLE_COUNTS) return bind_counts(p, i, h);
    h->source = find_counts(p, i);
    return h->source ? LS_OK : ls_fail(LS_EINVAL, "shuffle: no instruction of this program makes its counts, %%%d", i->in[2].id);
}

void shuffle_unbind(const ls_program *p, struct instruction *i)
{
    struct shuffle_host *h = i->host;

    if (!h) return;
    for (int k = 0; h->copied && k < program_slots(p); k++) store_device(p->store)->event_free(h->copied[k]);
    mem_free(h->copied);
    mem_free(h->counts);
    mem_free(h->sizes);
    mem_free(h);
    i->host = NULL;
}

static size_t sum(const int32_t *x, size_t begin, size_t end)
{
    size_t n = 0;

    for (size_t i = begin; i < end; i++) n += (size_t)x[i];
    return n;
}

/* work NULL: returns when it has ended, on a device without streams. */
static ls_status exchange(const ls_program *p, const struct instruction *i, const size_t *send, const size_t *recv, ls_work **work)
{
    const struct device *d = store_device(p->store);
    ls_comm *comm = instruction_rows(i)->comm;
    const struct view *in = &i->call->in[0], *out = &i->call->out[0];
    struct call_args call = { .op = LS_COLLECTIVE_ALL_TO_ALL,
                              .send = in->data,
                              .recv = out->data,
                              .v = true,
                              .counts = send,
                              .recv_counts = recv,
                              .type = in->dtype };

    if (!comm) return d->copy(i->call->stream, out->data, in->data, send[0] * ls_dtype_bytes(in->dtype));
    return d->immediate ? operation_run(comm, &call, work) : comm_enqueue(comm, d, i->call->stream, &call);
}

/* Enqueues the copy of the counts to the host, where the rows' shuffles wait for them. */
static ls_status copy_counts(const ls_program *p, const struct instruction *i)
{
    const struct device *d = store_device(p->store);
    struct shuffle_host *h = i->host;
    size_t slot = (size_t)p->run.slot;

    if (!h->counts) return LS_OK;
    LS_TRY(d->copy_out(i->call->stream, h->counts + slot * h->experts, i->call->in[0].data, h->experts * sizeof *h->counts));
    LS_TRY(d->copy_out(i->call->stream, h->there + slot * h->received, i->call->out[0].data, h->received * sizeof *h->there));
    return d->event_record(h->copied[slot], i->call->stream);
}

ls_status shuffle_run_counts(const ls_program *p, const struct instruction *i)
{
    size_t E = i->call->in[0].size[1], own = i->call->out[0].size[1], *send = i->host->sizes;
    int n = ranks_of(instruction_rows(i));

    for (int r = 0; r < n; r++) {
        send[r] = shard_begin(E, 1, r + 1, n) - shard_begin(E, 1, r, n);
        send[n + r] = own;
    }
    LS_TRY(exchange(p, i, send, send + n, NULL));
    return copy_counts(p, i);
}

/* Where the host reads them. */
static ls_status find_host_counts(const ls_program *p, const struct instruction *i, const int32_t **counts, const int32_t **there)
{
    const struct shuffle_host *h = i->host->source ? i->host->source->host : NULL;
    size_t slot = (size_t)p->run.slot;

    *counts = h ? h->counts + slot * h->experts : i->call->in[1].data;
    *there = h ? h->there + slot * h->received : i->call->in[2].data;
    return h ? store_device(p->store)->event_sync(h->copied[slot]) : LS_OK;
}

/* The message names the factor with which all rows would have had room, rounded up to hundredths. */
static ls_status fail_room(const ls_program *p, const struct instruction *i, size_t arrive)
{
    const struct shuffle *s = instruction_rows(i);
    size_t room = i->call->out[0].size[0];

    ASSERT(s->factor > 0);
    return ls_fail(
        LS_ENOMEM,
        "%s: %zu rows of tokens arrive for this rank's experts, but parallel.receive_factor=%g has room for %zu; use %.2f or more, "
        "or 0 for as many rows as can arrive",
        i->block ? p->blocks[i->block] : "experts", arrive, s->factor, room,
        ceil(100 * s->factor * (double)arrive / (double)MAX(room, 1)) / 100);
}

ls_status shuffle_run_rows(const ls_program *p, const struct instruction *i, ls_work **work)
{
    const struct shuffle *s = instruction_rows(i);
    const struct view *out = &i->call->out[0];
    const int32_t *counts, *there;
    size_t E = i->call->in[1].size[1], own = i->call->in[2].size[1], C = view_last(out), used = 0, *here = i->host->sizes,
           bytes = ls_dtype_bytes(out->dtype);
    size_t *arrives = here + ranks_of(s);
    int n = ranks_of(s);

    LS_TRY(find_host_counts(p, i, &counts, &there));
    for (int r = 0; r < n; r++) {
        here[r] = sum(counts, shard_begin(E, 1, r, n), shard_begin(E, 1, r + 1, n)) * C;
        arrives[r] = sum(there, (size_t)r * own, (size_t)(r + 1) * own) * C;
        used += s->back ? here[r] : arrives[r];
    }
    if (used > view_count(out)) return fail_room(p, i, used / MAX(C, 1));
    LS_TRY(exchange(p, i, s->back ? arrives : here, s->back ? here : arrives, work));
    return store_device(p->store)->fill(i->call->stream, (char *)out->data + used * bytes, 0, (view_count(out) - used) * bytes);
}
