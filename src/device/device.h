/* device.h - where bytes live and what runs on them: a table of devices, each a const struct of functions.
 *
 * The processor is row 0; an accelerator is one more row of DEVICE_MAP. Tensors, programs and checkpoints reach a device's memory through
 * these functions only.
 *   1. A stream runs what it is given one after another, in the order in which it was given. Streams run beside each other; an event that
 *      is recorded on one and waited for by another orders them.
 *   2. What is given to a stream returns at once. Host memory of a copy belongs to the device until the host has waited for the stream, or
 *      for an event that was recorded on it later.
 *   3. The null stream is the default stream, a stream like any other.
 *   4. After an operation has failed every wait of the host returns its status and message.
 *   5. Of an immediate device all streams and events are null: what it is given runs at once, on the calling thread.
 * One thread at a time uses a device that is not immediate.
 */
#ifndef LS_DEVICE_DEVICE_H
#define LS_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "lockstep/status.h"

struct device_stream;
struct device_event;
struct device_graph;

/* Bytes that an operation reads or writes: of the device, or of the host. */
struct device_access {
    const void *data;
    size_t bytes;
    bool write;
    bool overwrites; /* it writes all of them and reads none before */
    uint8_t element; /* bytes of an element; 0: not known */
};

enum { DEVICE_POINTERS = 24 };

/* An operation whose code runs on the processor but on device memory: a kernel of the cpu, a collective. args[bytes] is copied when the
 * operation is given to a stream, as an accelerator's arguments are. Of the pointers in args those at pointer[i] are addresses on the
 * device; run gets addresses of the same bytes at which it may touch them. */
struct device_operation {
    const char *name;             /* for messages; lasts as long as the process */
    ls_status (*run)(void *args); /* LS_BUSY: it has begun; call it again */
    /* The host begins or stops to wait for something that may be after it, once it has begun. NULL: not needed. */
    void (*waits)(void *args, bool on);
    const void *args;
    size_t bytes;
    size_t pointer[DEVICE_POINTERS];
    int pointers;
    struct device_access access[DEVICE_POINTERS];
    int accesses;
};

struct kernel_rows;
struct device_collectives;

/* The GPU or other processor that this process uses. */
struct device_facts {
    char name[256];    /* "NVIDIA H200" */
    char identity[48]; /* no two processors have the same */
    size_t memory;     /* its memory in bytes */
    int processors;    /* number that this process may choose from; set if memory is */
    int generation;    /* of an NVIDIA GPU: its major compute capability (9: Hopper); else 0 */
};

/* How the kernels of a device compute where there is a choice. */
struct device_settings {
    bool tf32; /* matmuls of f32 may round their operands to TF32, 10 bits of mantissa */
    /* The folder that keeps which algorithm of a library is the fastest, where that is measured. NULL: the library's own choice is taken,
     * and the folder is not read. */
    const char *tuned;
    bool no_cudnn;         /* its own kernels in place of cuDNN's */
    bool no_graphs;        /* every kernel is launched by itself */
    const char *libraries; /* folders, with colons between them, in which its libraries are looked for first; NULL: none */
};

