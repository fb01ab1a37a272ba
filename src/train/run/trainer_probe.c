/* trainer_probe.c - checks at the start of a run that its folders can be written and have enough space. */
#include "train/run/trainer_probe.h"

#include <stdio.h>
#include "base/base.h"
#include "checkpoint/collective_status.h"
#include "runtime/store.h"
#include "train/run/probe.h"

/* Bytes of a checkpoint: the parameters and optimizer state of all ranks, each element once. */
static size_t checkpoint_bytes(const struct step *s)
{
    size_t bytes = 0;

    for (size_t i = 0; i < ls_store_count(s->store); i++) {
        size_t count = 1;

        for (int d = 0; d < ls_store_ndim(s->store, i); d++) count *= ls_store_size(s->store, i, d);
        bytes += count * (ls_dtype_bytes(store_value_type(s->store, i)) +
                          (size_t)ls_store_states(s->store, i) * ls_dtype_bytes(store_state_type(s->store)));
    }
    return bytes;
}

/* Number of checkpoints that the folder will hold at most in addition to those that exist: old ones are removed after a new one is
 * written. */
static ls_status new_checkpoints(const struct trainer *t, size_t *out)
{
    const struct config *c = t->config;
    bool open = c->train.time_budget > 0 && t->state.budget_steps == 0; /* checked again when the number of steps is known */
    uint64_t *steps = NULL, all = open ? 1 : (uint64_t)c->train.steps, left = all > t->state.step ? all - t->state.step : 0;
    size_t have = 0, keep = (size_t)c->checkpoint.keep, every = (size_t)c->checkpoint.every;
    size_t saves = every ? (size_t)((left + every - 1) / every) : left > 0;

    LS_TRY(ls_checkpoint_list(t->folder.checkpoints, &steps, &have));
    ls_free(steps);
    *out = MIN(saves, have < keep ? keep + 1 - have : 1);
    return LS_OK;
}

static ls_status try_space(const struct trainer *t)
{
    char what[64];
    size_t n;

    LS_TRY(new_checkpoints(t, &n));
    snprintf(what, sizeof what, n == 1 ? "a checkpoint" : "%zu checkpoints at once", n);
    return probe_space("checkpoint.dir", t->folder.checkpoints, n * checkpoint_bytes(&t->step), what);
}

static ls_status try_folders(const struct trainer *t)
{
    LS_TRY(probe_folder("run.dir", t->folder.path));
    return probe_folder("checkpoint.dir", t->folder.checkpoints);
}

/* The first rank of each machine runs the check; all ranks get the same status. */
static ls_status probe_machines(const struct trainer *t, ls_status (*check)(const struct trainer *t))
{
    struct world world;
    ls_status st = world_find(&world);

    if (st == LS_OK && world.local_rank == 0) st = check(t);
    st = agree(t->ranks.comm, st);
    return st;
}

ls_status trainer_probe_folders(const struct trainer *t) { return probe_machines(t, try_folders); }

ls_status trainer_probe_space(const struct trainer *t) { return probe_machines(t, try_space); }
