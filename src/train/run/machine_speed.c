/* machine_speed.c - how fast this machine computes matmuls, measured with the kernels that programs run. */
#include <math.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "base/rng.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "train/run/machine.h"

static const double ENOUGH_SECONDS = 0.1, SLOW_SECONDS = 0.1;
enum { FEWEST_RUNS = 3, REPEATS = 3 }; /* the fastest shape is found by single runs, and then measured */
enum { LAUNCHES = 20 };                /* launches of a run on a device with streams */
enum { RANDOM_NUMBERS = 65521 };       /* a prime, so that rows differ */

struct gemm_call {
    const struct device *device;
    struct call call;
    void *memory[3];
};

static void *gemm_alloc(const struct device *d, size_t bytes)
{
    return d->immediate ? mem_zalloc(MEM_OTHER, bytes) : d->alloc(MEM_OTHER, bytes);
}

static void gemm_free(const struct device *d, void *p)
{
    if (d->immediate)
        mem_free(p);
    else
        d->free(p);
}

static void close_call(struct gemm_call *p)
{
    for (size_t i = 0; i < COUNT_OF(p->memory); i++) gemm_free(p->device, p->memory[i]);
    gemm_free(p->device, p->call.scratch);
}

/* Random numbers like those of a model. A GPU takes less power for zeros and equal numbers, so its clock and its matmuls are faster. */
static ls_status fill_random(const struct device *d, void *to, ls_dtype type, size_t count)
{
    double *x = mem_array(MEM_OTHER, RANDOM_NUMBERS, sizeof *x);
    void *block = mem_array(MEM_OTHER, RANDOM_NUMBERS, ls_dtype_bytes(type));
    ls_status st = x && block ? LS_OK : LS_ENOMEM;

    if (st == LS_OK) {
        rng_normals(1, rng_stream("matmul"), 0, RANDOM_NUMBERS, x);
        ls_convert(block, type, x, LS_F64, RANDOM_NUMBERS);
    }
    for (size_t at = 0; at < count && st == LS_OK; at += RANDOM_NUMBERS)
        st = d->copy_in(NULL, (char *)to + at * ls_dtype_bytes(type), block, MIN(count - at, RANDOM_NUMBERS) * ls_dtype_bytes(type));
    ls_status ended = d->stream_sync(NULL); /* copies read the block */
    mem_free(x);
    mem_free(block);
    return st < 0 ? st : ended;
}

static ls_status open_operand(const struct device *d, struct view *v, void **memory, ls_dtype type, size_t rows, size_t columns)
{
    size_t count, bytes;

    if (!size_mul(rows, columns, &count) || !size_mul(count, ls_dtype_bytes(type), &bytes))
        return ls_fail(LS_EINVAL, "a matrix of %zu x %zu is too large", rows, columns);
    *memory = gemm_alloc(d, bytes);
    if (!*memory) return d->immediate ? LS_ENOMEM : device_no_memory(d);
    LS_TRY(fill_random(d, *memory, type, count));
    *v = view_of(*memory, type, 2, (size_t[]){ rows, columns });
    return LS_OK;
}

/* *seconds: seconds of one call. */
static ls_status time_run(const struct device *d, const struct kernel *kernel, const struct call *c, double *seconds)
{
    int launches = d->immediate ? 1 : LAUNCHES;
    double began = base_now();

    for (int i = 0; i < launches; i++) LS_TRY(kernel_launch(d, kernel, c));
    if (!d->immediate) LS_TRY(d->stream_sync(NULL));
    *seconds = (base_now() - began) / launches;
    return LS_OK;
}

/* At least `fewest` runs, for at least ENOUGH_SECONDS. *name: the kernel that ran. */
static ls_status time_runs(const struct device *d, const struct kernel *kernel, struct call *c, int fewest, const char **name,
                           double *seconds)
{
    double best = 0, spent = 0, took;
    ls_status st = kernel->prepare ? kernel->prepare(c) : LS_OK;

    if (st < 0) return st;
    *name = kernel_that_runs(kernel, c);
    for (int i = 0; st == LS_OK && (i <= fewest || spent < ENOUGH_SECONDS); i++) {
        pulse();
        st = time_run(d, kernel, c, &took);
        if (st < 0 || i == 0) continue; /* the first run maps pages and warms caches */
        spent += took * (d->immediate ? 1 : LAUNCHES);
        best = best == 0 ? took : MIN(best, took);
    }
    if (kernel->release) kernel->release(c);
    *seconds = best;
    return st;
}

