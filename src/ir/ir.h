/* ir.h - a program as data: ops, values, instructions, lists. Nothing here depends on how a program is built, transformed or run: what a
 * pass finds out about a value or an instruction is a field of it, what runs keep of an instruction is the runtime's (instruction_run()).
 *
 * Value ids are indices; 0 is the null value. A view stores in `root` the id of the value that owns its bytes; views of views refer to the
 * same root. builder.h builds programs, passes.h transforms them, runtime.h runs them; program.h defines the complete struct.
 */
#ifndef LS_IR_IR_H
#define LS_IR_IR_H

#include <stdbool.h>
#include "base/base.h"
#include "kernels/kernel.h"
#include "lockstep/comm.h"
#include "lockstep/ops.h"

/* OP_VIEW computes nothing: its output is a view of its input. The executor's own ops are:
 *   COMM_START  in[0] -> out[0], begins a collective; the comm owns both until the wait
 *   COMM_WAIT   in[0], out[0] as in its start (which keeps both alive until here); later instructions may read out[0]
 *   LOAD        -> out[0] = one offloaded kind of a unit: its values, gradients or a state; out[0] may be read after the wait
 *   SAVE        in[0] -> one offloaded kind of a unit; in[0] may be written after the wait
 *   LOAD_WAIT, SAVE_WAIT  with the operand of the load or save, which keeps it alive until here
 *   SHUFFLE_COUNTS, SHUFFLE  rows of tokens to the ranks of their experts and back, see shuffle.c; over several ranks SHUFFLE is lowered to
 *               a start, which also reads the counts, and a wait
 * The following ops are composite: the partition pass emits them, they have gradient rules and are recomputed like any other op, and the
 * lower pass (lower.c) expands them:
 *   MOVE        in[0] -> out[0], the same value in another placement (struct move)
 *   RING_ATTENTION        q[B,t,H,D] k v[B,t,G,D] -> o lse[B,H,t], t this rank's shard of T; keys and values travel around a ring
 *   RING_ATTENTION_GRAD   q k v o lse do -> dq dk dv
 *   VOCAB_XENT            LINEAR_XENT for this rank's rows of w, x replicated: x[R,C] w[v,C] y[R] denom? -> loss lse[R]
 *   VOCAB_XENT_GRAD       LINEAR_XENT_GRAD likewise; dx is a partial sum */
/* Rows as in op_list.h, complete but for three columns: these ops have no kernels, so they have no shapes, write to no input's bytes, and
 * none is a stage of an optimizer. Those that passes append after partition and gradient are a kind of their own, as PASS_OP is. */
#define PROGRAM_OP(X, id, name, gradient, to, flops, bytes, recompute, sharding, check, traits, time, payload, run, lowering) \
    X(id, name, "", 0, gradient, to, flops, bytes, recompute, sharding, check, traits, time, NONE, payload, run, lowering)
#define PROGRAM_PASS_OP(X, id, name, flops, bytes, payload, run, lowering) \
    X(id, name, "", 0, none, 0xff, flops, bytes, COSTLY, none, general, 0, none, NONE, payload, run, lowering)

/* id, name, gradient, to, FLOPs, bytes, recompute, sharding, check, traits, time, payload, run, lowering */
#define OP_PROGRAM_MODEL_MAP(X)                                                                                                            \
    PROGRAM_OP(X, VIEW, "view", view, 0xff, none, none, SAME, view, view, TRAIT_LINEAR | TRAIT_STRIDED_DY | TRAIT_MONOTONE, view, view,    \
               NOTHING, none)                                                                                                              \
    PROGRAM_OP(X, SHUFFLE_COUNTS, "shuffle_counts", none, 0xff, none, operands, ONCE, none, general, 0, none, shuffle, SHUFFLE_COUNTS,     \
               none)                                                                                                                       \
    PROGRAM_OP(X, SHUFFLE, "shuffle", shuffle, 0x01, none, operands, COSTLY, none, general, TRAIT_LINEAR, none, shuffle, SHUFFLE, shuffle) \
    PROGRAM_OP(X, MOVE, "move", move, 0xff, none, operands, MOVE, none, move, 0, first, move, LOWERED, move)                               \
    PROGRAM_OP(X, RING_ATTENTION, "ring_attention", ring_attention, 0x07, ring_attention, operands, COSTLY, none, ring, 0, attention,      \
               across, LOWERED, ring)                                                                                                      \
    PROGRAM_OP(X, VOCAB_XENT, "vocab_xent", vocab_xent, 0x03, linear_xent, operands, COSTLY, none, vocab_loss, TRAIT_LOSS_BY_GRADIENT,     \
               none, across, LOWERED, vocab_xent)

