/* plan.c - the transport "plan:": a rank that knows its place among n and has no peers.
 *
 * Comms of it give sizes, blocks and byte counts to who plans a run, and are split by comm_split_by(). They move nothing: start
 * and poll are absent, and operations are refused before they begin.
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
    if (*rest) return ls_fail(LS_EINVAL, "comm: \"plan:%s\": nothing is after the colon", rest);
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
