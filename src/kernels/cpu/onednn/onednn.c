/* onednn.c - matmuls by oneDNN 2.x; the only file that uses its C interface.
 *
 * Each recipe is one matmul primitive. The rows of the kernel table make it of a call (../onednn_load.c):
 *
 *   linear     src x[R,K]          weights w^T     dst y[R,N]
 *   linear_dx  src dy[R,N]         weights w       dst dx[R,K]
 *   linear_dw  src dy^T            weights x       dst dw[N,K], added by a sum post-op
 *   matmul     as they are, with leading dims
 *
 * Transposes are strides. If there are many rows, the weights are first reordered in scratch to the layout that the primitive prefers.
 * Scratch: packed weights, then the primitives' scratchpads.
 *
 * oneDNN's own cache of primitives is disabled; ours frees primitives that are no longer used. Memory that oneDNN allocates for its
 * primitives is not in the memory ledger.
 *
 * Threads: Debian's oneDNN runs on libgomp. A primitive is made for a number of threads and runs on that many at most; each call of oneDNN
 * sets the calling thread's number before, and restores it after. libgomp's record of a thread's team outlives a fork(), the team's
 * threads do not, and the child would wait for them: so a thread that forks ends its team first, and the next call starts another.
 *
 * Reference: oneDNN developer guide, "MatMul" and "Reorder", v2.6; OpenMP 5.0, 3.2 (omp_pause_resource_all).
 */
#include "kernels/cpu/onednn/module.h"

#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"

/* ---- libgomp, which has no header where clang compiles ---- */

void omp_set_num_threads(int n);
int omp_get_max_threads(void);
void omp_set_max_active_levels(int n);
int omp_get_max_active_levels(void);
int omp_pause_resource_all(int kind); /* 1: soft */

/* The calling thread's settings. */
struct team {
    int threads, levels;
};

/* Some of oneDNN's loops start as many threads as the primitive was made for, whatever the setting: with no level of active teams they run
 * on the caller. */
static struct team team_enter(int threads)
{
    struct team before = { omp_get_max_threads(), omp_get_max_active_levels() };

    omp_set_num_threads(threads);
    if (threads == 1) omp_set_max_active_levels(0);
    return before;
}

static void team_leave(struct team before)
{
    omp_set_num_threads(before.threads);
    omp_set_max_active_levels(before.levels);
}

static void team_end(void) { omp_pause_resource_all(1); }

/* ---- The library ---- */

static dnnl_engine_t engine; /* lives until the process ends; NULL: oneDNN cannot be used */
static unsigned features;    /* dnnl_cpu_isa bits of the instruction set that oneDNN uses here */

static bool has(unsigned bits) { return (features & bits) == bits; }

static void library_open(void)
{
    features = dnnl_get_effective_cpu_isa();
    pthread_atfork(team_end, NULL, NULL);
    atexit(team_end); /* LeakSanitizer cannot read the thread-local data of threads that a dlopen()ed library has started */
    if (dnnl_set_primitive_cache_capacity(0) != dnnl_success || dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success) engine = NULL;
}

static enum isa library_isa(ls_dtype type)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, library_open);
    enum isa its = type == LS_BF16 && has(dnnl_cpu_isa_avx512_core_amx)    ? ISA_AMX
                   : type == LS_BF16 && has(dnnl_cpu_isa_avx512_core_bf16) ? ISA_AVX512_BF16
                   : has(dnnl_cpu_isa_avx512_core)                         ? ISA_AVX512
                   : has(dnnl_cpu_isa_avx2)                                ? ISA_AVX2
                                                                           : ISA_ANY;
    return engine && (type != LS_BF16 || its >= ISA_AVX512_BF16) ? its : ISAS;
}

/* ---- Descriptors: everything about a primitive except its code ---- */

struct descriptors {
    dnnl_primitive_desc_t matmul, pack;
}; /* pack NULL: the weights are used as they are */

static dnnl_data_type_t onednn_type_of(int64_t t) { return t == LS_F32 ? dnnl_f32 : t == LS_BF16 ? dnnl_bf16 : dnnl_data_type_undef; }