/* id, name, FLOPs, bytes, payload, run, lowering */
#define OP_PROGRAM_PASS_MAP(X)                                                                                                \
    PROGRAM_PASS_OP(X, COMM_START, "start", none, operands, exchange, START, none)                                            \
    PROGRAM_PASS_OP(X, COMM_WAIT, "wait", none, operands, exchange, WAIT, none)                                               \
    PROGRAM_PASS_OP(X, LOAD, "load", none, operands, state, LOAD, none)                                                       \
    PROGRAM_PASS_OP(X, LOAD_WAIT, "load_wait", none, operands, state, OFFLOAD_WAIT, none)                                     \
    PROGRAM_PASS_OP(X, SAVE, "save", none, operands, state, SAVE, none)                                                       \
    PROGRAM_PASS_OP(X, SAVE_WAIT, "save_wait", none, operands, state, OFFLOAD_WAIT, none)                                     \
    PROGRAM_PASS_OP(X, RING_ATTENTION_GRAD, "ring_attention_grad", ring_attention_grad, operands, across, LOWERED, ring_grad) \
    PROGRAM_PASS_OP(X, VOCAB_XENT_GRAD, "vocab_xent_grad", linear_xent_grad, operands, across, LOWERED, vocab_xent_grad)

#define OP_PROGRAM_MAP(X) OP_PROGRAM_MODEL_MAP(X) OP_PROGRAM_PASS_MAP(X)

/* All ops: X(a complete row). Every table about ops is made of it, so that none can lack an op. */
#define OP_MAP(X) OP_KERNEL_MAP(X) OP_PROGRAM_MAP(X)

enum {
    PROGRAM_OPS_BEFORE = OPS - 1,
#define OP_ENUM(id, ...) OP_##id,
    OP_PROGRAM_MAP(OP_ENUM)
#undef OP_ENUM
        PROGRAM_OPS
};

/* What a MOVE (a redistribution) does over the ranks of comm, and the redistribution of its gradient (R replicated, S sharded, P partial;
 * ~P: replicated with a partial gradient). full, grain, zigzag describe the sharded dim, as in ls_placement; ALL_TO_ALL shards dim2
 * instead of dim.
 *     IDENTITY        R  -> ~P   no communication   gradient  P -> R  all-reduce        (ALL_REDUCE)
 *     ALL_REDUCE      P  -> R    all-reduce         gradient  no communication          (IDENTITY)
 *     ALL_GATHER      S  -> ~P   all-gather         gradient  P -> S  reduce-scatter    (REDUCE_SCATTER)
 *     REDUCE_SCATTER  P  -> S    reduce-scatter     gradient  S -> R  all-gather        (UNSHARD)
 *     SHARD           R  -> S    own shard          gradient  S -> R  all-gather        (UNSHARD)
 *     UNSHARD         S  -> R    all-gather         gradient  R -> S  own shard         (SHARD)
 *     SHARD_PARTIAL   ~P -> S    own shard          gradient  own shard, zeros elsewhere: a partial sum
 *     ALL_TO_ALL      S  -> S'   all-to-all         gradient  the inverse all-to-all    (ALL_TO_ALL) */
