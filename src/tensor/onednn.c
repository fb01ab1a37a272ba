/* onednn.c - linear layers by oneDNN's matmul, and oneDNN's best speed.
 *
 * The fallback where product.h has no code for the processor, and the choice for bf16 where there is AMX. Weights stay
 * in their plain layout. oneDNN 2's C interface; it runs on the team that threads_set() chose in the calling thread.
 * A primitive is made in prepare(), its working memory is scratch.
 */
#include "tensor/onednn.h"

#include <dnnl.h>
#include <pthread.h>
#include "base/base.h"
#include "base/mem.h"
#include "tensor/kernel.h"
#include "tensor/product.h"

#define DNNL_TRY(what)                                                                                  \
    do {                                                                                                \
        dnnl_status_t dnnl_try_ = (what);                                                               \
        if (dnnl_try_ != dnnl_success)                                                                  \
            return ls_fail(dnnl_try_ == dnnl_out_of_memory ? LS_ENOMEM : LS_EUNSUPPORTED,               \
                           "oneDNN: %s gives status %d", #what, (int)dnnl_try_);                        \
    } while (0)

static struct { dnnl_engine_t engine; dnnl_stream_t stream; bool ready; } shared;  /* live until the process ends */
static pthread_once_t shared_once = PTHREAD_ONCE_INIT;

static void open_shared(void)
{
    shared.ready = dnnl_engine_create(&shared.engine, dnnl_cpu, 0) == dnnl_success
                && dnnl_stream_create(&shared.stream, shared.engine, dnnl_stream_default_flags) == dnnl_success;
}

static bool is_ready(void)
{
    pthread_once(&shared_once, open_shared);
    return shared.ready;
}

bool onednn_has_amx(void)
{
    return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_amx;
}

static bool has_bf16(void)
{
    return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core;
}

static dnnl_data_type_t type_of(ls_dtype t) { return t == LS_BF16 ? dnnl_bf16 : dnnl_f32; }

static ls_status describe(const struct matrix *m, size_t rows, size_t cols, dnnl_memory_desc_t *out)
{
    dnnl_dims_t size = { (dnnl_dim_t)rows, (dnnl_dim_t)cols }, stride = { m->row, m->col };

    DNNL_TRY(dnnl_memory_desc_init_by_strides(out, 2, size, type_of(m->type), stride));
    return LS_OK;
}

enum { A, B, C, BIAS, SCRATCH, PARTS };

/* One matmul and its operands without their addresses. */
struct matmul {
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    dnnl_memory_t part[PARTS];  /* BIAS: NULL without */
};

static void matmul_close(struct matmul *m)
{
    for (int i = 0; i < PARTS; i++)
        if (m->part[i])
            dnnl_memory_destroy(m->part[i]);
    if (m->primitive)
        dnnl_primitive_destroy(m->primitive);
    if (m->desc)
        dnnl_primitive_desc_destroy(m->desc);
}

static ls_status attributes(bool add, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t ops;
    dnnl_status_t st;

    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (!add)
        return LS_OK;
    DNNL_TRY(dnnl_post_ops_create(&ops));
    st = dnnl_post_ops_append_sum(ops, 1);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    DNNL_TRY(st);
    return LS_OK;
}

/* b_any: oneDNN chooses the layout of b. */
static ls_status matmul_desc(const struct product *p, bool b_any, dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t a, b, c, bias;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr;
    dnnl_dims_t wide = { 1, (dnnl_dim_t)p->n }, b_size = { (dnnl_dim_t)p->k, (dnnl_dim_t)p->n };
    dnnl_status_t made = dnnl_success;
    ls_status st;

    if (!is_ready())
        return ls_fail(LS_EUNSUPPORTED, "oneDNN: no engine for this processor");
    LS_TRY(describe(&p->a, p->m, p->k, &a));
    LS_TRY(describe(&p->c, p->m, p->n, &c));
    LS_TRY(describe(&p->b, p->k, p->n, &b));
    if (b_any)
        DNNL_TRY(dnnl_memory_desc_init_by_tag(&b, 2, b_size, type_of(p->b.type), dnnl_format_tag_any));
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&bias, 2, wide, type_of(p->bias_type), dnnl_ab));
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &a, &b, p->bias ? &bias : NULL, &c));
    DNNL_TRY(dnnl_primitive_attr_create(&attr));
    st = attributes(p->add, attr);
    if (st == LS_OK)
        made = dnnl_primitive_desc_create(out, &desc, attr, shared.engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    LS_TRY(st);
    DNNL_TRY(made);
    return LS_OK;
}

static ls_status matmul_parts(struct matmul *m, bool bias)
{
    static const struct { dnnl_query_t what; int index; } parts[PARTS] = {
        [A] = { dnnl_query_src_md, 0 }, [B] = { dnnl_query_weights_md, 0 }, [C] = { dnnl_query_dst_md, 0 },
        [BIAS] = { dnnl_query_weights_md, 1 }, [SCRATCH] = { dnnl_query_scratchpad_md, 0 },
    };

    DNNL_TRY(dnnl_primitive_create(&m->primitive, m->desc));
    for (int i = 0; i < PARTS; i++)
        if (i != BIAS || bias)
            DNNL_TRY(dnnl_memory_create(&m->part[i],
                                        dnnl_primitive_desc_query_md(m->desc, parts[i].what, parts[i].index),
                                        shared.engine, DNNL_MEMORY_NONE));
    return LS_OK;
}

