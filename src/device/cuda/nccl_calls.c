/* nccl_calls.c - collectives and messages by NCCL.
 *
 * Blocks of different sizes are a group of broadcasts or reductions, one a block; all_to_all is a group of sends and receives.
 *
 * NCCL reads and writes registered operands in place, and each rank decides this by its own operands: so all ranks must have the operands
 * of a call registered, or none, and a receiver must have what its sender has. On all ranks of a comm a program has the operands of a call
 * in the same arena, so this holds where every rank passes the same operands: a broadcast is in place on its root too. What all_to_all
 * sends and receives may be in different arenas: nothing is registered with communicators for exchanges.
 */
#include "device/cuda/nccl_library.h"

#include "base/mem.h"

static const struct {
    ncclDataType_t type;
    int elements; /* elements of NCCL's type in one element of ours */
} nccl_type[LS_DTYPES] = {
    [LS_F32] = { ncclFloat32, 1 }, [LS_BF16] = { ncclBfloat16, 1 }, [LS_F16] = { ncclFloat16, 1 }, [LS_F64] = { ncclFloat64, 1 },
    [LS_I64] = { ncclInt64, 1 },   [LS_I32] = { ncclInt32, 1 },     [LS_U16] = { ncclUint8, 2 },   [LS_U8] = { ncclUint8, 1 },
};

static const ncclRedOp_t nccl_redop[] = { [DEVICE_SUM] = ncclSum, [DEVICE_AVG] = ncclAvg, [DEVICE_MAX] = ncclMax };

bool nccl_takes(const struct device_call *c)
{
    bool reduces = c->op == DEVICE_ALL_REDUCE || c->op == DEVICE_REDUCE_SCATTER;

    return !reduces || nccl_type[c->type].elements == 1;
}

/* A call as it is passed to NCCL. */
struct nccl_call {
    struct device_group *g;
    const struct device_call *c;
    const char *send;
    cudaStream_t s;
    ncclDataType_t type;
    size_t per, bytes; /* elements of NCCL's type and bytes in one element of ours */
};

static bool blocks_even(const struct nccl_call *k)
{
    const size_t *at = k->c->at;

    for (int r = 1; r < k->g->n; r++)
        if (at[r + 1] - at[r] != at[1] - at[0]) return false;
    return true;
}

static size_t block_count(const struct nccl_call *k, const size_t *at, int r) { return (at[r + 1] - at[r]) * k->per; }
static char *block_data(const struct nccl_call *k, const void *p, const size_t *at, int r)
{
    return (char *)(uintptr_t)p + at[r] * k->bytes;
}

/* This rank's own block is in its place already. */
static ls_status give_gathered(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        char *block = block_data(k, c->recv, c->at, r);
        size_t count = block_count(k, c->at, r);

        if (count) LS_TRY(nccl_check(k->g, nccl.Broadcast(block, block, count, k->type, r, k->g->comm, k->s), "ncclBroadcast"));
    }
    return LS_OK;
}

static ls_status give_scattered(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        const char *from = block_data(k, k->send, c->at, r);
        size_t count = block_count(k, c->at, r);

        if (count)
            LS_TRY(nccl_check(
                k->g, nccl.Reduce(from, r == k->g->rank ? c->recv : NULL, count, k->type, nccl_redop[c->redop], r, k->g->comm, k->s),
                "ncclReduce"));
    }
    return LS_OK;
}

static ls_status give_exchanged(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    for (int r = 0; r < k->g->n; r++) {
        size_t out = block_count(k, c->at, r), in = block_count(k, c->recv_at, r);

        if (out) LS_TRY(nccl_check(k->g, nccl.Send(block_data(k, k->send, c->at, r), out, k->type, r, k->g->comm, k->s), "ncclSend"));
        if (in) LS_TRY(nccl_check(k->g, nccl.Recv(block_data(k, c->recv, c->recv_at, r), in, k->type, r, k->g->comm, k->s), "ncclRecv"));
    }
    return LS_OK;
}

static ls_status give_blocks(const struct nccl_call *k)
{
    LS_TRY(nccl_check(k->g, nccl.GroupStart(), "ncclGroupStart"));
    ls_status st = k->c->op == DEVICE_ALL_GATHER       ? give_gathered(k)
                   : k->c->op == DEVICE_REDUCE_SCATTER ? give_scattered(k)
                                                       : give_exchanged(k);
    LS_TRY(st);
    return nccl_check(k->g, nccl.GroupEnd(), "ncclGroupEnd");
}

