/* cuda.h - shared by the files of the CUDA device: the host side, in C against the CUDA runtime API.
 *
 *   cuda.c    the row: which GPU, memory, streams, events
 *   copy.c    fills and copies; between host and device through pinned blocks
 *   pinned.c  pinned blocks, taken and given back
 *   graph.c   graphs, by stream capture
 *   flight.c  what the host does when a stream has come to a point, and the host's waits
 *   room.c    how many operations a stream may be given before its first ones have ended
 *   nccl.c    collectives among GPUs by NCCL, in nccl*.c (nccl_library.h); nccl_absent.c where its header was not found
 *   ipc.c     collectives among ranks of one machine through memory of the GPUs, in ipc*.c (ipc.h)
 *   library.c where libraries are found that are loaded when they are needed
 *   import.c  the functions of the library that the module uses
 *
 * A copy from the device ends in a pinned block. Once its stream is past it the host copies the bytes on to where they were asked for. A
 * collective (struct device_operation) is staged in a pinned block too: the stream copies out what the collective reads and then waits for
 * a word in pinned memory, which the host sets once the collective has ended; then the stream copies in what it wrote. A flight is what is
 * left to do for the host at such a point. Flights move in the functions of the row and in all waits of the host, so nothing depends on a
 * second thread, and the host calls nothing that blocks in the driver while a stream may be waiting for it. So the driver loads all kernels
 * when the context is made (CUDA_MODULE_LOADING=EAGER), unless no stream of this process ever waits (device.alone), and streams are made
 * before any waits. A wait is a loop that moves flights and asks, and a stream is given no more than STREAM_DEPTH operations that have not
 * ended, since a launch blocks when the driver's queue is full. The host only stops for a stream that is full or waited for. So a program
 * that ends on a device whose collectives block the host ends here.
 *
 * A call of NCCL or of CUDA IPC runs on the stream itself. Its flight tells the comm when the stream has come to it and when it is past it,
 * and asks in between whether it can still end.
 *
 * Between cuda_graph_begin() and cuda_graph_end() one stream is captured. Events are captured as external nodes, which order the graph with
 * other streams whenever it is launched. The host moves no flight and asks for nothing then: a query would end the capture.
 *
 * The first failure ends everything: later calls do nothing, and all waits return its status and message.
 */
#ifndef LS_DEVICE_CUDA_CUDA_H
#define LS_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include "base/base.h"
#include "device/collectives.h"
#include "device/device.h"

enum { STREAM_NAME = 40, STREAM_MARKS = 8, MARK_EVERY = 32, STREAM_DEPTH = STREAM_MARKS * MARK_EVERY, STREAMS_MOST = 512 };

struct device_stream {
    cudaStream_t handle;
    struct device_stream *next;
    char name[STREAM_NAME];
    int word;                       /* index of `ended` in cuda.words */
    uint32_t *ended, given;         /* operations of the host: how many have ended, in pinned memory; how many were given */
    unsigned queued;                /* operations that it was given */
    uint64_t stuck;                 /* the last pass of flights_move() in which its first flight was not over */
    cudaEvent_t mark[STREAM_MARKS]; /* recorded in turn, one after each MARK_EVERY */
};

struct device_event {
    cudaEvent_t handle;
    bool recorded;
};

/* ---- cuda.c ---- */

struct cuda_state {
    int gpu;
    bool open;
    bool alone; /* device.alone() was called */
    struct cudaDeviceProp properties;
    struct device_settings settings;
    char tuned[4096];              /* that folder; "": none */
    char libraries[4096];          /* device_settings.libraries; "": none */
    size_t taken;                  /* bytes of the GPU's memory in use before anything was allocated: contexts, other processes */
    size_t taken_nccl, taken_ipc;  /* bytes taken by the open communicators; by the groups of CUDA IPC */
    size_t taken_graphs;           /* bytes taken by the existing graphs */
    struct device_stream *streams; /* all but the default one */
    struct device_stream fallback; /* the default one */
    uint32_t *words;               /* [STREAMS_MOST], pinned */
    bool word_used[STREAMS_MOST];
    struct device_stream *capturing; /* what this stream is given is recorded; NULL: none */
    unsigned captured;               /* operations recorded so far */
    /* Before a kernel that is not in the kernel table is launched: device.kernel_begin, for a device that wraps the row; NULL: not needed.
     */
    ls_status (*kernel_begin)(struct device_stream *s, const char *name, const struct device_access *access, int accesses);
    const struct ipc_sum_kernel *sum;                                                         /* ipc_sum.h */
    int (*wait_value)(cudaStream_t s, unsigned long long at, uint32_t value, unsigned flags); /* cuStreamWaitValue32 */
    ls_status failed;
    char message[512];
};
extern struct cuda_state cuda;

ls_status cuda_memory_left(size_t *bytes); /* free bytes of the GPU's memory */
/* *out: s or the default stream. Makes the context if there is none yet. */
ls_status cuda_stream(struct device_stream *s, struct device_stream **out);
ls_status cuda_fail(ls_status st);                     /* st and the thread's message become the device's failure, if it is the first */
ls_status cuda_failed(void);                           /* the failure, with its message; LS_OK: none */
ls_status cuda_check(cudaError_t e, const char *call); /* LS_OK, or the device has failed */
ls_status cuda_no_memory(enum mem_category c, size_t bytes); /* LS_ENOMEM, with the message */
ls_status cuda_check_driver(int result, const char *call);   /* the same for the result of a driver function */
ls_status cuda_driver_function(const char *name, void **out);
double cuda_now(void); /* seconds */
enum { CUDA_IDENTITY = 48 };
void cuda_identity(const struct cudaDeviceProp *p, char out[CUDA_IDENTITY]); /* device_facts.identity */

