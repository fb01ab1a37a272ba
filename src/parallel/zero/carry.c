/* carry.c - zero 1, 2: the gathers of updated parameters overlap the next forward.
 *
 *     update      update unit 0, start gather(0) | update unit 1, start gather(1) | ...      in the order in which the next step reads them
 *     forward     wait(0), first reader of unit 0 | ... | wait(1), first reader of unit 1 | ...
 *
 * As the distributed optimizer of Megatron-LM does with overlap_param_gather. The waits are before the first reader in the forward, or in
 * the backward for what only it reads (a fused loss); they do nothing in the micro-batches after the first. What is in flight belongs to
 * the store (runtime/store_gathers.c), where every other access to the parameters waits for it.
 *
 * What ends the overlap early: the calls of a comm run in their order, so synchronized batch norms of the forward (batch_stats.c) wait for
 * all gathers in flight on theirs; and a blocking call of the host waits for all streams of a device. A stage of a pipeline waits in the
 * update: its update is a program of its own, and how long its forward waits for the stage before depends on the schedule.
 */
#include "parallel/zero/zero.h"

bool gathers_carry(const struct pass *a)
{
    ls_layout l = data_layout(a->d);

    return layout_carries_gathers(&l) && a->p->list[SEG_FORWARD].n > 0;
}

static struct unit *read_unit(const struct pass *a, ls_value v)
{
    const struct value *root = &a->p->values[a->p->values[v.id].root];

    return v.id && root->role == LS_ROLE_PARAMETER ? unit_of(a, root) : NULL;
}

static int place_in(const int *order, int n, int index)
{
    int k = 0;

    while (k < n && order[k] != index) k++;
    return k;
}

void order_by_use(const struct pass *a, int *order)
{
    int n = 0;

    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++)
        for (int k = 0; k < a->p->list[s].n; k++) {
            const struct instruction *i = &a->p->list[s].at[k];

            for (int o = 0; !instruction_is_view(i) && o < i->nin; o++) {
                const struct unit *u = read_unit(a, i->in[o]);

                if (u && place_in(order, n, u->index) == n) order[n++] = u->index;
            }
        }
    for (int k = 0; k < a->ordered; k++)
        if (place_in(order, n, a->order[k]) == n) order[n++] = a->order[k];
    ASSERT(n == a->ordered);
}

/* Waits for the gather of a unit that instruction i reads first. */
static void wait_for_operands(struct pass *a, const struct instruction *i)
{
    for (int o = 0; o < i->nin; o++) {
        struct unit *u = read_unit(a, i->in[o]);
        const struct store_unit *g = u ? unit_stored(a, u) : NULL;

        if (!u || !u->gather.x.carried || u->awaited) continue;
        u->awaited = true;
        ls_value flat = program_unit_value(a->p, u->index, STORE_VALUE, NULL);
        program_exchange_wait(a->p, &u->gather.x, emit_part(a->p, flat, g->begin, g->end - g->begin, LS_SHARD),
                              emit_part(a->p, flat, 0, g->total, LS_REPLICATE));
    }
}

ls_status wait_at_first_use(struct pass *a)
{
    ls_program *p = a->p;

    if (!p->list[SEG_OPTIMIZER].n || !gathers_carry(a)) return LS_OK;
    for (int s = SEG_FORWARD; s <= SEG_WEIGHTS; s++) {
        struct rewrite w = rewrite_begin(p, (enum segment)s, LS_PHASE_COMMUNICATE);

        for (int k = 0; k < w.old.n && program_ok(p); k++) {
            struct cursor before = program_cursor_block(p, w.old.at[k].block);

            if (!instruction_is_view(&w.old.at[k])) wait_for_operands(a, &w.old.at[k]);
            program_push(p, &w.old.at[k]);
            program_cursor_end(p, before);
        }
        rewrite_end(p, &w);
    }
    p->results.carries = true;
    return ls_program_status(p);
}
