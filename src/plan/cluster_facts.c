/* cluster_facts.c - clusters for programs that use the library: see lockstep/cluster.h. */
#include <string.h>
#include "base/base.h"
#include "base/mem.h"
#include "plan/cluster.h"

ls_status ls_cluster_read(const char *name, ls_cluster **out)
{
    ls_cluster *c;

    if (!name || !*name) return ls_fail(LS_EINVAL, "ls_cluster_read: no name; use the path of a machine file or a built-in name");
    c = mem_zalloc(MEM_OTHER, sizeof *c);
    if (!c) return LS_ENOMEM;
    ls_status st = cluster_read_own(name, &c->cluster);
    if (st < 0)
        mem_free(c);
    else
        *out = c;
    return st;
}

void ls_cluster_release(ls_cluster **c)
{
    if (!c || !*c) return;
    mem_free(*c);
    *c = NULL;
}

const char *ls_cluster_builtin(int i) { return i < 0 ? NULL : cluster_builtin(i); }

ls_cluster_facts ls_cluster_facts_of(const ls_cluster *cluster)
{
    const struct cluster *c = &cluster->cluster;
    ls_cluster_facts f = { .name = c->name,
                           .processor = c->processor,
                           .ranks_per_node = c->processors,
                           .memory = c->memory - c->reserved,
                           .bandwidth = c->bandwidth,
                           .node_bandwidth = c->node.bandwidth,
                           .network_bandwidth = c->network.bandwidth,
                           .host_memory = c->offload.memory,
                           .price = c->price,
                           .currency = c->currency };

    memcpy(f.flops, c->flops, sizeof f.flops);
    return f;
}
