/* module.h - the interface between the oneDNN module and the library that loads it.
 *
 * The module, lockstep_onednn.so, is this folder: everything that uses oneDNN, and libgomp, on which oneDNN runs. ../onednn_load.c loads it
 * when a row of the kernel table needs it. It uses no symbol of the library or the command: a table of functions gives it what it needs,
 * and import.c defines these functions in the module under their usual names. It exports one function, ONEDNN_MODULE_ENTRY.
 *
 * A recipe is a matmul as oneDNN sees it, and everything that its primitive depends on:
 *
 *   dst[.., M,N] = (add ? dst : 0) + src[.., M,K] weights[.., K,N] + bias[N]
 *
 * Only int64_t members, zero if unset: recipes are equal if their bytes are.
 */
#ifndef LS_KERNELS_CPU_ONEDNN_MODULE_H
#define LS_KERNELS_CPU_ONEDNN_MODULE_H

#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "kernels/kernel.h"

struct side {
    int64_t type, size[LS_DIMS], stride[LS_DIMS];
};
struct recipe {
    int64_t ndim, threads;   /* threads: size of the team that computes it */
    int64_t add, pack;       /* pack: the weights are reordered first */
    int64_t bias, bias_type; /* bias: true if there is one */
    struct side src, weights, dst;
};

/* The addresses of one run; bias NULL: none. scratch: 64-byte aligned. */
struct onednn_buffers {
    void *src, *weights, *bias, *dst, *scratch;
};

struct onednn_matmul; /* a matmul that is ready to run */

struct onednn_module {
    /* The instruction set by which oneDNN multiplies f32 or bf16 here; ISAS: it does not. Called before the others. */
    enum isa (*isa)(ls_dtype type);
    size_t (*scratch)(const struct recipe *r); /* bytes; 0 if oneDNN fails: open() then reports it */
    ls_status (*open)(const struct recipe *r, struct onednn_matmul **out);
    void (*close)(struct onednn_matmul *m);
    /* On at most `threads` threads, with 1 on the caller alone. Allocates nothing from the ledger. One run of m at a time. */
    void (*run)(const struct onednn_matmul *m, int threads, const struct onednn_buffers *b);
    size_t (*primitives)(void); /* number of primitives in use by open matmuls: one for all of the same recipe */
};

struct onednn_host {
    uint64_t shape; /* ONEDNN_MODULE_SHAPE of the host */
    ls_status (*fail)(ls_status st, const char *fmt, ...) LS_PRINTF(2, 3);
    void *(*zalloc)(enum mem_category c, size_t bytes);
    void (*free)(void *p);
    void (*assert_failed)(const char *cond, const char *file, int line);
};

/* The host's differs from the module's if they were compiled from headers in which one of these has another size. */
#define ONEDNN_MODULE_SHAPE                                                                                                              \
    ((uint64_t)sizeof(struct recipe) << 40 ^ (uint64_t)sizeof(struct onednn_module) << 28 ^ (uint64_t)sizeof(struct onednn_host) << 18 ^ \
     (uint64_t)sizeof(struct onednn_buffers) << 10 ^ (uint64_t)ISAS << 6 ^ MEM_CATEGORIES)

/* Returns the module's functions; NULL: host and module were built from different headers. */
#define ONEDNN_MODULE_ENTRY "lockstep_onednn_functions"
typedef const struct onednn_module *onednn_module_fn(const struct onednn_host *host);

extern const struct onednn_module onednn_module; /* in the module */

#endif
