/* own_kernel.c - see own_kernel.h. */
#include "kernels/cuda/own_kernel.h"

#include "base/base.h"
#include "base/log.h"
#include "kernels/cuda/parts.h"

const struct kernel *own_kernel(const struct call *c)
{
#define PART(name) kernels_cuda_##name,
    static const struct kernel *const parts[] = { CUDA_PARTS(PART) };
#undef PART
    const struct kernel *best = NULL;

    for (size_t p = 0; p < COUNT_OF(parts); p++)
        for (const struct kernel *k = parts[p]; k->name; k++)
            if (k->op == c->op && (!best || k->priority > best->priority) && (!k->accepts || k->accepts(c))) best = k;
    return best;
}

ls_status own_kernel_if(ls_status st, const struct call *c, const struct kernel **own)
{
    static bool said;

    if (st != LS_EUNSUPPORTED || !(*own = own_kernel(c))) return st;
    if (!said) log_line(LOG_WARN, "%s; lockstep's own kernel is used", ls_errmsg());
    said = true;
    return LS_OK;
}

const struct kernel *own_kernel_instead(const struct call *c) { return *(const struct kernel *const *)c->state; }