/* The entry of that name, or the best one for NULL; the result is NULL if it does not accept the call or the processor cannot run it. */
static const struct kernel *find_kernel(const struct device *d, const struct call *c, const char *name)
{
    const struct kernel *kernel = name ? kernel_named(c->op, name) : kernel_choose(c, d);

    return kernel && kernel->isa <= isa_best() && (!kernel->accepts || kernel->accepts(c)) ? kernel : NULL;
}

static ls_status time_entry(struct gemm_call *p, const struct kernel *kernel, int fewest, const char **name, double *seconds)
{
    const struct device *d = p->device;
    size_t bytes = kernel->scratch ? kernel->scratch(&p->call) : 0;

    if (bytes && !(p->call.scratch = gemm_alloc(d, bytes))) return d->immediate ? LS_ENOMEM : device_no_memory(d);
    return time_runs(d, kernel, &p->call, fewest, name, seconds);
}

static ls_status time_linear(const struct device *d, ls_dtype type, size_t m, size_t n, size_t k, int fewest, const char **name,
                             double *seconds)
{
    struct gemm_call p = { .device = d, .call = { .op = OP_LINEAR, .nin = 2, .nout = 1 } };
    struct call *c = &p.call;
    ls_status st = kernel_table_add(d);

    *seconds = 0;
    for (int i = 0; i < CALL_OPERANDS; i++) c->in[i].ndim = c->out[i].ndim = VIEW_ABSENT;
    if (st == LS_OK) st = open_operand(d, &c->in[0], &p.memory[0], type, m, k);
    if (st == LS_OK) st = open_operand(d, &c->in[1], &p.memory[1], type, n, k);
    if (st == LS_OK) st = open_operand(d, &c->out[0], &p.memory[2], type, m, n);
    const struct kernel *kernel = st == LS_OK ? find_kernel(d, c, *name) : NULL;
    if (kernel) st = time_entry(&p, kernel, fewest, name, seconds);
    close_call(&p);
    return st;
}

ls_status machine_time_linear(const struct device *d, ls_dtype type, size_t m, size_t n, size_t k, const char **name, double *seconds)
{
    return time_linear(d, type, m, n, k, FEWEST_RUNS, name, seconds);
}

/* ---- the peak ---- */

struct shape {
    const char *kernel;
    size_t side;
    double flops;
}; /* y[2 side, side]; kernel NULL: the one that a program would choose */

static bool has_room(ls_dtype type, size_t side)
{
    size_t free_bytes = machine_free_memory();

    return free_bytes == 0 || 5 * side * side * ls_dtype_bytes(type) <= free_bytes / 4;
}

static ls_status time_shape(ls_dtype type, const struct shape *s, int fewest, double *seconds, double *flops)
{
    const char *kernel = s->kernel;

    LS_TRY(time_linear(&device_cpu, type, 2 * s->side, s->side, s->side, fewest, &kernel, seconds));
    *flops = *seconds > 0 ? 4 * (double)s->side * (double)s->side * (double)s->side / *seconds : 0;
    return LS_OK;
}

/* Times growing shapes with one entry and keeps the fastest in *best; stops after one that takes SLOW_SECONDS. */
static ls_status scan_shapes(ls_dtype type, const char *kernel, struct shape *best)
{
    static const size_t sides[] = { 256, 768, 1536, 2048 };
    double seconds = 0, flops;

    for (size_t i = 0; i < COUNT_OF(sides) && seconds < SLOW_SECONDS && (i == 0 || has_room(type, sides[i])); i++) {
        struct shape s = { kernel, sides[i], 0 };

        LS_TRY(time_shape(type, &s, 1, &seconds, &flops));
        s.flops = flops;
        if (s.flops > best->flops) *best = s;
    }
    return LS_OK;
}

static ls_status find_peak(ls_dtype type, double *out)
{
    struct shape best = { 0 };
    double seconds, flops;

    LS_TRY(scan_shapes(type, NULL, &best));
    LS_TRY(scan_shapes(type, "onednn", &best));
    for (int i = 0; i < REPEATS; i++) {
        LS_TRY(time_shape(type, &best, FEWEST_RUNS, &seconds, &flops));
        best.flops = fmax(best.flops, flops);
    }
    *out = best.flops;
    return LS_OK;
}

ls_status machine_peak_flops(ls_dtype type, double *flops)
{
    size_t limit = mem_limit();

    mem_set_limit(0);
    ls_status st = find_peak(type, flops);
    mem_set_limit(limit);
    return st;
}