struct device {
    const char *name;               /* "cpu" */
    const char *kernels;            /* the device whose rows of the kernel table it runs */
    const struct kernel_rows *rows; /* rows that come with it: kernel.h; NULL: none */
    /* collectives.h: the first is preferred; ended by NULL. NULL: collectives are staged through the host. */
    const struct device_collectives *const *collectives;
    /* For a row that stands for a module: loads it and returns its row. NULL with the message set. */
    const struct device *(*load)(void);
    bool (*built)(void); /* the module was built */
    /* Before anything that follows: no stream will wait for this process or for another rank. So the device may load a kernel when it is
     * first launched, even where it waits for all streams to do so. NULL: of a device whose kernels are not loaded. */
    void (*alone)(void);
    /* For a device with processors of its own; NULL for other devices. */
    ls_status (*count)(int *processors); /* how many this process may use; fails if it can use none */
    /* Before anything that follows: takes one of them, by this rank's number on its machine. It is not used yet. */
    ls_status (*choose)(int local_rank, struct device_facts *out);
    /* Before programs are compiled for it; *s may end then. NULL: of devices without such choices. */
    void (*configure)(const struct device_settings *s);
    /* Bytes of its memory that were in use before the first allocation: its runtime's for this process, and other processes'. */
    ls_status (*taken)(size_t *bytes);
    bool host_visible; /* the processor may read and write its pointers */
    bool immediate;
    bool accelerator;       /* it has processors, kernels and collectives of its own, and struct device_settings is for it */
    bool random_order;      /* it draws the order in which streams run */
    const char *comparison; /* the kernel of matmuls that `bench gemm` times beside the one that is chosen */
    void *(*alloc)(enum mem_category c, size_t bytes);                     /* 64-byte aligned, not zeroed; NULL with the message set */
    void *(*alloc_zeroed)(enum mem_category c, size_t bytes);              /* the same, zeroed. NULL: alloc, then a fill */
    void (*free)(void *p);                                                 /* after everything that was given to streams */
    ls_status (*stream_new)(const char *name, struct device_stream **out); /* name: for messages, copied */
    void (*stream_free)(struct device_stream *s);                          /* waits for it; NULL is a no-op */
    ls_status (*stream_sync)(struct device_stream *s);                     /* the host waits for all that s was given */
    ls_status (*sync)(void);                                               /* the host waits for all that all streams were given */
    ls_status (*event_new)(struct device_event **out);
    void (*event_free)(struct device_event *e);                                 /* NULL is a no-op */
    ls_status (*event_record)(struct device_event *e, struct device_stream *s); /* e is where s is now */
    ls_status (*event_wait)(struct device_event *e, struct device_stream *s);   /* s waits; for nothing if e was never recorded */
    ls_status (*event_sync)(struct device_event *e);                            /* the host waits */
    ls_status (*fill)(struct device_stream *s, void *dst, int byte, size_t bytes);
    ls_status (*copy_in)(struct device_stream *s, void *dst, const void *host, size_t bytes);
    ls_status (*copy_out)(struct device_stream *s, void *host, const void *src, size_t bytes);
    ls_status (*copy)(struct device_stream *s, void *dst, const void *src, size_t bytes); /* device to device, no overlap */
    ls_status (*enqueue)(struct device_stream *s, const struct device_operation *o);      /* NULL: of an immediate device */
    /* Before a kernel of the device enqueues its work on s; access[accesses]: what that touches. NULL: not needed. */
    ls_status (*kernel_begin)(struct device_stream *s, const char *name, const struct device_access *access, int accesses);
    /* Graphs: work that is recorded once and given to a stream as one. NULL: of a device without them. Between begin and end what s is
     * given is recorded and does not run: kernels, fills, copies on the device, records of events, waits for events that were recorded
     * before. No other function of the device may be called then. A graph has the addresses and values that were given; its records
     * of events take place, and its waits are for the last record, each time that it is launched. */
    bool (*graphs)(void); /* they are to be used: device_settings */
    ls_status (*graph_begin)(struct device_stream *s);
    ls_status (*graph_end)(struct device_stream *s, struct device_graph **out); /* after a begin, whatever failed in between */
    ls_status (*graph_launch)(struct device_graph *g, struct device_stream *s);
    void (*graph_free)(struct device_graph *g); /* NULL is a no-op; it is not running */
    size_t (*graphs_taken)(void); /* bytes of its memory that graphs took as they were made; those of a graph until it is freed */
};

/* The rows: name, and what the help of run.device says of it. The row of NAME is device_NAME, in src/device/NAME.c. */
#define DEVICE_MAP(DEVICE)                                                                                                            \
    DEVICE(cpu, "the processor")                                                                                                      \
    DEVICE(cuda, "an NVIDIA GPU for each rank; needs lockstep_cuda.so, which is built where nvcc is found")                           \
    DEVICE(check, "for tests: runs on the processor, but with streams drained in random order and memory that the host cannot touch " \
                  "(slow)")

#define DEVICE_COUNT(name, help)   +1
#define DEVICE_DECLARE(name, help) extern const struct device device_##name;
DEVICE_MAP(DEVICE_DECLARE)

/* By name; NULL with the message set when there is no such device in this build or on this machine. */
const struct device *device_find(const char *name);
const struct device *device_row(int k); /* of DEVICE_MAP, from 0: its name and properties; device_find() loads what it needs */
enum { DEVICES = 0 DEVICE_MAP(DEVICE_COUNT) };
/* Declares, before device_find() loads a device and for the life of the process, that no stream will wait for this process or for another
 * rank: devices are loaded with what that allows (their function alone()). */
void device_set_alone(void);
/* What run.device=auto means on this machine: cuda if there is a GPU for each of so many ranks, else the processor. *why: why not cuda,
 * where its module was built, as the thread's message; else NULL. */
const struct device *device_automatic(int local_ranks, const char **why);

/* A zeroed block, freed by free(); NULL with the message set. */
void *device_alloc_zeroed(const struct device *d, enum mem_category c, size_t bytes);
/* After alloc() returned NULL, whose message stays: LS_ENOMEM, or the status with which the device has failed. */
ls_status device_no_memory(const struct device *d);

/* Bytes between device and host, done on return: after all that was given to all streams. */
ls_status device_read(const struct device *d, void *host, const void *src, size_t bytes);
ls_status device_write(const struct device *d, void *dst, const void *host, size_t bytes);

/* Calls sync of all rows: the host is about to wait for something other than a device, and a device without threads of its own does nothing
 * meanwhile. */
ls_status device_settle(void);

#endif
