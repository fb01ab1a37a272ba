/* rank_devices.c - see rank_devices.h. */
#include "train/run/rank_devices.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "base/base.h"
#include "base/mem.h"
#include "device/collectives.h"
#include "device/device.h"

enum { TABLES = 4, NAME = 200 };

/* What the ranks send to each other, in whole words. */
struct rank_device {
    int64_t processes;  /* processes with the same value see each other */
    int64_t row, loads; /* row: 1 + that of DEVICE_MAP; loads: bit k: this rank can use number k of the device's tables of collectives */
    char identity[48];  /* device_facts; "": a processor that ranks may share */
};
_Static_assert(sizeof(((struct device_facts *)0)->identity) == sizeof(((struct rank_device *)0)->identity), "an identity fits");
_Static_assert(sizeof(struct rank_device) % sizeof(int64_t) == 0, "sent as words");

/* The tables of collectives of this rank's device. */
struct choices {
    const struct device_collectives *table[TABLES];
    int n;
    char name[TABLES][NAME]; /* "NCCL 2.28.9" */
    char why[TABLES][400];   /* why this rank cannot use it; "": it can */
};

static void choices_find(const struct device *d, struct choices *out)
{
    *out = (struct choices){ .n = 0 };
    while (d && d->collectives && d->collectives[out->n]) {
        int k = out->n++;

        ASSERT(k < TABLES);
        out->table[k] = d->collectives[k];
        snprintf(out->name[k], NAME, "%s", out->table[k]->name);
        if (out->table[k]->load(out->name[k], NAME) < 0) snprintf(out->why[k], sizeof out->why[k], "%s", ls_errmsg());
    }
}

static ls_status gather_devices(const struct ranks *r, struct rank_device *all)
{
    return operation_run(r->comm,
                         &(struct call_args){ .op = LS_COLLECTIVE_ALL_GATHER,
                                              .send = &all[r->rank],
                                              .recv = all,
                                              .count = sizeof *all / sizeof(int64_t),
                                              .type = LS_I64,
                                              .hidden = true },
                         NULL);
}

/* ---- devices ---- */

static struct rank_device rank_device_of(const struct config *c, const struct choices *own)
{
    struct rank_device d = { .row = c->run.device_chosen };
    struct stat s;

    if (stat("/proc/self/ns/pid", &s) == 0) d.processes = (int64_t)s.st_ino;

    snprintf(d.identity, sizeof d.identity, "%s", c->run.device_facts.identity);
    for (int k = 0; k < own->n; k++)
        if (!own->why[k][0]) d.loads |= (int64_t)1 << k;
    return d;
}

static const char *device_name_of(const struct rank_device *d) { return device_row((int)MAX(d->row, 1) - 1)->name; }

/* *shared: some ranks are on the same GPU. */
static ls_status compare_devices(const struct config *c, const struct rank_device *all, int n, bool *shared)
{
    *shared = false;
    for (int r = 1; r < n; r++)
        if (all[r].row != all[0].row)
            return ls_fail(LS_EINVAL, "rank %d is on device %s, but rank 0 on %s; set run.device to one that all ranks have", r,
                           device_name_of(&all[r]), device_name_of(&all[0]));
    for (int r = 1; r < n; r++)
        for (int q = 0; q < r && all[r].identity[0]; q++) {
            if (strcmp(all[q].identity, all[r].identity) != 0) continue;
            *shared = true;
            if (!c->launch.share_gpus)
                return ls_fail(LS_EINVAL,
                               "ranks %d and %d are on the same GPU; start as many ranks on a machine as it has GPUs, or use "
                               "launch.share_gpus=true, which is slow, or run.device=cpu",
                               q, r);
        }
    return LS_OK;
}

/* ---- collectives ---- */

/* What is known about all ranks: the same on each. */
struct ranks_known {
    const struct rank_device *all;
    int n;
    bool shared, several_machines;
};

static bool see_each_other(const struct ranks_known *known)
{
    for (int r = 1; r < known->n; r++)
        if (known->all[r].processes != known->all[0].processes) return false;
    return true;
}

static ls_status rank_reaches(const struct device_collectives *t, const struct ranks_known *known, int rank, bool *out)
{
    *out = true;
    for (int r = 0; r < known->n && *out; r++)
        if (strcmp(known->all[r].identity, known->all[rank].identity) != 0) LS_TRY(t->reaches(known->all[r].identity, out));
    return LS_OK;
}

/* *far: the lowest rank whose GPU has no access to that of another rank, as the table needs; n: all have. Collective. If a device fails
 * here, all ranks end with its message. */
