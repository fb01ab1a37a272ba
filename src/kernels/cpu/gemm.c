/* gemm.c - divides a matmul: chunks of packed B, then blocks of rows distributed over the threads.
 *
 *   for each block of k           (one block, unless C is f32 and can be added to)
 *     for each chunk of n         its panels fill at most chunk_bytes(): they are packed by all threads, read by all
 *       for each block of rows    x each group of panels: a task
 */
#include "kernels/cpu/gemm.h"

#include "base/base.h"
#include "base/cores.h"
#include "base/threads.h"
#include "kernels/kernel.h"
#include "kernels/cpu/amx.h"

enum {
    BLOCK_ROWS = 96,
    LEAST_ROWS = 24,
    BLOCK_K = 2048,
    FEW_ROWS = 16,       /* at most these many: no packing; generation of several texts has the bits of each alone */
    TEAM_MACS = 1 << 19, /* minimum of multiply-adds for which the team is used */
};

static size_t cache_part(int level, size_t part, size_t unknown)
{
    size_t bytes = cores_cache(level);

    return bytes ? bytes / part : unknown;
}

/* Bytes of a chunk of packed B: a quarter of the last cache. */
static size_t chunk_bytes(void) { return MAX(cache_part(3, 4, cache_part(2, 2, 8 << 20)), (size_t)1 << 20); }
/* Bytes of A in a block: half of the L2 cache. */
static size_t block_bytes(void) { return MAX(cache_part(2, 2, 512 << 10), (size_t)128 << 10); }

extern const struct tiles tiles_gemm_avx2, tiles_gemm_avx512;

const struct tiles *tiles_best(void)
{
    enum isa best = isa_best();

    return best >= ISA_AVX512 ? &tiles_gemm_avx512 : best >= ISA_AVX2 ? &tiles_gemm_avx2 : NULL;
}

bool tiles_pairs(ls_dtype a, ls_dtype b) { return a == LS_BF16 && b == LS_BF16 && isa_best() >= ISA_AVX512_BF16; }

bool tiles_amx(void) { return isa_best() >= ISA_AMX; }

size_t tile_rows(bool pairs) { return pairs && tiles_amx() ? AMX_ROWS : TILE_ROWS; }

static size_t least_rows(bool pairs) { return MAX((size_t)LEAST_ROWS, tile_rows(pairs)); }

size_t panel_bytes(bool pairs, size_t k) { return (pairs ? (k + 1) / 2 : k) * tiles_best()->panel * sizeof(float); }

static size_t gemm_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* The sums of one panel; rows of A, in complete groups. */
size_t block_scratch(bool pairs, size_t m, size_t k)
{
    size_t rows = gemm_round_up(m, TILE_ROWS) * (k + k % 2) * (pairs ? sizeof(uint16_t) : sizeof(float));

    return gemm_round_up(m * tiles_best()->panel * sizeof(float) + rows, 64);
}

/* How a matmul is divided. */
struct blocking {
    bool pairs;
    size_t k, n, m; /* sizes of a block of k, a chunk of n, a block of rows */
    size_t packed;  /* bytes of a packed chunk */
    size_t block;   /* bytes of a thread's scratch */
};

/* Rows of a block, at most `most` and at least half of it: as many as possible such that the threads end together. */
static size_t block_rows(size_t m, size_t most, size_t tile, size_t threads)
{
    size_t best = tile;
    double least = 0;

    for (size_t rows = most / tile * tile; rows >= tile && 2 * rows >= most; rows -= tile) {
        size_t blocks = (m + rows - 1) / rows, rounds = (blocks + threads - 1) / threads;
        double cost = (double)(rounds * rows) + 2.0 * (double)rounds; /* 2: the fixed cost of a block, in rows */

        if (least == 0 || cost < least) {
            least = cost;
            best = rows;
        }
    }
    return best;
}

static struct blocking blocking_of(const struct gemm *p, int threads)
{
    size_t panel = tiles_best()->panel;
    struct blocking blocking = { .pairs = tiles_pairs(p->a.type, p->b.type), .k = p->k };
    size_t unit = blocking.pairs ? sizeof(uint16_t) : sizeof(float);

