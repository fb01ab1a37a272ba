/* store_parts.h - internals of a store, for the files store*.c.
 *
 * An entry describes a parameter. A unit is a list of adjacent parameters; each kind that they have (value, gradient, each state by name)
 * is one flat buffer, of which this rank holds all or its block. A part is what this rank holds of one kind of a parameter, wherever it
 * is stored.
 */
#ifndef LS_RUNTIME_STORE_PARTS_H
#define LS_RUNTIME_STORE_PARTS_H

#include <sys/types.h>
#include "base/worker.h"
#include "runtime/arena_bytes.h"
#include "runtime/store.h"
#include "runtime/stream_set.h"

enum { STATES = 4 };             /* most optimizer states of one parameter, master included */
enum { FLATS = 2 + 4 * STATES }; /* most kinds of one unit, whose parameters may have states of different names */

struct state {
    const char *name;  /* a literal */
    ls_tensor *tensor; /* NULL: not allocated, or offloaded */
};

struct entry {
    char *name;
    uint64_t hash; /* rng_stream(name): also the key of the initialization */
    int ndim;
    size_t size[LS_DIMS], count;           /* shape and elements of the full parameter */
    size_t begin[LS_DIMS], local[LS_DIMS]; /* this rank's box */
    size_t held;                           /* elements of the box */
    bool away;                             /* this rank has nothing of it */
    bool not_owner;                        /* another rank owns the box */
    ls_placement place[LS_AXES];
    ls_init init;
    int frozen, needs_grad, states;
    enum { VALUE_NONE, VALUE_AWAITED, VALUE_READY } ready; /* AWAITED: allocated, and to be loaded */
    double sign_rate;                                      /* see store_set_sign_rate */
    bool joint;                                            /* see store_set_joint */
    ls_dtype type;                                         /* type of the value */
    ls_tensor *value, *grad;
    struct state state[STATES];
    int unit, member; /* unit -1: none; params[member] of it */
};

/* A copy between a unit's file and memory, made by the store's worker. */
struct file_transfer {
    const struct flat_unit *g;
    off_t at;
    void *data;
    size_t bytes;
    bool save, open; /* open: under way, or not waited for */
    struct worker_task task;
};

struct flat {
    enum store_kind kind;
    const char *state; /* for STORE_STATE */
    struct bytes_home home;
    void *data; /* [bytes]; NULL: in the unit's file */
    size_t bytes;
    ls_tensor *tensor; /* a one-dim view of data */
    off_t at;          /* offset of data in the file */
    bool zero;         /* offloaded, and to be taken for zeros: it is written only when it is saved */
    struct file_transfer transfer;
};

struct flat_unit {
    struct store_unit face;
    int *params;
    size_t *at;
    char *path;     /* folder for the file */
    int fd, direct; /* descriptors of the file: through the page cache, and without it (O_DIRECT); -1: none */
    off_t file_bytes;
    struct flat flat[FLATS];
    int flats;
    bool gathering;                /* a gather of its values is in flight */
    ls_work *gather;               /* without streams */
    struct device_event *gathered; /* with streams: the end of the last one; NULL: not prepared */
};

/* Gradients beside each other: on a device that is not immediate those that one allocation adds outside of units. */
struct gradients {
    struct gradients *next;
    struct bytes_home home;
    char *data;
    size_t bytes;
};

struct ls_store {
    ls_store_options options;
    char device[32]; /* its name */
    const struct device *where;
    struct entry *entry;
    size_t count, room;
    bool awaits;    /* see ls_store_await_load */
    size_t awaited; /* entries that are VALUE_AWAITED */
    struct flat_unit **unit;
    int units;
    struct gradients *gradients;
    struct stream_set *streams;
    struct worker *worker; /* for files; NULL: none is needed */
    struct offload_count moved;
    ls_comm *world; /* NULL: this rank has everything */
    void *attached;
    void (*detach)(void *ctx);
};

