/* cublaslt_own.c - see cublaslt_own.h. */
#include "kernels/cuda/cublaslt_own.h"

#include "base/base.h"
#include "base/log.h"
#include "kernels/cuda/parts.h"

const struct kernel *cublaslt_own_kernel(const struct call *c)
{
    static const struct kernel *const parts[] = { kernels_cuda_matmul, kernels_cuda_xent, kernels_cuda_pointwise, kernels_cuda_columns };

    for (size_t p = 0; p < COUNT_OF(parts); p++)
        for (const struct kernel *k = parts[p]; k->name; k++)
            if (k->op == c->op && k->accepts(c)) return k;
    return NULL;
}

ls_status cublaslt_or_own(ls_status st, const struct call *c, const struct kernel **own)
{
    static bool said;

    if (st != LS_EUNSUPPORTED || !(*own = cublaslt_own_kernel(c))) return st;
    if (!said) log_line(LOG_WARN, "%s; lockstep's own kernel is used", ls_errmsg());
    said = true;
    return LS_OK;
}