static dnnl_status_t onednn_layout_of(const struct side *s, int64_t ndim, dnnl_memory_desc_t *out)
{
    dnnl_dims_t size, stride;

    memcpy(size, s->size, sizeof s->size);
    memcpy(stride, s->stride, sizeof s->stride);
    return dnnl_memory_desc_init_by_strides(out, (int)ndim, size, onednn_type_of(s->type), stride);
}

/* rows x columns in the order that oneDNN prefers, or plain rows. */
static dnnl_status_t layout_by_tag(int64_t rows, int64_t columns, int64_t type, dnnl_format_tag_t tag, dnnl_memory_desc_t *out)
{
    dnnl_dims_t size = { rows, columns };

    return dnnl_memory_desc_init_by_tag(out, 2, size, onednn_type_of(type), tag);
}

/* The caller owns *out, on failure, too. */
static dnnl_status_t make_attributes(const struct recipe *r, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t st;

    *out = NULL;
    if ((st = dnnl_primitive_attr_create(out)) != dnnl_success ||
        (st = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user)) != dnnl_success ||
        (st = dnnl_primitive_attr_set_fpmath_mode(*out, dnnl_fpmath_mode_strict)) != dnnl_success || !r->add)
        return st;
    if ((st = dnnl_post_ops_create(&sum)) == dnnl_success && (st = dnnl_post_ops_append_sum(sum, 1)) == dnnl_success)
        st = dnnl_primitive_attr_set_post_ops(*out, sum);
    dnnl_post_ops_destroy(sum);
    return st;
}

static dnnl_status_t describe_matmul(const struct recipe *r, dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *out)
{
    int64_t k = r->weights.size[0], n = r->weights.size[1];
    dnnl_memory_desc_t src, weights, bias, dst;
    dnnl_matmul_desc_t matmul;
    dnnl_status_t st;

    if ((st = onednn_layout_of(&r->src, r->ndim, &src)) != dnnl_success ||
        (st = onednn_layout_of(&r->weights, r->ndim, &weights)) != dnnl_success ||
        (st = onednn_layout_of(&r->dst, r->ndim, &dst)) != dnnl_success)
        return st;
    if (r->pack) st = layout_by_tag(k, n, r->weights.type, dnnl_format_tag_any, &weights);
    if (st == dnnl_success && r->bias) st = layout_by_tag(1, n, r->bias_type, dnnl_ab, &bias);
    if (st == dnnl_success) st = dnnl_matmul_desc_init(&matmul, &src, &weights, r->bias ? &bias : NULL, &dst);
    return st == dnnl_success ? dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL) : st;
}

static void descriptors_destroy(struct descriptors *d)
{
    dnnl_primitive_desc_destroy(d->matmul);
    dnnl_primitive_desc_destroy(d->pack);
}

static dnnl_status_t describe(const struct recipe *r, struct descriptors *out)
{
    struct descriptors d = { NULL, NULL };
    const dnnl_memory_desc_t *packed;
    dnnl_primitive_attr_t attr;
    dnnl_memory_desc_t plain;
    dnnl_status_t st = make_attributes(r, &attr);

    if (st == dnnl_success) st = describe_matmul(r, attr, &d.matmul);
    if (st == dnnl_success && r->pack && (st = onednn_layout_of(&r->weights, r->ndim, &plain)) == dnnl_success) {
        packed = dnnl_primitive_desc_query_md(d.matmul, dnnl_query_weights_md, 0);
        if (!dnnl_memory_desc_equal(&plain, packed)) st = dnnl_reorder_primitive_desc_create(&d.pack, &plain, engine, packed, engine, attr);
    }
    dnnl_primitive_attr_destroy(attr);
    if (st == dnnl_success)
        *out = d;
    else
        descriptors_destroy(&d);
    return st;
}

static size_t onednn_bytes_of(const_dnnl_primitive_desc_t d, dnnl_query_t what)
{
    return d ? dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(d, what, 0)) : 0;
}

/* Packing has ended when the matmul begins, so they share scratch. */
static size_t packed_bytes(const_dnnl_primitive_desc_t pack) { return (onednn_bytes_of(pack, dnnl_query_dst_md) + 63) / 64 * 64; }

/* ---- Primitives, shared among calls ---- */

struct primitive {
    struct recipe recipe;
    dnnl_primitive_t matmul, pack;
    size_t packed; /* bytes of scratch that hold packed weights */
    int holders;
    struct primitive *next;
};

