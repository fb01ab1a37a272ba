/* kept_schedules.c - see kept_schedules.h. */
#include "train/plan/kept_schedules.h"

#include <string.h>
#include "base/base.h"
#include "base/hash.h"
#include "base/mem.h"
#include "parallel/layout.h"

enum {
    SCHEDULES_KEPT = 1 << 12,
    ACTIONS_KEPT = 1 << 20, /* actions of all their sequences together */
};

struct kept_schedules {
    struct kept_schedule at[SCHEDULES_KEPT]; /* name NULL: the cell is free */
    int actions;                             /* actions of all sequences that are kept */
};

ls_status kept_schedules_open(struct kept_schedules **out)
{
    *out = mem_array(MEM_OTHER, 1, sizeof **out);
    return *out ? LS_OK : LS_ENOMEM;
}

static void schedule_forget(struct kept_schedules *k, struct kept_schedule *x)
{
    k->actions -= x->sequence.n;
    sequence_free(&x->sequence);
    mem_free(x->slots);
    *x = (struct kept_schedule){ 0 };
}

void kept_schedules_close(struct kept_schedules **out)
{
    struct kept_schedules *k = *out;

    *out = NULL;
    if (!k) return;
    for (int i = 0; i < SCHEDULES_KEPT; i++) schedule_forget(k, &k->at[i]);
    mem_free(k);
}

static ls_status schedule_make(const ls_layout *l, struct kept_schedule *x)
{
    ls_pipeline_schedule s;

    LS_TRY(ls_layout_schedule(l, &s));
    x->slots = mem_array(MEM_OTHER, (size_t)(l->pp * l->vpp), sizeof *x->slots);
    for (int r = 0; x->slots && r < l->pp; r++)
        for (int k = 0; k < l->vpp; k++) x->slots[r * l->vpp + k] = ls_pipeline_schedule_slots(&s, r, k);
    ls_pipeline_schedule_free(&s);
    return x->slots ? LS_OK : LS_ENOMEM;
}

ls_status kept_schedule_of(struct kept_schedules *k, const ls_layout *l, struct kept_schedule **out)
{
    const char *name = layout_schedule_name(l);
    int key[4] = { l->pp, l->vpp, l->micro_batches, 0 };

    memcpy(&key[3], name, MIN(strlen(name), sizeof key[3]));
    struct kept_schedule *x = &k->at[hash_words_of(key, sizeof key).low % SCHEDULES_KEPT];

    *out = x;
    if (x->name && strcmp(x->name, name) == 0 && x->pp == l->pp && x->vpp == l->vpp && x->micro_batches == l->micro_batches) return LS_OK;
    schedule_forget(k, x);
    LS_TRY(schedule_make(l, x));
    x->name = name, x->pp = l->pp, x->vpp = l->vpp, x->micro_batches = l->micro_batches;
    return LS_OK;
}

ls_status kept_schedule_with_sequence(struct kept_schedules *k, const ls_layout *l, struct kept_schedule **out)
{
    struct kept_schedule *x;
    ls_pipeline_schedule s;

    LS_TRY(kept_schedule_of(k, l, &x));
    *out = x;
    if (x->sequence.n) return LS_OK;
    for (int i = 0; k->actions > ACTIONS_KEPT && i < SCHEDULES_KEPT; i++)
        if (&k->at[i] != x) schedule_forget(k, &k->at[i]);
    LS_TRY(ls_layout_schedule(l, &s));
    ls_status st = sequence_make(&s, &x->sequence);
    ls_pipeline_schedule_free(&s);
    k->actions += x->sequence.n;
    return st;
}
