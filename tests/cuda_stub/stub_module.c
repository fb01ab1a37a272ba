/* stub_module.c - the entry of lockstep_cuda_stub.so, and launches, which the emulator runs when their stream reaches them. */
#include "stub_graph.h"

#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "device/check.h"
#include "device/cuda/cuda.h"
#include "device/cuda/module.h"
#include "emulator.h"

const struct device *real_lockstep_cuda_row(const struct cuda_host *host); /* src/kernels/cuda/rows.c */

void cuda_launch_failed(const char *kernel, int error, const char *text); /* src/device/cuda/cuda.c */
static struct device row;
static ls_status (*kernel_begin)(struct device_stream *s, const char *name, const struct device_access *access, int accesses);

/* ---- memory that a kernel of the table may access ---- */

/* The launches of a call, or of many that are launched together, and the memory that was given to them. */
struct kernel_call {
    const char *name;
    struct device_access *access; /* [accesses] */
    void **base, **region;        /* [regions] */
    int accesses, regions;
    int launches;  /* still to run */
    bool complete; /* the next call has begun */
    bool captured; /* its launches may run any number of times: it is kept */
};

static struct kernel_call *last;

static void call_release(struct kernel_call *c)
{
    if (!c->complete || c->launches || c->captured) return;
    for (int k = 0; k < c->regions; k++) emulator_memory_drop(c->region[k]);
    free(c->access);
    free(c->base);
    free(c->region);
    free(c);
}

static void call_complete(void)
{
    if (!last) return;
    for (int k = 0; k < last->regions; k++) last->region[k] = emulator_memory_detach(last->base[k]);
    last->complete = true;
    call_release(last);
    last = NULL;
}

struct range {
    char *begin, *end;
    size_t element;
    bool write;
};

/* Accesses that overlap become one. */
static int ranges_add(struct range *all, int n, const struct device_access *a)
{
    struct range r = { (char *)(uintptr_t)a->data, (char *)(uintptr_t)a->data + a->bytes, a->element ? a->element : 1, a->write };

    for (int k = 0; k < n;)
        if (all[k].begin < r.end && r.begin < all[k].end) {
            r = (struct range){ MIN(r.begin, all[k].begin), MAX(r.end, all[k].end), MIN(r.element, all[k].element),
                                r.write || all[k].write };
            all[k] = all[--n];
            k = 0;
        } else {
            k++;
        }
    all[n] = r;
    return n + 1;
}

static void *array_new(int n, size_t each)
{
    void *all = calloc((size_t)n + 1, each);

    if (!all) stub_die("no memory");
    return all;
}

static ls_status note_kernel(struct device_stream *s, const char *name, const struct device_access *access, int accesses)
{
    struct range *all = array_new(accesses, sizeof *all);
    int n = 0;

    call_complete();
    last = array_new(1, sizeof *last);
    *last = (struct kernel_call){ .name = name, .accesses = accesses };
    last->access = array_new(accesses, sizeof *last->access);
    last->base = array_new(accesses, sizeof *last->base);
    last->region = array_new(accesses, sizeof *last->region);
    memcpy(last->access, access, (size_t)accesses * sizeof *access);
    for (int k = 0; k < accesses; k++) n = ranges_add(all, n, &access[k]);
    for (int k = 0; k < n; k++) {
        size_t bytes = (size_t)(all[k].end - all[k].begin);
        const struct check_block *b = check_block_of(all[k].begin, bytes);

        if (!b) stub_die("%s: an operand of %zu bytes at %p is not, or not all, memory of cudaMalloc", name, bytes, (void *)all[k].begin);
        emulator_memory_add(all[k].begin, bytes, b->shadow + (all[k].begin - b->visible), all[k].element, all[k].write, "an operand");
        last->base[last->regions++] = all[k].begin;
    }
    free(all);
    return kernel_begin(s, name, access, accesses);
}

/* ---- launches ---- */

struct launch_args {
    struct kernel_call *call;
    void (*run)(const void *closure);
    _Alignas(16) char closure[];
};

static ls_status run_launch(void *args)
{
    const struct launch_args *a = args;

    a->run(a->closure);
    if (emulator_report()[0]) stub_die("%s", emulator_report());
    a->call->launches--;
    call_release(a->call);
    return LS_OK;
}

static ls_status run_nothing(void *args) { return (void)args, LS_OK; }

/* An operation has room for some accesses: those before the last ones of a launch are those of operations that do nothing. */
static void enqueue_accesses(struct device_stream *s, struct device_operation *o)
{
    for (int k = 0; k < last->accesses; k++) {
        if (o->accesses == DEVICE_POINTERS) {
            struct device_operation before = { .name = o->name, .run = run_nothing, .accesses = o->accesses };

            memcpy(before.access, o->access, sizeof before.access);
            stub_enqueue(s, &before);
            o->accesses = 0;
        }
        o->access[o->accesses++] = last->access[k];
    }
}

static void enqueue_launch(void *stream, const char *kernel, void (*run)(const void *closure), const void *closure, size_t bytes)
{
    struct device_stream *s = stub_stream(stream, "a launch");
    struct device_operation o = { .name = last->name, .run = run_launch };
    struct launch_args *a;
    cudaError_t e = stub_call("a launch", false);

    if (e != cudaSuccess) {
        cuda_launch_failed(kernel, (int)e, cudaGetErrorString(e));
        return;
    }
    a = malloc(sizeof *a + bytes);
    if (!a) stub_die("no memory");
    a->call = last;
    a->run = run;
    memcpy(a->closure, closure, bytes);
    last->launches++;
    last->captured = last->captured || stub_captures_stream(s);
    o.args = a;
    o.bytes = sizeof *a + bytes;
    enqueue_accesses(s, &o);
    stub_enqueue(s, &o);
    free(a);
}

/* ---- the entry ---- */

__attribute__((visibility("default"))) const struct device *lockstep_cuda_row(const struct cuda_host *host);

const struct device *lockstep_cuda_row(const struct cuda_host *host)
{
    const struct device *real = real_lockstep_cuda_row(host);

    if (!real) return NULL;
    row = *real;
    kernel_begin = row.kernel_begin;
    row.kernel_begin = note_kernel;
    cuda.kernel_begin = note_kernel;
    emulator_enqueue(enqueue_launch);
    if (stub_settings()->cpu_kernels) {
        row.kernels = "cpu";
        row.kernel_begin = NULL;
    }
    if (stub_settings()->cpu_kernels || stub_settings()->no_kernels) row.rows = NULL;
    return &row;
}