    if (p->c.type == LS_F32 && !p->bias && p->k > BLOCK_K) blocking.k = gemm_round_up((p->k + p->k / BLOCK_K) / (p->k / BLOCK_K + 1), 2);
    blocking.n = MAX(chunk_bytes() / MAX(panel_bytes(blocking.pairs, blocking.k), (size_t)1), (size_t)1) * panel;
    blocking.n = MIN(blocking.n, gemm_round_up(p->n, panel));
    size_t rows = MIN(block_bytes() / (unit * MAX(blocking.k, (size_t)1)), (size_t)BLOCK_ROWS);
    blocking.m = block_rows(p->m, MAX(rows, least_rows(blocking.pairs)), tile_rows(blocking.pairs), (size_t)threads);
    blocking.packed = blocking.n / panel * panel_bytes(blocking.pairs, blocking.k);
    blocking.block = block_scratch(blocking.pairs, blocking.m, blocking.k);
    return blocking;
}

int gemm_threads(const struct gemm *p) { return (double)p->m * (double)p->n * (double)p->k < TEAM_MACS ? 1 : threads_count(); }

static struct matrix turned(struct matrix m) { return (struct matrix){ m.data, m.type, m.col, m.row }; }

/* The matmul that runs: p, or c^T = b^T a^T if packing b is so much more than packing a that it takes longer than transposing c, which
 * takes a quarter of a packed element's time (measured on Zen 4). b's columns must be readable in place. */
static struct gemm as_run(const struct gemm *p)
{
    bool pairs = tiles_pairs(p->a.type, p->b.type), in_place = p->b.row == 1 && (pairs ? p->k % 2 == 0 : p->b.type == LS_F32);
    struct gemm t = *p;

    if (!in_place || p->n <= p->m || (double)(p->n - p->m) * (double)p->k < 0.25 * (double)p->m * (double)p->n) return t;
    t.m = p->n;
    t.n = p->m;
    t.a = turned(p->b);
    t.b = turned(p->a);
    t.c = turned(p->c);
    return t;
}

static bool few_rows(const struct gemm *p) { return p->m <= FEW_ROWS && p->b.row == 1 && p->a.col == 1; }

size_t gemm_scratch(const struct gemm *p, int threads)
{
    struct gemm run = as_run(p);

    if (few_rows(p)) return 0;
    struct blocking blocking = blocking_of(&run, threads);
    return blocking.packed + (size_t)threads * blocking.block;
}

size_t gemm_scratch_most(const struct gemm *p, int threads)
{
    bool pairs = tiles_pairs(p->a.type, p->b.type);
    size_t panel = tiles_best()->panel, unit = pairs ? sizeof(uint16_t) : sizeof(float);
    size_t k = p->c.type == LS_F32 && !p->bias ? MIN(p->k, (size_t)BLOCK_K + 2) : p->k;
    size_t packed = MIN(gemm_round_up(p->n, panel) / panel * panel_bytes(pairs, k), MAX(chunk_bytes(), panel_bytes(pairs, k)));
    /* rows of a block: as many as fill block_bytes(), between least_rows() and BLOCK_ROWS */
    size_t row = (k + 2) * unit, tile = tile_rows(pairs),
           rows = MIN(MAX(block_bytes(), least_rows(pairs) * row), BLOCK_ROWS * row) + tile * row;

    return gemm_round_up(packed, 64) + (size_t)threads * gemm_round_up(BLOCK_ROWS * panel * sizeof(float) + rows, 64);
}

/* One chunk of n of one block of k. */
struct chunk {
    const struct gemm *p;
    const struct tiles *tiles;
    struct blocking blocking;
    int threads;
    size_t k0, k, n0, n;   /* its position */
    size_t blocks, groups; /* tasks: blocks of rows x groups of panels */
    char *packed, *scratch;
};

static struct matrix at(struct matrix m, size_t i, size_t j)
{
    m.data = (char *)m.data + ((ptrdiff_t)i * m.row + (ptrdiff_t)j * m.col) * (ptrdiff_t)ls_dtype_bytes(m.type);
    return m;
}

