/* config_device.c - resolves run.device: checks that it can be used here, decides what auto means, and chooses this rank's GPU. */
#include "train/config/config.h"

#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/file.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "device/collectives.h"
#include "device/device.h"
#include "train/run/peak_cache.h"

/* Makes the last error a usage error of run.device. */
static ls_status fail_device(const struct config *c)
{
    char why[700];

    snprintf(why, sizeof why, "%s", ls_errmsg());
    return ls_fail(LS_EINVAL, "run.device=%s: %s; run.device=cpu uses the processor", config_device(c), why);
}

/* Checks that each rank that this command starts gets a GPU of its own, or that they may share one. Ranks that another launcher started
 * compare their GPUs after the rendezvous (ranks.c). */
static ls_status check_count(const struct config *c, const struct device *d, int local_ranks)
{
    int processors;

    LS_TRY(d->count(&processors));
    if (local_ranks <= processors || c->launch.share_gpus) return LS_OK;
    return ls_fail(LS_EUNSUPPORTED,
                   "%d ranks on this machine, but it has %d GPU%s; use launch.ranks=%d, or launch.share_gpus=true, which is slow",
                   local_ranks, processors, processors == 1 ? "" : "s", processors);
}

static void choose_automatic(struct config *c, int local_ranks)
{
    const char *why;
    const struct device *d = device_automatic(local_ranks, &why);
    int k = 0;

    while (strcmp(device_row(k)->name, d->name) != 0) k++;
    c->run.device_chosen = 1 + k;
    snprintf(c->run.device_why, sizeof c->run.device_why, "%s", why ? why : "");
}

/* Ranks that choose different algorithms would compute different bits of what is replicated, so they must share the folder. */
static ls_status configure_device(const struct device *d, const struct config *c, const struct world *w)
{
    struct device_settings s = { .tf32 = c->precision.tf32,
                                 .no_cudnn = !c->run.cudnn,
                                 .no_graphs = c->run.cuda_graphs == CUDA_GRAPHS_OFF,
                                 .libraries = c->run.library_path };
    char *folder = NULL;

    if (c->run.tune_matmuls && w->local_size < w->size)
        return ls_fail(LS_EINVAL,
                       "run.tune_matmuls=true: the %d ranks are on several machines, each of which would choose its own algorithms; "
                       "leave it out",
                       w->size);
    if (c->run.tune_matmuls && !(s.tuned = folder = file_cache_folder())) return ls_fail(LS_EIO, "run.tune_matmuls=true: %s", ls_errmsg());
    d->configure(&s);
    mem_free(folder);
    return LS_OK;
}

static ls_status check_comm(const struct config *c, const struct device *d)
{
    const char *idle = c->launch.comm != COMM_AUTO && c->launch.comm != COMM_HOST ? "comm" : c->launch.share_gpus ? "share_gpus" : NULL;

    if (!idle || d->collectives) return LS_OK;
    return ls_fail(LS_EINVAL, "launch.%s does nothing here: it applies only to ranks on GPUs, and run.device is %s", idle, d->name);
}

/* Streams wait for other ranks, and for this process where it reads or writes the files of offloaded tensors. */
static bool streams_wait(const struct config *c, int ranks)
{
    return ranks > 1 || c->optim.offload == OFFLOAD_FILE || c->parallel.offload_parameters == OFFLOAD_FILE;
}

ls_status config_choose_device(struct config *c, unsigned verb, const struct world *w)
{
    bool starts = w->launcher == LAUNCHER_NONE && c->launch.ranks > 1, own = starts || w->launcher == LAUNCHER_OWN;
    int local_ranks = starts ? (int)c->launch.ranks : w->local_size;

    if (!(config_check_row_of("run.device")->verbs & verb)) return LS_OK;
    if (!streams_wait(c, starts ? local_ranks : w->size)) device_set_alone();
    c->run.device_chosen = c->run.device;
    if (!c->run.device) choose_automatic(c, own && !c->launch.share_gpus ? local_ranks : 1);
    const struct device *d = device_find(config_device(c));
    if (!d) return fail_device(c);
    LS_TRY(check_comm(c, d));
    if (!d->count) return LS_OK;
    ls_status st = own && !(verb & VERB_PLAN) ? check_count(c, d, local_ranks) : LS_OK;
    if (st == LS_OK) st = d->choose(w->local_rank, &c->run.device_facts);
    if (st < 0) return fail_device(c);
    return d->configure ? configure_device(d, c, w) : LS_OK;
}

const struct device *config_device_row(const struct config *c) { return device_row(MAX(c->run.device_chosen, 1) - 1); }
const char *config_device(const struct config *c) { return config_device_row(c)->name; }