enum move_kind {
    MOVE_IDENTITY,
    MOVE_ALL_REDUCE,
    MOVE_ALL_GATHER,
    MOVE_REDUCE_SCATTER,
    MOVE_SHARD,
    MOVE_UNSHARD,
    MOVE_SHARD_PARTIAL,
    MOVE_ALL_TO_ALL
};
struct move {
    enum move_kind kind;
    ls_axis axis;  /* for messages, prints and counts */
    ls_comm *comm; /* borrowed */
    int dim, dim2;
    size_t full, full2, grain, grain2;
    int zigzag;     /* only for SHARD and UNSHARD */
    ls_redop redop; /* for reductions: how partial results are combined */
    bool floating;  /* its exchange may overlap with neighboring instructions */
    int chunks;     /* floating, n >= 2: a reduction also overlaps with the matmul before it, in n row chunks */
};
/* comm NULL: one rank. back: rows return from the experts to the tokens. */
struct shuffle {
    ls_comm *comm;
    bool back;
    size_t expected; /* expected number of rows of this rank's tokens */
    bool floating;   /* it may overlap with neighboring instructions */
    double factor;   /* room for rows that arrive, in multiples of an even load; 0: for as many as can arrive */
};
/* What LOAD and SAVE transfer: a kind (enum store_kind) of a store unit, all of it that this rank holds. */
struct unit_state {
    int unit, kind;
    const char *name; /* name of a state; else NULL */
};
/* The ranks over which RING_ATTENTION, VOCAB_XENT and their gradients communicate. */
struct across {
    ls_axis axis;
    ls_comm *comm;
    size_t full; /* T, or V */
    int zigzag;
};

int shuffle_ranks(const struct shuffle *s); /* shuffle.c */
const char *move_name(enum move_kind kind); /* "all_gather" */
const char *axis_name(ls_axis axis);        /* "tp" */

/* What a collective instruction does. The buffer of [total] elements is divided evenly: rank r of the comm's n has
 * [total*r/n, total*(r+1)/n).
 *   all_reduce      in[total] -> out[total], may be the same value
 *   reduce_scatter  in[total] -> out[own block]; out may be in's own block (a view)
 *   all_gather      in[own block] -> out[total]; in may be out's own block (a view)
 *   broadcast       out[total] from root; no in
 *   all_to_all      in[sum of counts] -> out[sum of recv_counts]
 *   send, recv      in[total] to, out[total] from rank root of the comm
 * If the caller gives counts (from program_counts()), the blocks have those sizes and total is their sum. With rows.comm it is an
 * all_to_all of rows whose counts are known at run time: the start is rows, counts, there -> rows (shuffle.c); total is the expected. */
struct exchange {
    ls_collective op;
    ls_comm *comm;
    ls_redop redop;
    int root;
    int id; /* start and wait of one exchange share it: 0 .. builder.exchanges - 1 */
    size_t total;
    size_t *counts;      /* [n], for the _v forms */
    size_t *recv_counts; /* [n], for all_to_all: counts + n */
    ls_axis axis;        /* for prints and counts; LS_AXIS_PP (0): unspecified */
    bool floating;       /* the overlap pass may start it earlier and wait for it later */
    int carried;         /* 1 + the store's unit whose values it gathers for a later run, which waits (store_gathers.c); 0: none */
    struct shuffle rows;
};

/* COMMUNICATION holds values of that role. With options.slots, SLOT holds, once per slot, inputs, outputs and values that outlive a
 * segment. */
enum arena { ARENA_ACTIVATIONS, ARENA_COMMUNICATION, ARENA_SLOT, ARENAS };
enum segment { SEG_FORWARD, SEG_BACKWARD, SEG_WEIGHTS, SEG_OPTIMIZER, SEGMENTS };

enum view_kind { VIEW_RESHAPE, VIEW_TRANSPOSE, VIEW_SLICE, VIEW_EXPAND, VIEW_STOP };
struct view_rule {
    enum view_kind kind;
    int dim0, dim1;
    size_t begin;
}; /* slice: dim0, begin */