static pthread_mutex_t onednn_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and the counts in it */
static struct primitive *primitives;

static ls_status failed(const struct recipe *r, dnnl_status_t st)
{
    long long m = r->dst.size[r->ndim - 2], n = r->dst.size[r->ndim - 1], k = r->src.size[r->ndim - 1];

    return ls_fail(st == dnnl_out_of_memory ? LS_ENOMEM : LS_EUNSUPPORTED,
                   "oneDNN: matmul of [%lld,%lld] and [%lld,%lld] in %d dims on %d threads: status %d", m, k, k, n, (int)r->ndim,
                   (int)r->threads, (int)st);
}

static void primitive_free(struct primitive *p)
{
    dnnl_primitive_destroy(p->matmul);
    dnnl_primitive_destroy(p->pack);
    mem_free(p);
}

static ls_status primitive_new(const struct recipe *r, struct primitive **out)
{
    struct primitive *p = mem_zalloc(MEM_OTHER, sizeof *p);
    struct descriptors d;

    if (!p) return LS_ENOMEM;
    p->recipe = *r;
    dnnl_status_t st = describe(r, &d);
    if (st == dnnl_success) {
        p->packed = packed_bytes(d.pack);
        st = dnnl_primitive_create(&p->matmul, d.matmul);
        if (st == dnnl_success && d.pack) st = dnnl_primitive_create(&p->pack, d.pack);
        descriptors_destroy(&d);
    }
    if (st != dnnl_success) {
        primitive_free(p);
        return failed(r, st);
    }
    *out = p;
    return LS_OK;
}

static ls_status primitive_hold(const struct recipe *r, struct primitive **out)
{
    struct primitive *p = NULL;
    ls_status st = LS_OK;

    pthread_mutex_lock(&onednn_lock);
    for (p = primitives; p && memcmp(&p->recipe, r, sizeof *r) != 0; p = p->next)
        ;
    if (!p && (st = primitive_new(r, &p)) == LS_OK) {
        p->next = primitives;
        primitives = p;
    }
    if (st == LS_OK) {
        p->holders++;
        *out = p;
    }
    pthread_mutex_unlock(&onednn_lock);
    return st;
}

static void primitive_drop(struct primitive *p)
{
    pthread_mutex_lock(&onednn_lock);
    if (--p->holders == 0) {
        struct primitive **at = &primitives;

        while (*at != p) at = &(*at)->next;
        *at = p->next;
        primitive_free(p);
    }
    pthread_mutex_unlock(&onednn_lock);
}

static size_t primitives_count(void)
{
    size_t n = 0;

    pthread_mutex_lock(&onednn_lock);
    for (const struct primitive *p = primitives; p; p = p->next) n++;
    pthread_mutex_unlock(&onednn_lock);
    return n;
}

/* ---- Matmuls ---- */

enum { SRC, WEIGHTS, BIAS, DST, PACKED, SCRATCH, PACK_SCRATCH, MEMORIES };

/* oneDNN's memory objects of one matmul. NULL: not used. */
struct onednn_matmul {
    struct primitive *primitive;
    dnnl_stream_t stream;
    dnnl_memory_t memory[MEMORIES];
};

static size_t matmul_scratch(const struct recipe *r)
{
    struct team before = team_enter((int)r->threads);
    struct descriptors d;
    size_t bytes = 0;

    if (describe(r, &d) == dnnl_success) {
        bytes = packed_bytes(d.pack) +
                MAX(onednn_bytes_of(d.matmul, dnnl_query_scratchpad_md), onednn_bytes_of(d.pack, dnnl_query_scratchpad_md));
        descriptors_destroy(&d);
    }
    team_leave(before);
    return bytes;
}