static ls_status matmul_open(const struct product *p, bool b_any, struct matmul *out)
{
    struct matmul m = { .desc = NULL };
    ls_status st = matmul_desc(p, b_any, &m.desc);

    if (st == LS_OK)
        st = matmul_parts(&m, p->bias != NULL);
    if (st != LS_OK) {
        matmul_close(&m);
        return st;
    }
    *out = m;
    return LS_OK;
}

static size_t scratchpad_bytes(dnnl_primitive_desc_t desc)
{
    return dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
}

static dnnl_status_t matmul_execute(struct matmul *m, const struct product *p, void *b, void *scratch)
{
    static const int names[PARTS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS, DNNL_ARG_SCRATCHPAD };
    void *at[PARTS] = { p->a.data, b, p->c.data, (void *)p->bias, scratch };
    dnnl_exec_arg_t args[PARTS];
    int n = 0;

    for (int i = 0; i < PARTS; i++)
        if (m->part[i]) {
            dnnl_memory_set_data_handle(m->part[i], at[i]);
            args[n++] = (dnnl_exec_arg_t){ names[i], m->part[i] };
        }
    return dnnl_primitive_execute(m->primitive, shared.stream, n, args);
}

static bool is_type(ls_dtype t) { return t == LS_F32 || (t == LS_BF16 && has_bf16()); }

/* a and b of one type; c of that type or f32; sums of bf16 stay in f32. */
static bool onednn_accepts(const struct call *c)
{
    struct product p;

    if (!call_product(c, &p) || p.m == 0 || p.n == 0 || p.k == 0)
        return false;
    return is_type(p.a.type) && p.a.type == p.b.type && (p.c.type == LS_F32 || (p.c.type == p.a.type && !p.add))
        && (!p.bias || p.bias_type == LS_F32 || p.bias_type == p.a.type) && is_ready();
}

static size_t onednn_scratch(const struct call *c)
{
    dnnl_primitive_desc_t desc;
    struct product p;
    size_t bytes;

    if (!call_product(c, &p) || matmul_desc(&p, false, &desc) != LS_OK)
        return 0;
    bytes = scratchpad_bytes(desc);
    dnnl_primitive_desc_destroy(desc);
    return bytes;
}

static ls_status onednn_prepare(struct call *c)
{
    struct matmul *m = mem_zalloc(MEM_OTHER, sizeof *m);
    struct product p;
    ls_status st = LS_OK;

    if (!m)
        return LS_ENOMEM;
    if (!call_product(c, &p))
        st = ls_fail(LS_EINVAL, "oneDNN: %s with operands that are not matrices", op_name(c->op));
    if (st == LS_OK)
        st = matmul_open(&p, false, m);
    if (st != LS_OK) {
        mem_free(m);
        return st;
    }
    c->state = m;
    return LS_OK;
}

static void onednn_release(struct call *c)
{
    if (c->state)
        matmul_close(c->state);
    mem_free(c->state);
    c->state = NULL;
}

static void onednn_run(const struct call *c)
{
    struct product p;

    ASSERT(call_product(c, &p));
    ASSERT(matmul_execute(c->state, &p, p.b.data, c->scratch) == dnnl_success);
}

/* Runs m again and again for about `budget` seconds; the least time. */
static double least_time(struct matmul *m, const struct product *p, void *b, void *scratch, double budget)
{
    double start = base_now(), least = -1, now = start;

    do {
        double began = now;

        if (matmul_execute(m, p, b, scratch) != dnnl_success)
            return -1;
        now = base_now();
        if (least < 0 || now - began < least)
            least = now - began;
    } while (now - start < budget);
    return least;
}

ls_status onednn_product_time(ls_dtype type, size_t m, size_t n, size_t k, double budget, double *seconds)
{
    size_t bytes = ls_dtype_bytes(type);
    struct product p = { .m = m, .n = n, .k = k, .a = { NULL, type, (ptrdiff_t)k, 1 }, .b = { NULL, type, (ptrdiff_t)n, 1 },
                         .c = { NULL, type, (ptrdiff_t)n, 1 } };
    struct matmul matmul;
    void *b, *scratch;
    double least = -1;

    if (!is_type(type))
        return ls_fail(LS_EUNSUPPORTED, "oneDNN: products of %s on this processor", ls_dtype_name(type));
    LS_TRY(matmul_open(&p, true, &matmul));
    p.a.data = mem_zalloc(MEM_OTHER, m * k * bytes);
    p.c.data = mem_zalloc(MEM_OTHER, m * n * bytes);
    b = mem_zalloc(MEM_OTHER, dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(matmul.desc, dnnl_query_weights_md, 0)));
    scratch = mem_zalloc(MEM_OTHER, scratchpad_bytes(matmul.desc));
    if (p.a.data && p.c.data && b && scratch)
        least = least_time(&matmul, &p, b, scratch, budget);
    mem_free(scratch);
    mem_free(b);
    mem_free(p.c.data);
    mem_free(p.a.data);
    matmul_close(&matmul);
    if (least < 0)
        return ls_fail(LS_ENOMEM, "oneDNN: a product of %zu x %zu x %zu %s", m, n, k, ls_dtype_name(type));
    *seconds = least;
    return LS_OK;
}

#define ONEDNN_ROW(id) \
    { OP_##id, "onednn", ISA_ANY, onednn_accepts, onednn_scratch, onednn_prepare, onednn_release, onednn_run }

const struct kernel kernels_onednn[] = {
    ONEDNN_ROW(LINEAR),
    ONEDNN_ROW(LINEAR_DX),
    ONEDNN_ROW(LINEAR_DW),
    { OPS, NULL, ISA_ANY, NULL, NULL, NULL, NULL, NULL },
};
