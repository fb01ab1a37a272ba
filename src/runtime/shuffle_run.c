/* shuffle_run.c - runs SHUFFLE_COUNTS and SHUFFLE (ir/shuffle.c): exchanges the rows of tokens with the ranks of their experts. */
#include "ir/program.h"

#include <math.h>
#include "base/mem.h"
#include "comm/comm.h"
#include "device/device.h"
#include "runtime/store.h"

/* The counts of an exchange on the host. sizes[2 * ranks]: what the current call sends to each rank and receives from it. counts[E],
 * there[n * e]: host copies of the operands of SHUFFLE_COUNTS, one of each per slot; NULL where the host can read the operands. */
struct shuffle_host {
    size_t *sizes;
    int32_t *counts, *there;
    size_t experts, received;         /* E, n * e */
    struct device_event **copied;     /* [slots] */
    const struct instruction *source; /* for a SHUFFLE: the SHUFFLE_COUNTS that computed its counts */
};

static const struct instruction *find_counts(const ls_program *p, const struct instruction *i)
{
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++)
            if (op_run_kind(p->list[s].at[n].op) == RUN_SHUFFLE_COUNTS && p->list[s].at[n].out[0].id == i->in[2].id)
                return &p->list[s].at[n];
    return NULL;
}

static ls_status bind_counts(const ls_program *p, const struct call *c, struct shuffle_host *h)
{
    const struct device *d = store_device(p->store);
    size_t slots = (size_t)program_slots(p);

    h->experts = view_count(&c->in[0]);
    h->received = view_count(&c->out[0]);
    h->counts = mem_array(MEM_OTHER, slots * (h->experts + h->received), sizeof *h->counts);
    h->copied = mem_array(MEM_OTHER, slots, sizeof(struct device_event *));
    if (!h->counts || !h->copied) return LS_ENOMEM;
    h->there = h->counts + slots * h->experts;
    for (size_t k = 0; k < slots; k++) LS_TRY(d->event_new(&h->copied[k]));
    return LS_OK;
}

ls_status shuffle_bind(ls_program *p, const struct instruction *i)
{
    struct instruction_run *r = instruction_run(p, i);
    struct shuffle_host *h;

    if (!instruction_rows(i)) return LS_OK;
    h = r->host = mem_zalloc(MEM_OTHER, sizeof *h);
    if (!h) return LS_ENOMEM;
    h->sizes = mem_array(MEM_OTHER, 2 * (size_t)shuffle_ranks(instruction_rows(i)), sizeof *h->sizes);
    if (!h->sizes) return LS_ENOMEM;
    if (store_device(p->store)->host_visible) return LS_OK;
    if (op_run_kind(i->op) == RUN_SHUFFLE_COUNTS) return bind_counts(p, r->call, h);
    h->source = find_counts(p, i);
    return h->source ? LS_OK : ls_fail(LS_EINVAL, "shuffle: no instruction of this program makes its counts, %%%d", i->in[2].id);
}

void shuffle_unbind(const ls_program *p, struct instruction_run *r)
{
    struct shuffle_host *h = r->host;

    if (!h) return;
    for (int k = 0; h->copied && k < program_slots(p); k++) store_device(p->store)->event_free(h->copied[k]);
    mem_free(h->copied);
    mem_free(h->counts);
    mem_free(h->sizes);
    mem_free(h);
    r->host = NULL;
}

static size_t sum(const int32_t *x, size_t begin, size_t end)
{
    size_t n = 0;

    for (size_t i = begin; i < end; i++) n += (size_t)x[i];
    return n;
}

/* work NULL: on a device without streams, returns when the exchange is complete. */
static ls_status shuffle_run_exchange(const ls_program *p, const struct instruction *i, const size_t *send, const size_t *recv,
                                      ls_work **work)
{
    const struct device *d = store_device(p->store);
    ls_comm *comm = instruction_rows(i)->comm;
    const struct call *c = instruction_bound(p, i);
    const struct view *in = &c->in[0], *out = &c->out[0];
    struct call_args call = { .op = LS_COLLECTIVE_ALL_TO_ALL,
                              .send = in->data,
                              .recv = out->data,
                              .v = true,
                              .counts = send,
                              .recv_counts = recv,
                              .type = in->dtype };

    if (!comm) return d->copy(c->stream, out->data, in->data, send[0] * ls_dtype_bytes(in->dtype));
    return d->immediate ? operation_run(comm, &call, work) : comm_enqueue(comm, d, c->stream, &call);
}