struct value {
    const char *name; /* "h.3/linear", in the program's names; unique for inputs, outputs, bound values only */
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS]; /* elements */
    ptrdiff_t offset;          /* elements from the root's first */
    int root;                  /* owner of the bytes; the value itself if it is not a view */
    ls_role role;
    int param;         /* store index if this is a parameter, gradient or optimizer state; else -1 */
    int unit;          /* store unit if this is a unit's flat buffer (param -1); else -1 */
    const char *state; /* optimizer: name of the state */
    int flat;          /* 1 + the store unit whose parameters or gradients this buffer temporarily holds in the unit's order; 0: none */
    int leaf;          /* for a parameter or unit: the value that was made of it before this one; 0: none (struct leaves) */
    ls_placement place[LS_AXES]; /* all replicated if there is one rank */
    int time_dim;                /* the dim that counts the tokens of a sequence (time.c); -1: none */
    int block;                   /* 0: none */
    bool keep;                   /* lasts to the end of the program */
    bool flat_gradient;          /* flat holds gradients, or an activation holds that of `param` */
    int64_t least, most;         /* i32 inputs: the range that their readers accept; checked when written */
    ls_tensor *tensor;           /* bound; or NULL */
    /* memory pass, roots only */
    int first, last; /* positions in the order of all segments; last >= first */
    bool used;       /* an instruction touches it */
    enum arena arena;
    int shares;       /* in-place: id of the value whose bytes it reuses, else 0 */
    size_t bytes, at; /* size, offset in the arena */
    uint64_t streams; /* streams pass: bit k: an instruction of stream k touches it; bit 63: of stream 63 or later */
};

/* Plain data: a copy is another instruction; the program owns what its pointers refer to. */
struct instruction {
    int op;
    int nin, nout;
    ls_value in[CALL_OPERANDS], out[CALL_OPERANDS];
    struct op_attr attr;
    union { /* by op; accessed with instruction_view() .., which check the op */
        struct view_rule view;
        struct exchange exchange;
        struct move move;
        struct across across;
        struct shuffle shuffle;
        struct unit_state state;
    } own;
    ls_when when;
    int block;
    ls_phase phase;
    double flops;                /* FLOPs of the operation, including recomputation inside the kernel */
    const struct kernel *kernel; /* kernels pass; NULL for ops without kernels */
    int stream;                  /* streams pass: index in results.stream[]; -1: it runs on none */
    int first_wait, waits;       /* streams pass: results.wait[first_wait ..]: numbers of the instructions for whose end it waits */
    bool waited_for;             /* an instruction of another stream waits for it */
    size_t scratch_bytes, scratch_at;
    size_t live; /* memory pass: bytes of the arena in use while it runs, including its scratch */
};

/* What instructions of an op have besides operands and attributes: a member of the union. */
enum payload { PAYLOAD_none, PAYLOAD_view, PAYLOAD_exchange, PAYLOAD_move, PAYLOAD_across, PAYLOAD_shuffle, PAYLOAD_state };