/* Element e of the box, begin <= e < end, is element e + shift of base, or of the file from offset `at`. */
struct part {
    ls_tensor *base; /* NULL: in g's file */
    struct flat_unit *g;
    off_t at;
    ptrdiff_t shift;
    size_t begin, end;
    enum store_kind kind;
    ls_dtype type;
    bool writable; /* base is in memory that any thread of the host may write */
};

/* store.c */
ls_dtype kind_type(const ls_store *s, ls_dtype value,
                   enum store_kind kind); /* type of a kind of parameters whose values have type `value` */

/* store_box.c */
void box_whole(struct entry *p);
bool box_is_whole(const struct entry *p);
size_t entry_run(const struct entry *p, size_t from, size_t end, size_t *global); /* store_box_run() of a parameter */

/* store_world.c: the two steps of ls_store_read() over the world; both are collective. */
/* has: this rank has something of that kind; ready: and has allocated memory. *owner: this rank contributes its box. */
ls_status world_choose(const ls_store *s, size_t i, const char *kind, bool has, bool ready, bool *owner);
/* Fills full[count * esize + 1] bytes from the boxes of the contributing ranks; box NULL: this rank contributes none. got: the status of
 * reading its box. */
ls_status world_sum(const ls_store *s, size_t i, const char *kind, const void *box, ls_status got, size_t esize, char *full);

/* store_fill.c */
size_t gradient_bytes(const ls_store *s, size_t i); /* bytes of parameter i's gradient outside of units, as the ledger counts them */
void gradients_free(ls_store *s);
ls_status entry_check_loaded(const struct entry *p);

/* store_part.c */
/* LS_EINVAL if parameter i has none of that kind, or it is not allocated. state: for STORE_STATE. */
ls_status part_find(const ls_store *s, size_t i, enum store_kind kind, const char *state, struct part *out);
char *part_data(const struct part *p, size_t from); /* address of element `from` of the box; NULL: not writable */
/* Copies elements [from, from + n) of the box, all of them held, from or to host[n]. */
ls_status part_read(const struct part *p, size_t from, size_t n, void *host, ls_dtype type);
ls_status part_write(const struct part *p, size_t from, size_t n, const void *host, ls_dtype type);

/* store_unit.c */
struct flat *flat_unit_find(const struct flat_unit *g, enum store_kind kind, const char *state); /* NULL: not allocated */
size_t flat_unit_held(const struct flat_unit *g, enum store_kind kind, size_t *begin);           /* elements of the flat buffer */
ls_status flat_unit_allocate(ls_store *s, struct flat_unit *g); /* allocates the kinds that its parameters need and do not have */
void flat_unit_free(struct flat_unit *g);
/* The bytes needed of each kind, counted as the ledger will count them; of those that are offloaded, in host memory and in files. */
void flat_unit_bytes(const ls_store *s, const struct flat_unit *g, size_t bytes[STORE_KINDS], size_t *offload, size_t *file);
bool flat_unit_uses_file(const struct flat_unit *g);

/* store_offload.c */
ls_status flat_settle(ls_store *s, struct flat_unit *g, struct flat *f); /* for the host: no copy is under way, and zeros are written */

/* backing.c: the unnamed file of a unit */
ls_status backing_grow(struct flat_unit *g, size_t bytes, off_t *at); /* extends the file by bytes, zeroed */
/* Each chunk that has been transferred increments `progress`, unless it is NULL. */
ls_status backing_read(const struct flat_unit *g, off_t at, void *to, size_t bytes, atomic_uint *progress);
ls_status backing_write(const struct flat_unit *g, off_t at, const void *from, size_t bytes, atomic_uint *progress);

/* backing_queue.c: f of the unit from its file to device memory, or (save) back, enqueued. The store has a worker. */
ls_status backing_enqueue(const ls_store *s, struct device_stream *stream, const struct flat_unit *g, const struct flat *f, void *data,
                          bool save);

#endif
