/* mem.h - every byte that lockstep allocates, and the ledger that counts it.
 *
 * All memory comes from mem_alloc() with a category. The ledger knows the bytes now held and the peak, per category and in total. A limit
 * makes an allocation fail cleanly (LS_ENOMEM: needed, limit, largest category), and so does an injected fault. Blocks are 64-byte
 * aligned; blocks of 4 MiB and more ask for huge pages. Counting is atomic: any thread may call.
 * The bytes counted are those requested, without the header.
 */
#ifndef LS_BASE_MEM_H
#define LS_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>
#include "lockstep/status.h"

/* The names are the keys of "memory" in a metrics line. */
#define MEM_MAP(X)                                                                   \
    X(PARAMETERS, "parameters")       /* weights that compute reads */               \
    X(GRADIENTS, "gradients")         /* of parameters */                            \
    X(OPTIMIZER, "optimizer")         /* moments, master weights */                  \
    X(ACTIVATIONS, "activations")     /* a program's arena */                        \
    X(COMMUNICATION, "communication") /* buckets, gathered shards */                 \
    X(OFFLOAD, "offload")             /* what is kept outside the device's memory */ \
    X(OTHER, "other")                 /* tokens, tables, bookkeeping */

enum mem_category {
#define MEM_ENUM(id, name) MEM_##id,
    MEM_MAP(MEM_ENUM)
#undef MEM_ENUM
        MEM_CATEGORIES
};

struct mem_stats {
    size_t now[MEM_CATEGORIES];   /* bytes held */
    size_t peak[MEM_CATEGORIES];  /* most bytes held at once, per category */
    size_t total_now, total_peak; /* bytes; total_peak is the peak of the sum */
    size_t host_peak;             /* peak of host memory: all bytes but those of devices with memory of their own */
    size_t device_peak;           /* peak of the memory of such devices */
    uint64_t calls;               /* mem_alloc and mem_take calls since the start */
};

const char *mem_category_name(enum mem_category c);
/* The category that held the most bytes when this thread's last allocation failed. */
enum mem_category mem_failed_largest(void);

/* NULL on failure, with the message set. bytes == 0 gives a valid block. Contents are undefined. */
void *mem_alloc(enum mem_category c, size_t bytes);
/* Contents zero. Pages of a large block become resident when they are first touched. */
void *mem_zalloc(enum mem_category c, size_t bytes);
void *mem_array(enum mem_category c, size_t count, size_t size); /* zeroed; fails on overflow */
/* Grows or shrinks in the block's own category (MEM_OTHER when p is NULL); p stays valid on failure. */
void *mem_resize(void *p, size_t bytes);
char *mem_strdup(const char *s); /* MEM_OTHER */
void mem_free(void *p);          /* NULL is a no-op */

/* From now on the process keeps the pages of freed blocks of less than 32 MiB for the next blocks, instead of returning them to the system,
 * and clears zeroed blocks at once: for commands that compile programs one after the other, where every page would be cleared again each
 * time. */
void mem_keep_pages(void);

/* Resizes a mapping of `was` bytes with its own pages (p NULL: none yet) without holding a second copy. bytes == 0 frees it and returns
 * NULL; NULL on failure, and p stays valid. New bytes are zero. */
void *mem_pages_resize(enum mem_category c, void *p, size_t was, size_t bytes);

/* For bytes from another allocator: counts them against the limit and in the ledger, or fails as mem_alloc does. Each successful mem_take
 * is undone by one mem_give. */
ls_status mem_take(enum mem_category c, size_t bytes);
void mem_give(enum mem_category c, size_t bytes);
/* The same for bytes of a device with memory of its own: they count against its limit. */
ls_status mem_take_device(enum mem_category c, size_t bytes);
void mem_give_device(enum mem_category c, size_t bytes);

void mem_read(struct mem_stats *out);
void mem_reset_peak(void); /* peaks become the bytes held now */

/* Of the calling thread alone, whatever others do meanwhile: the most that it held of a category at once since mem_thread_begin(), beyond
 * what it held then. A block that it frees counts as its own, whoever allocated it. */
void mem_thread_begin(void);
size_t mem_thread_peak(enum mem_category c);

void mem_set_limit(size_t bytes); /* limit of host memory; 0: none */
size_t mem_limit(void);
void mem_set_device_limit(size_t bytes); /* limit of the memory of devices with memory of their own; 0: none */
size_t mem_device_limit(void);

/* An injected fault: called before each allocation. Returns why it fails, or NULL. */
typedef const char *mem_fault_fn(void);
extern mem_fault_fn *mem_fault; /* NULL unless train/faults/fault_points.h has armed one */

#endif