static inline enum payload op_payload(int op)
{
#define PAYLOAD_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time, stage, payload, ...) \
    [OP_##id] = PAYLOAD_##payload,
    static const unsigned char payloads[PROGRAM_OPS] = { OP_MAP(PAYLOAD_ROW) };
#undef PAYLOAD_ROW

    return (enum payload)payloads[op];
}

/* How the executor runs an op. A switch over these has no default, so that the compiler names those that it lacks. */
enum run_kind {
    RUN_KERNEL,
    RUN_NOTHING, /* its output is a view of its input */
    RUN_START,   /* begins a collective */
    RUN_WAIT,    /* ends it */
    RUN_LOAD,    /* begins a transfer */
    RUN_SAVE,
    RUN_OFFLOAD_WAIT,   /* ends it */
    RUN_SHUFFLE_COUNTS, /* a collective, all at once */
    RUN_SHUFFLE,        /* likewise, with counts that are known when it runs */
    RUN_LOWERED         /* never: the lower pass has replaced it */
};

static inline enum run_kind op_run_kind(int op)
{
#define RUN_ROW(id, name, shapes, inplace, gradient, to, flops, bytes, recompute, sharding, check, traits, time, stage, payload, run, ...) \
    [OP_##id] = RUN_##run,
    static const unsigned char kinds[PROGRAM_OPS] = { OP_MAP(RUN_ROW) };
#undef RUN_ROW

    return (enum run_kind)kinds[op];
}

static inline bool instruction_is_view(const struct instruction *i) { return op_run_kind(i->op) == RUN_NOTHING; }
static inline bool instruction_is_start(const struct instruction *i) { return op_run_kind(i->op) == RUN_START; }
static inline bool instruction_is_load(const struct instruction *i) { return op_run_kind(i->op) == RUN_LOAD; }
static inline bool instruction_is_save(const struct instruction *i) { return op_run_kind(i->op) == RUN_SAVE; }
/* True if its outputs are written only until a later instruction, which waits. */
static inline bool instruction_is_begun(const struct instruction *i) { return instruction_is_start(i) || instruction_is_load(i); }
static inline bool instruction_is_wait(const struct instruction *i) { return op_run_kind(i->op) == RUN_WAIT; }
static inline bool instruction_is_exchange(const struct instruction *i) { return op_payload(i->op) == PAYLOAD_exchange; }

/* True for the start, and for the wait, of an exchange that outlives the run that starts it. */
static inline bool instruction_is_carried(const struct instruction *i) { return instruction_is_exchange(i) && i->own.exchange.carried; }

/* True for a start, a wait, or a collective that runs all at once. */
static inline bool instruction_communicates(const struct instruction *i)
{
    return instruction_is_exchange(i) || op_payload(i->op) == PAYLOAD_shuffle;
}

/* instruction_move(i) returns the move of instruction i; instruction_set_move(i, m) sets it to *m. Both assert that the op has a move. */
#define PAYLOAD_ACCESS(name, type)                                                   \
    static inline const type *instruction_##name(const struct instruction *i)        \
    {                                                                                \
        ASSERT(op_payload(i->op) == PAYLOAD_##name);                                 \
        return &i->own.name;                                                         \
    }                                                                                \
    static inline void instruction_set_##name(struct instruction *i, const type *to) \
    {                                                                                \
        ASSERT(op_payload(i->op) == PAYLOAD_##name);                                 \
        i->own.name = *to;                                                           \
    }
PAYLOAD_ACCESS(view, struct view_rule)
PAYLOAD_ACCESS(exchange, struct exchange)
PAYLOAD_ACCESS(move, struct move)
PAYLOAD_ACCESS(across, struct across)
PAYLOAD_ACCESS(shuffle, struct shuffle)
PAYLOAD_ACCESS(state, struct unit_state)
#undef PAYLOAD_ACCESS

/* The shuffle that a SHUFFLE, a SHUFFLE_COUNTS or the start of a SHUFFLE runs; NULL for other instructions. */
static inline const struct shuffle *instruction_rows(const struct instruction *i)
{
    if (op_payload(i->op) == PAYLOAD_shuffle) return &i->own.shuffle;
    return instruction_is_start(i) && i->own.exchange.rows.comm ? &i->own.exchange.rows : NULL;
}

static inline bool instruction_is_move(const struct instruction *i, enum move_kind kind)
{
    return op_payload(i->op) == PAYLOAD_move && instruction_move(i)->kind == kind;
}

bool instruction_runs(const struct instruction *i, int segments); /* exchange.c: decided by `when` and LS_LAST */

struct list {
    struct instruction *at;
    int n, room;
};

bool value_is_contiguous(const struct value *v);
size_t value_count(const struct value *v);
struct view value_view(const struct value *v, void *root_data); /* as a kernel sees it */
/* "[4,1024,768]" into a buffer of at least 96 bytes; returns it. */
char *value_shape(const struct value *v, char *text);
ls_status list_push(struct list *l, const struct instruction *i);
ls_status list_reserve(struct list *l, int room); /* instructions */
void list_free(struct list *l);

const char *phase_name(ls_phase phase);
const char *segment_name(enum segment s);
const char *program_op_name(int op);
const char *instruction_name(const struct instruction *i);        /* a collective by its own name */
const char *instruction_kernel_name(const struct instruction *i); /* of an exchange: its transport; "-": none. print.c */

#endif
