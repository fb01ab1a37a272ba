/* machine_speed.c - how fast this machine computes matmuls, measured with the kernels that programs run. */
#include <math.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/pulse.h"
#include "device/device.h"
#include "kernels/kernel.h"
#include "train/run/machine.h"

static const double ENOUGH_SECONDS = 0.1, SLOW_SECONDS = 0.1;
enum { FEWEST_RUNS = 3, REPEATS = 3 }; /* the fastest shape is found by single runs, and then measured */

struct gemm_call {
    struct call call;
    void *memory[3];
};

static void close_call(struct gemm_call *p)
{
    for (size_t i = 0; i < COUNT_OF(p->memory); i++) mem_free(p->memory[i]);
    mem_free(p->call.scratch);
}

/* Fills the matrix with zeros: the time of a matmul does not depend on the values, unless they are denormal. */
static ls_status open_operand(struct view *v, void **memory, ls_dtype type, size_t rows, size_t columns)
{
    size_t count, bytes;

    if (!size_mul(rows, columns, &count) || !size_mul(count, ls_dtype_bytes(type), &bytes))
        return ls_fail(LS_EINVAL, "a matrix of %zu x %zu is too large", rows, columns);
    *memory = mem_zalloc(MEM_OTHER, bytes);
    if (!*memory) return LS_ENOMEM;
    *v = view_of(*memory, type, 2, (size_t[]){ rows, columns });
    return LS_OK;
}

/* At least `fewest` runs, for at least ENOUGH_SECONDS. */
static ls_status time_runs(const struct kernel *kernel, struct call *c, int fewest, double *seconds)
{
    double best = 0, spent = 0;

    if (kernel->prepare) LS_TRY(kernel->prepare(c));
    for (int i = 0; i <= fewest || spent < ENOUGH_SECONDS; i++) {
        double began = base_now();

        pulse();
        kernel->run(c);
        double took = base_now() - began;
        if (i == 0) continue; /* the first run maps pages and warms caches */
        spent += took;
        best = best == 0 ? took : MIN(best, took);
    }
    if (kernel->release) kernel->release(c);
    *seconds = best;
    return LS_OK;
}

/* The entry of that name, or the best one for NULL; the result is NULL if it does not accept the call or the processor cannot run it. */
static const struct kernel *find_kernel(const struct call *c, const char *name)
{
    const struct kernel *kernel = name ? kernel_named(c->op, name) : kernel_choose(c, &device_cpu);

    return kernel && kernel->isa <= isa_best() && (!kernel->accepts || kernel->accepts(c)) ? kernel : NULL;
}

static ls_status time_linear(ls_dtype type, size_t m, size_t n, size_t k, int fewest, const char **name, double *seconds)
{
    struct gemm_call p = { .call = { .op = OP_LINEAR, .nin = 2, .nout = 1 } };
    struct call *c = &p.call;
    ls_status st;

    for (int i = 0; i < CALL_OPERANDS; i++) c->in[i].ndim = c->out[i].ndim = VIEW_ABSENT;
    st = open_operand(&c->in[0], &p.memory[0], type, m, k);
    if (st == LS_OK) st = open_operand(&c->in[1], &p.memory[1], type, n, k);
    if (st == LS_OK) st = open_operand(&c->out[0], &p.memory[2], type, m, n);
    const struct kernel *kernel = st == LS_OK ? find_kernel(c, *name) : NULL;
    if (kernel) {
        c->scratch = kernel->scratch ? mem_alloc(MEM_OTHER, kernel->scratch(c)) : NULL;
        st = kernel->scratch && !c->scratch ? LS_ENOMEM : time_runs(kernel, c, fewest, seconds);
        *name = kernel->name;
    } else {
        *seconds = 0;
    }
    close_call(&p);
    return st;
}

ls_status machine_time_linear(ls_dtype type, size_t m, size_t n, size_t k, const char **name, double *seconds)
{
    return time_linear(type, m, n, k, FEWEST_RUNS, name, seconds);
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

    LS_TRY(time_linear(type, 2 * s->side, s->side, s->side, fewest, &kernel, seconds));
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
