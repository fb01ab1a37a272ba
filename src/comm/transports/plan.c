/* plan.c - the transport "plan:": a rank among n that has no peers.
 *
 * Its comms give sizes, blocks and byte counts for plans, and are split by comm_split_by() and comm_split_regular(). They cannot
 * communicate: start and poll are absent, and operations fail before they begin.
 */
#include "base/mem.h"
#include "comm/transports/transport.h"

struct link {
    struct link_base base;
};

static ls_status plan_new(int rank, int n, uint64_t group, struct link **out)
{
    struct link *l = mem_zalloc(MEM_OTHER, sizeof *l);

    if (!l) return LS_ENOMEM;
    l->base = (struct link_base){ .transport = &transport_plan, .rank = rank, .n = n, .group = group };
    *out = l;
    return LS_OK;
}

static ls_status plan_open(const char *rest, int rank, int n, double timeout, struct link **out)
{
    (void)timeout;
    if (*rest) return ls_fail(LS_EINVAL, "comm: \"plan:%s\": \"plan:\" takes no name", rest);
    return plan_new(rank, n, 1, out);
}

static ls_status plan_split(struct link *parent, int n, const int *members, int me, uint64_t group, struct link **out)
{
    (void)parent;
    (void)members;
    return plan_new(me, n, group, out);
}

static void plan_close(struct link **l)
{
    mem_free(*l);
    *l = NULL;
}

const struct transport transport_plan = { .name = "plan", .open = plan_open, .split = plan_split, .close = plan_close };