/* ---- library.c ---- */

/* Loads a library of NVIDIA's by its file name from the first place that has it: the folders of run.library_path, where the loader looks,
 * the toolkit ($CUDA_HOME/lib64, /usr/local/cuda/lib64), packages of Python's environments ($VIRTUAL_ENV, $CONDA_PREFIX, those of each
 * python3 on the PATH, ~/.local). path[room]: the file; "": the loader knew it. NULL: it is in none of them. */
void *cuda_library_open(const char *file, char *path, size_t room);
#define CUDA_LIBRARY_PLACES                                                                                       \
    "not by the loader, in the CUDA toolkit, or in the site-packages of the active or first Python environment; " \
    "run.library_path=FOLDER names its folder"
#define CUDA_LIBRARY_OTHER "run.library_path=FOLDER names the folder of another"
/* Warns that the library is not used, and what is used instead. lacks: the function that it does not have; NULL: it was not found. */
void cuda_library_warn(const char *file, const char *lacks, const char *instead);

/* ---- flight.c ---- */

struct pinned;

/* Makes the event if it is NULL. */
ls_status flight_event(cudaEvent_t *e);
/* Before s is given anything. */
ls_status flight_room(struct device_stream *s);
/* The same for several, but for no more than are between two marks: up to STREAM_MARKS long ones are in flight. */
ls_status flight_room_for(struct device_stream *s, unsigned operations);
/* Gives the block back once s has come to here; if host is given, after its bytes were copied there. */
ls_status flight_add(struct device_stream *s, struct pinned *block, void *host, size_t bytes);
ls_status cuda_enqueue(struct device_stream *s, const struct device_operation *o);
/* A call of NCCL or CUDA IPC: flight_call_begin() before it, flight_call_end() after it. Between the two flights may move: asked whether
 * the call is broken. A flight that was begun is over when the device fails. broken NULL: only the comm decides what can still end.
 */
struct flight;
typedef ls_status flight_broken_fn(void *group); /* LS_OK: no; else with the message */
/* True: a peer has failed, so the call leaves nonsense if it ends. It is not over then, and the host's waits do not end, until the comm
 * says why; SPOILED_SECONDS after it ended the device fails. NULL: never. */
typedef bool flight_spoiled_fn(void *group);
ls_status flight_call_begin(struct device_stream *s, const struct device_watch *w, flight_broken_fn *broken, flight_spoiled_fn *spoiled,
                            void *group, struct flight **out);
ls_status flight_call_end(struct flight *f);
void flights_fail(void);           /* the device has failed: such calls are over */
void flights_rest(unsigned turns); /* in a loop that waits: a moment's rest */
void flights_rested(void);         /* after that loop */
void flights_move(void);
ls_status flights_wait(cudaEvent_t e);
ls_status flights_wait_stream(const struct device_stream *s);
ls_status flights_wait_host(const void *p, size_t bytes); /* until no copy to these bytes of the host is in flight */
ls_status flights_wait_copies(void);                      /* until fewer than PINNED_COPIES blocks of PINNED_COPY are in flight */
ls_status flights_finish(void);                           /* until none is left */

/* ---- graph.c ---- */

ls_status graph_note(const struct device_stream *s); /* in place of flight_room(), where s is captured */
bool cuda_graphs(void);
ls_status cuda_graph_begin(struct device_stream *s);
ls_status cuda_graph_end(struct device_stream *s, struct device_graph **out);
ls_status cuda_graph_launch(struct device_graph *g, struct device_stream *s);
void cuda_graph_free(struct device_graph *g);
size_t cuda_graphs_taken(void);

/* ---- pinned.c ---- */

struct pinned {
    struct pinned *next;
    char *data;
    size_t bytes;
};
enum { PINNED_COPY = 8 << 20, PINNED_COPIES = 4 };
ls_status pinned_take(size_t bytes, struct pinned **out);
void pinned_give(struct pinned *p);

/* ---- nccl.c ---- */

extern const struct device_collectives cuda_nccl;
void nccl_abort(void); /* begins to abort all that is open: the device has failed */

/* ---- ipc.c ---- */

extern const struct device_collectives cuda_ipc;
void ipc_abort(void); /* the device has failed: its streams wait for no other rank, and the other ranks are notified */

/* ---- nccl_memory.c ---- */

bool nccl_memory_used(void); /* memory of MEM_COMMUNICATION is NCCL's */
ls_status nccl_memory_new(size_t bytes, void **out);
bool nccl_memory_free(void *p); /* after all that was enqueued; false: it is not NCCL's */

/* ---- copy.c ---- */

ls_status cuda_fill(struct device_stream *s, void *dst, int byte, size_t bytes);
ls_status cuda_copy_in(struct device_stream *s, void *dst, const void *host, size_t bytes);
ls_status cuda_copy_out(struct device_stream *s, void *host, const void *src, size_t bytes);
ls_status cuda_copy(struct device_stream *s, void *dst, const void *src, size_t bytes);

extern const struct device cuda_row; /* without the rows of the kernel table: module.h */

#endif
