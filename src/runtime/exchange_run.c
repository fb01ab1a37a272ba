/* exchange_run.c - starts and waits for the collectives of a program. The start and the wait of an exchange share the element of
 * p->run.work at its id. An exchange that stays in flight after its run is kept by the store (store_gathers.c).
 */
#include "runtime/exchange.h"

#include "comm/comm.h"
#include "device/device.h"
#include "runtime/store.h"

/* The arguments of the collective. c: the instruction's operands. */
static struct call_args exchange_call(const struct instruction *i, const struct call *c)
{
    const struct exchange *e = instruction_exchange(i);

    return (struct call_args){ .op = e->op,
                               .send = i->nin ? c->in[0].data : NULL,
                               .recv = i->nout ? c->out[0].data : NULL,
                               .count = e->total,
                               .v = e->counts != NULL,
                               .counts = e->counts,
                               .recv_counts = e->recv_counts,
                               .type = i->nout ? c->out[0].dtype : c->in[0].dtype,
                               .redop = e->redop,
                               .root = e->root };
}

ls_status exchange_start(ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);
    const struct device *d = store_device(p->store);
    const struct call *c = instruction_bound(p, i);
    struct call_args call = exchange_call(i, c);

    if (e->rows.comm) {
        LS_TRY(ls_work_wait(&p->run.work[e->id]));
        return shuffle_run_rows(p, i, &p->run.work[e->id]);
    }
    if (e->carried) return store_gather_start(p->store, e->carried - 1, e->comm, c->stream, &call);
    if (!d->immediate) return comm_enqueue(e->comm, d, c->stream, &call);
    LS_TRY(ls_work_wait(&p->run.work[e->id])); /* the previous run may have left it in flight */
    return operation_run(e->comm, &call, &p->run.work[e->id]);
}

ls_status exchange_finish_all(ls_program *p)
{
    for (int k = 0; k < p->builder.exchanges; k++) LS_TRY(ls_work_wait(&p->run.work[k]));
    return LS_OK;
}

ls_status exchange_wait(ls_program *p, const struct instruction *i)
{
    const struct exchange *e = instruction_exchange(i);

    return e->carried ? store_gather_wait(p->store, e->carried - 1) : ls_work_wait(&p->run.work[e->id]);
}

void exchange_drop_all(ls_program *p)
{
    for (int k = 0; p->run.work && k < p->builder.exchanges; k++)
        if (p->run.work[k]) ls_work_wait(&p->run.work[k]);
}