/* NCCL's sends and receives of a group read and write in no order: what is sent is copied first where the result replaces it. */
static size_t saved_bytes(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    return c->op == DEVICE_ALL_TO_ALL && c->send == c->recv ? c->at[k->g->n] * k->bytes : 0;
}

static ls_status copy_first(const struct nccl_call *k, void *to, const void *from, size_t bytes)
{
    if (!bytes || to == from) return LS_OK;
    return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, k->s), "cudaMemcpyAsync");
}

/* What is sent, or the own block of what is gathered, is copied before the call. */
static ls_status copy_sent(struct nccl_call *k)
{
    const struct device_call *c = k->c;
    int r = k->g->rank;

    if (c->op == DEVICE_ALL_GATHER && !blocks_even(k))
        return copy_first(k, block_data(k, c->recv, c->at, r), k->send, (c->at[r + 1] - c->at[r]) * k->bytes);
    if (!saved_bytes(k)) return LS_OK;
    k->send = k->g->scratch;
    return copy_first(k, k->g->scratch, c->send, saved_bytes(k));
}

static ls_status call_give(const struct nccl_call *k)
{
    const struct device_call *c = k->c;
    size_t count = c->count * k->per;
    ncclComm_t comm = k->g->comm;

    switch (c->op) {
    case DEVICE_ALL_REDUCE:
        return nccl_check(k->g, nccl.AllReduce(k->send, c->recv, count, k->type, nccl_redop[c->redop], comm, k->s), "ncclAllReduce");
    case DEVICE_BROADCAST: return nccl_check(k->g, nccl.Broadcast(c->recv, c->recv, count, k->type, c->root, comm, k->s), "ncclBroadcast");
    case DEVICE_SEND: return nccl_check(k->g, nccl.Send(k->send, count, k->type, 1, comm, k->s), "ncclSend");
    case DEVICE_RECV: return nccl_check(k->g, nccl.Recv(c->recv, count, k->type, 0, comm, k->s), "ncclRecv");
    default: break;
    }
    if (c->op == DEVICE_ALL_TO_ALL || !blocks_even(k)) return give_blocks(k);
    count = block_count(k, c->at, 0);
    if (c->op == DEVICE_ALL_GATHER) return nccl_check(k->g, nccl.AllGather(k->send, c->recv, count, k->type, comm, k->s), "ncclAllGather");
    return nccl_check(k->g, nccl.ReduceScatter(k->send, c->recv, count, k->type, nccl_redop[c->redop], comm, k->s), "ncclReduceScatter");
}

/* The same on all ranks, except for all_to_all, where it is also true if only this rank sends and receives nothing. */
static bool call_empty(const struct nccl_call *k)
{
    const struct device_call *c = k->c;

    if (c->op == DEVICE_ALL_TO_ALL) return !c->at[k->g->n] && !c->recv_at[k->g->n];
    return c->op == DEVICE_ALL_GATHER || c->op == DEVICE_REDUCE_SCATTER ? !c->at[k->g->n] : !c->count;
}

ls_status nccl_enqueue(struct device_group *g, struct device_stream *stream, const struct device_call *c, const struct device_watch *w)
{
    struct nccl_call k = { .g = g,
                           .c = c,
                           .send = c->send,
                           .type = nccl_type[c->type].type,
                           .per = (size_t)nccl_type[c->type].elements,
                           .bytes = ls_dtype_bytes(c->type) };
    struct device_stream *s;
    struct flight *f;
    ls_status st = cuda_stream(stream, &s);

    if (st == LS_OK) st = group_scratch(g, saved_bytes(&k));
    if (st < 0) {
        w->over(w->data, false);
        return st;
    }
    LS_TRY(flight_call_begin(s, w, group_broken, NULL, g, &f));
    k.s = s->handle;
    if (!call_empty(&k)) {
        st = copy_sent(&k);
        if (st == LS_OK) st = call_give(&k);
        if (st == LS_OK) st = nccl_wait(g);
        if (st < 0) return cuda_fail(st);
    }
    return flight_call_end(f);
}