static ls_status find_far(const struct device_collectives *t, const struct ranks_known *known, const struct ranks *r, int *far)
{
    double lowest = 0;
    bool reaches = true;
    ls_status st = t->reaches ? rank_reaches(t, known, r->rank, &reaches) : LS_OK;

    *far = known->n;
    if (st < 0) {
        comm_fail(r->comm, st);
        return st;
    }
    if (!t->reaches) return LS_OK;
    if (!reaches) lowest = known->n - r->rank;
    LS_TRY(operation_run(
        r->comm,
        &(struct call_args){
            .op = LS_COLLECTIVE_ALL_REDUCE, .send = &lowest, .recv = &lowest, .count = 1, .type = LS_F64, .redop = LS_MAX, .hidden = true },
        NULL));
    *far = known->n - (int)lowest;
    return LS_OK;
}

/* The lowest rank that cannot use number k of the tables; n: all can. */
static int rank_without(const struct ranks_known *known, int k)
{
    int r = 0;

    while (r < known->n && known->all[r].loads >> k & 1) r++;
    return r;
}

/* Why the ranks cannot use number k of the tables; "": they can. Collective. */
static ls_status refuse_table(const struct choices *own, const struct ranks_known *known, const struct ranks *ranks, int k, char *why,
                              size_t room)
{
    const struct device_collectives *t = own->table[k];
    int without = rank_without(known, k), far = known->n;

    why[0] = '\0';
    if (own->why[k][0])
        snprintf(why, room, "%s", own->why[k]);
    else if (known->shared && !t->shares)
        snprintf(why, room, "ranks share a GPU, which %s refuses", own->name[k]);
    else if (without < known->n)
        snprintf(why, room, "rank %d cannot use %s", without, t->name);
    else if (known->several_machines && t->one_machine)
        snprintf(why, room, "the ranks are on several machines, and %s needs one", t->name);
    else if (t->one_machine && !see_each_other(known))
        snprintf(why, room, "the ranks are in several containers, whose processes do not see each other, which %s needs", t->name);
    else if (t->most && known->n > t->most)
        snprintf(why, room, "there are %d ranks, but %s supports %d", known->n, t->name, t->most);
    if (without < known->n || why[0]) return LS_OK; /* on all ranks alike */
    LS_TRY(find_far(t, known, ranks, &far));
    if (far < known->n)
        snprintf(why, room, "%s cannot be used: the GPU of rank %d cannot access the memory of another rank's GPU", t->name, far);
    return LS_OK;
}

static const char *comm_word(const struct config *c) { return (const char *const[]){ "auto", "nccl", "ipc", "host" }[c->launch.comm]; }

/* The first table that launch.comm allows and all ranks can use. Collective. */
static ls_status choose_collectives(const struct config *c, const struct choices *own, const struct ranks_known *known, struct ranks *r)
{
    size_t said = 0;

    r->native = NULL;
    r->collectives_why[0] = '\0';
    for (int k = 0; k < own->n; k++) {
        char why[400];

        if (c->launch.comm != COMM_AUTO && strcmp(own->table[k]->choice, comm_word(c)) != 0) continue;
        LS_TRY(refuse_table(own, known, r, k, why, sizeof why));
        if (!why[0]) {
            r->native = own->table[k];
            snprintf(r->collectives, sizeof r->collectives, "%s", own->name[k]);
            return LS_OK;
        }
        said += (size_t)snprintf(r->collectives_why + said, sizeof r->collectives_why - said, "%s%s", said ? "; " : "", why);
        said = MIN(said, sizeof r->collectives_why - 1);
    }
    if (c->launch.comm == COMM_HOST) snprintf(r->collectives_why, sizeof r->collectives_why, "set by launch.comm");
    snprintf(r->collectives, sizeof r->collectives, "%s", own->n ? "through the host" : "");
    if (c->launch.comm == COMM_AUTO || c->launch.comm == COMM_HOST) return LS_OK;
    return ls_fail(LS_EINVAL, "launch.comm=%s cannot be used: %s; use launch.comm=auto", comm_word(c), r->collectives_why);
}

ls_status rank_devices_compare(const struct config *c, const struct world *w, struct ranks *r)
{
    int n = ls_comm_size(r->comm);
    struct rank_device *all = mem_array(MEM_OTHER, (size_t)n, sizeof *all);
    struct ranks_known known = { .all = all, .n = n, .several_machines = w->local_size < w->size };
    struct choices own;
    ls_status st = all ? LS_OK : LS_ENOMEM;

    choices_find(device_find(config_device(c)), &own);
    if (st == LS_OK) all[r->rank] = rank_device_of(c, &own);
    if (st == LS_OK) st = gather_devices(r, all);
    if (st == LS_OK) st = compare_devices(c, all, n, &known.shared);
    if (st == LS_OK && own.n) st = choose_collectives(c, &own, &known, r); /* on all ranks alike: they have the same kind of device */
    mem_free(all);
    return st;
}
