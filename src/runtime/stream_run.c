/* stream_run.c - a program's instructions on the streams of its store: streams.h. */
#include "passes/streams.h"

#include "base/mem.h"
#include "runtime/store.h"

ls_status streams_bind(ls_program *p)
{
    struct stream_set *set = store_streams(p->store);
    struct instruction_run *r = p->run.instruction;

    if (set->device->immediate) return LS_OK;
    for (int k = 0; k < p->results.nstreams; k++)
        LS_TRY(stream_set_find(set, (struct stream_key){ p->results.stream[k].comm, p->results.stream[k].lane }, false,
                               &p->results.stream[k].index));
    for (int s = 0; s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            const struct instruction *i = &p->list[s].at[n];

            if (r->call && i->stream >= 0) r->call->stream = set->stream[p->results.stream[i->stream].index].stream;
            if (i->waited_for) LS_TRY(set->device->event_new(&r->end));
            if (instruction_is_start(i) && instruction_is_carried(i))
                LS_TRY(store_gather_prepare(p->store, instruction_exchange(i)->carried - 1));
        }
    return LS_OK;
}

void streams_unbind(ls_program *p)
{
    struct stream_set *set = store_streams(p->store);
    struct instruction_run *r = p->run.instruction;

    if (set->program == p) set->program = NULL;
    for (int s = 0; r && s < SEGMENTS; s++)
        for (int n = 0; n < p->list[s].n; n++, r++) {
            set->device->event_free(r->end);
            r->end = NULL;
        }
}

static int next_segment(const ls_program *p, int s)
{
    do s++;
    while (s < SEGMENTS && !p->list[s].n);
    return s;
}

ls_status streams_enter(ls_program *p, enum segment s, int segments)
{
    struct stream_set *set = store_streams(p->store);
    bool last = segments & LS_LAST, goes_on = set->program == p && next_segment(p, set->segment) == (int)s;

    if (set->device->immediate) return LS_OK;
    if (!goes_on || (s != SEG_OPTIMIZER && last != set->last)) LS_TRY(stream_set_join(set));
    set->program = p;
    set->segment = (int)s;
    set->last = last;
    return LS_OK;
}

ls_status streams_before(ls_program *p, const struct instruction *i)
{
    struct stream_set *set = store_streams(p->store);

    if (instruction_is_start(i) && instruction_is_carried(i)) LS_TRY(stream_set_carry(set, p->results.stream[i->stream].index));
    for (int k = 0; k < i->waits; k++)
        LS_TRY(set->device->event_wait(p->run.instruction[p->results.wait[i->first_wait + k]].end, instruction_bound(p, i)->stream));
    return LS_OK;
}

void streams_used(ls_program *p, const struct instruction *i)
{
    struct set_stream *x = &store_streams(p->store)->stream[p->results.stream[i->stream].index];

    x->busy = true;
    x->marked = false;
}

ls_status streams_after(ls_program *p, const struct instruction *i)
{
    const struct instruction_run *r = instruction_run(p, i);

    if (i->stream < 0) return LS_OK;
    if (!(instruction_is_start(i) && instruction_is_carried(i))) streams_used(p, i);
    return r->end ? store_device(p->store)->event_record(r->end, r->call->stream) : LS_OK;
}