static void pack_panels(void *ctx, size_t begin, size_t end, int thread)
{
    struct chunk *c = ctx;
    size_t panel = c->tiles->panel, bytes = panel_bytes(c->blocking.pairs, c->k);

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        struct matrix b = at(c->p->b, c->k0, c->n0 + i * panel);

        c->tiles->pack(c->packed + i * bytes, c->blocking.pairs, c->k, MIN(c->n - i * panel, panel), &b);
    }
}

static void run_task(const struct chunk *c, size_t task, int thread)
{
    size_t panel = c->tiles->panel, panels = (c->n + panel - 1) / panel;
    size_t group = task % c->groups, i = task / c->groups * c->blocking.m;
    size_t first = panels * group / c->groups, end = panels * (group + 1) / c->groups, j = first * panel;
    const struct gemm *p = c->p;
    struct gemm_block b = {
        .m = MIN(p->m - i, c->blocking.m),
        .n = MIN(c->n, end * panel) - j,
        .k = c->k,
        .a = at(p->a, i, c->k0),
        .c = at(p->c, i, c->n0 + j),
        .b = c->packed + first * panel_bytes(c->blocking.pairs, c->k),
        .pairs = c->blocking.pairs,
        .bias_type = p->bias_type,
        .add = p->add || c->k0 > 0,
        .scratch = c->scratch + (size_t)thread * c->blocking.block,
    };

    if (p->bias) b.bias = (const char *)p->bias + (p->c.col == 1 ? c->n0 + j : i) * ls_dtype_bytes(p->bias_type);
    c->tiles->block(&b);
}

static void run_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    const struct chunk *c = ctx;

    ASSERT(thread < c->threads);
    for (size_t task = begin; task < end; task++) run_task(c, task, thread);
}

static void each(int threads, size_t n, threads_range_fn *fn, void *ctx)
{
    if (threads == 1)
        fn(ctx, 0, n, 0);
    else
        threads_each(n, 1, fn, ctx);
}

static void run_chunk(struct chunk *c)
{
    size_t panels = (c->n + c->tiles->panel - 1) / c->tiles->panel, wanted = 8 * (size_t)c->threads;

    c->blocks = (c->p->m + c->blocking.m - 1) / c->blocking.m;
    c->groups = c->threads == 1 || c->blocks >= wanted ? 1 : MIN(panels, (wanted + c->blocks - 1) / c->blocks);
    each(c->threads, panels, pack_panels, c);
    each(c->threads, c->blocks * c->groups, run_tasks, c);
}

static void run_dots(void *ctx, size_t begin, size_t end, int thread)
{
    const struct gemm *p = ctx;

    (void)thread;
    tiles_best()->dots(p, begin, end);
}

static void run_few_rows(const struct gemm *p, int threads)
{
    enum { DOTS_GRAIN = 64 };

    if (threads == 1)
        run_dots((void *)p, 0, p->n, 0);
    else
        threads_for(p->n, DOTS_GRAIN, run_dots, (void *)p);
}

void gemm_run(const struct gemm *p, int threads, void *scratch)
{
    struct gemm run = as_run(p);
    struct chunk c = { .p = &run, .tiles = tiles_best(), .threads = threads };

    ASSERT(p->c.col == 1 && (p->a.row == 1 || p->a.col == 1) && (p->b.row == 1 || p->b.col == 1));
    if (p->m == 0 || p->n == 0) return;
    if (few_rows(p)) {
        run_few_rows(p, threads);
        return;
    }
    c.blocking = blocking_of(&run, threads);
    c.packed = scratch;
    c.scratch = c.packed + c.blocking.packed;
    for (; c.k0 < MAX(p->k, (size_t)1); c.k0 += c.blocking.k) {
        c.k = MIN(p->k - c.k0, c.blocking.k);
        for (c.n0 = 0; c.n0 < run.n; c.n0 += c.blocking.n) {
            c.n = MIN(run.n - c.n0, c.blocking.n);
            run_chunk(&c);
        }
        if (p->k == 0) break;
    }
}