/* Starts copying the counts to the host. Each SHUFFLE that reads them waits for the copy. */
static ls_status copy_counts(const ls_program *p, const struct instruction *i)
{
    const struct device *d = store_device(p->store);
    const struct instruction_run *r = instruction_run(p, i);
    const struct shuffle_host *h = r->host;
    const struct call *c = r->call;
    size_t slot = (size_t)p->run.slot;

    if (!h->counts) return LS_OK;
    LS_TRY(d->copy_out(c->stream, h->counts + slot * h->experts, c->in[0].data, h->experts * sizeof *h->counts));
    LS_TRY(d->copy_out(c->stream, h->there + slot * h->received, c->out[0].data, h->received * sizeof *h->there));
    return d->event_record(h->copied[slot], c->stream);
}

ls_status shuffle_run_counts(const ls_program *p, const struct instruction *i)
{
    const struct instruction_run *kept = instruction_run(p, i);
    size_t E = kept->call->in[0].size[1], own = kept->call->out[0].size[1], *send = kept->host->sizes;
    int n = shuffle_ranks(instruction_rows(i));

    for (int r = 0; r < n; r++) {
        send[r] = shard_begin(E, 1, r + 1, n) - shard_begin(E, 1, r, n);
        send[n + r] = own;
    }
    LS_TRY(shuffle_run_exchange(p, i, send, send + n, NULL));
    return copy_counts(p, i);
}

/* Sets where the host reads the counts of a SHUFFLE, and waits until they are there. */
static ls_status find_host_counts(const ls_program *p, const struct instruction *i, const int32_t **counts, const int32_t **there)
{
    const struct instruction_run *r = instruction_run(p, i);
    const struct shuffle_host *h = r->host->source ? instruction_run(p, r->host->source)->host : NULL;
    size_t slot = (size_t)p->run.slot;

    *counts = h ? h->counts + slot * h->experts : r->call->in[1].data;
    *there = h ? h->there + slot * h->received : r->call->in[2].data;
    return h ? store_device(p->store)->event_sync(h->copied[slot]) : LS_OK;
}

/* Names the least factor, rounded up to hundredths, with which all rows would have fit. */
static ls_status fail_room(const ls_program *p, const struct instruction *i, size_t arrive)
{
    const struct shuffle *s = instruction_rows(i);
    size_t room = instruction_bound(p, i)->out[0].size[0];

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
    const struct instruction_run *kept = instruction_run(p, i);
    const struct call *c = kept->call;
    const struct view *out = &c->out[0];
    const int32_t *counts, *there;
    size_t E = c->in[1].size[1], own = c->in[2].size[1], C = view_last(out), used = 0, *here = kept->host->sizes,
           bytes = ls_dtype_bytes(out->dtype);
    size_t *arrives = here + shuffle_ranks(s);
    int n = shuffle_ranks(s);

    LS_TRY(find_host_counts(p, i, &counts, &there));
    for (int r = 0; r < n; r++) {
        here[r] = sum(counts, shard_begin(E, 1, r, n), shard_begin(E, 1, r + 1, n)) * C;
        arrives[r] = sum(there, (size_t)r * own, (size_t)(r + 1) * own) * C;
        used += s->back ? here[r] : arrives[r];
    }
    if (used > view_count(out)) return fail_room(p, i, used / MAX(C, 1));
    LS_TRY(shuffle_run_exchange(p, i, s->back ? arrives : here, s->back ? here : arrives, work));
    return store_device(p->store)->fill(c->stream, (char *)out->data + used * bytes, 0, (view_count(out) - used) * bytes);
}