static dnnl_status_t name_buffers(struct onednn_matmul *s)
{
    const struct primitive *p = s->primitive;
    const struct {
        const_dnnl_primitive_t of;
        dnnl_query_t what;
        int index;
    } buffers[MEMORIES] = {
        [SRC] = { p->matmul, dnnl_query_src_md, 0 },
        [DST] = { p->matmul, dnnl_query_dst_md, 0 },
        [WEIGHTS] = { p->pack ? p->pack : p->matmul, p->pack ? dnnl_query_src_md : dnnl_query_weights_md, 0 },
        [BIAS] = { p->recipe.bias ? p->matmul : NULL, dnnl_query_weights_md, 1 },
        [PACKED] = { p->pack, dnnl_query_dst_md, 0 },
        [SCRATCH] = { p->matmul, dnnl_query_scratchpad_md, 0 },
        [PACK_SCRATCH] = { p->pack, dnnl_query_scratchpad_md, 0 },
    };
    dnnl_status_t st = dnnl_stream_create(&s->stream, engine, dnnl_stream_default_flags);
    const_dnnl_primitive_desc_t d;

    for (int i = 0; i < MEMORIES && st == dnnl_success; i++)
        if (buffers[i].of && (st = dnnl_primitive_get_primitive_desc(buffers[i].of, &d)) == dnnl_success)
            st = dnnl_memory_create(&s->memory[i], dnnl_primitive_desc_query_md(d, buffers[i].what, buffers[i].index), engine,
                                    DNNL_MEMORY_NONE);
    return st;
}

static void matmul_close(struct onednn_matmul *m)
{
    for (int i = 0; i < MEMORIES; i++) dnnl_memory_destroy(m->memory[i]);
    dnnl_stream_destroy(m->stream);
    if (m->primitive) primitive_drop(m->primitive);
    mem_free(m);
}

static ls_status matmul_open(const struct recipe *r, struct onednn_matmul **out)
{
    struct onednn_matmul *m = mem_zalloc(MEM_OTHER, sizeof *m);
    dnnl_status_t named;

    if (!m) return LS_ENOMEM;
    struct team before = team_enter((int)r->threads);
    ls_status st = primitive_hold(r, &m->primitive);
    if (st == LS_OK && (named = name_buffers(m)) != dnnl_success) st = failed(r, named);
    team_leave(before);
    if (st == LS_OK)
        *out = m;
    else
        matmul_close(m);
    return st;
}

/* Setting a handle fills the padding of a packed layout with zeros: once is enough. */
static void point(dnnl_memory_t m, void *data)
{
    void *now;

    if (m && dnnl_memory_get_data_handle(m, &now) == dnnl_success && now != data)
        ASSERT(dnnl_memory_set_data_handle(m, data) == dnnl_success);
}

static void run_pack(const struct onednn_matmul *s)
{
    const dnnl_memory_t *m = s->memory;
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, m[WEIGHTS] }, { DNNL_ARG_TO, m[PACKED] }, { DNNL_ARG_SCRATCHPAD, m[PACK_SCRATCH] } };

    ASSERT(dnnl_primitive_execute(s->primitive->pack, s->stream, COUNT_OF(args), args) == dnnl_success);
}

static void onednn_run_matmul(const struct onednn_matmul *s)
{
    const dnnl_memory_t *m = s->memory;
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, m[SRC] },
                                     { DNNL_ARG_WEIGHTS, m[m[PACKED] ? PACKED : WEIGHTS] },
                                     { DNNL_ARG_DST, m[DST] },
                                     { DNNL_ARG_SCRATCHPAD, m[SCRATCH] },
                                     { DNNL_ARG_BIAS, m[BIAS] } };

    ASSERT(dnnl_primitive_execute(s->primitive->matmul, s->stream, m[BIAS] ? 5 : 4, args) == dnnl_success);
}

static void matmul_run(const struct onednn_matmul *m, int threads, const struct onednn_buffers *b)
{
    char *rest = (char *)b->scratch + m->primitive->packed;
    void *const at[MEMORIES] = {
        [SRC] = b->src,        [WEIGHTS] = b->weights, [BIAS] = b->bias,      [DST] = b->dst,
        [PACKED] = b->scratch, [SCRATCH] = rest,       [PACK_SCRATCH] = rest,
    };
    struct team before = team_enter(threads);

    for (int i = 0; i < MEMORIES; i++) point(m->memory[i], at[i]);
    if (m->memory[PACKED]) run_pack(m);
    onednn_run_matmul(m);
    team_leave(before);
}

const struct onednn_module onednn_module = {
    .isa = library_isa,
    .scratch = matmul_scratch,
    .open = matmul_open,
    .close = matmul_close,
    .run = matmul_run,
    .primitives = primitives_count,
};
