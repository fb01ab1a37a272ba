/* ir.h - the program as data: ops, values, instructions, lists. Nothing here knows how a program is built, transformed or run.
 *
 * Ids of values are indices; 0 is the null value. A view has the id of the value that owns its bytes in `root`; views of views point at
 * the same root. builder.h makes programs, passes.h transforms them, runtime.h runs them; program.h is the whole.
 */
#ifndef LS_IR_IR_H
#define LS_IR_IR_H

#include <stdbool.h>
#include "base/base.h"
#include "kernels/kernel.h"
#include "lockstep/comm.h"
#include "lockstep/ops.h"

/* OP_VIEW computes nothing: its output is a view of its input. The others are the executor's own:
 *   COMM_START  in[0] -> out[0], a collective begins; both are the comm's until its wait
 *   COMM_WAIT   in[0], out[0] as of its start (so that both live till here); later instructions may read out[0]
 *   LOAD        -> out[0] = optimizer state of a group from where it is offloaded
 *   SAVE        in[0] -> there
 *   SHUFFLE_COUNTS, SHUFFLE  rows of tokens to the ranks of their experts and back, see shuffle.c
 * The next ones stand for several instructions: the partition pass writes them, they have gradient rules, are recomputed like any
 * other, and the lower pass (lower.c) puts what they stand for in their place:
 *   MOVE        in[0] -> out[0], the same value in another placement (struct move)
 *   RING_ATTENTION        q[B,t,H,D] k v[B,t,G,D] -> o lse[B,H,t], t this rank's slice of T; keys and values go round (ring_attention.c)
 *   RING_ATTENTION_GRAD   q k v o lse do -> dq dk dv
 *   VOCAB_XENT            as LINEAR_XENT, of this rank's rows of w; x whole: x[R,C] w[v,C] y[R] denom? -> loss lse[R] (vocab_xent.c)
 *   VOCAB_XENT_GRAD       as LINEAR_XENT_GRAD; dx is a partial sum
 */
/* The columns of op_list.h; no kernel takes them, so they have no shapes. */
#define OP_PROGRAM_MODEL_MAP(X)                                                                                              \
    X(VIEW, "view", "", 0, view, 0xff, none, none, SAME, view, view, TRAIT_LINEAR | TRAIT_STRIDED_DY | TRAIT_MONOTONE, view) \
    X(SHUFFLE_COUNTS, "shuffle_counts", "", 0, none, 0xff, none, operands, ONCE, none, general, 0, none)                     \
    X(SHUFFLE, "shuffle", "", 0, shuffle, 0x01, none, operands, COSTLY, none, general, TRAIT_LINEAR, none)                   \
    X(MOVE, "move", "", 0, move, 0xff, none, operands, MOVE, none, move, 0, first)                                           \
    X(RING_ATTENTION, "ring_attention", "", 0, attention, 0x07, ring_attention, operands, COSTLY, none, ring, 0, attention)  \
    X(VOCAB_XENT, "vocab_xent", "", 0, linear_xent, 0x03, linear_xent, operands, COSTLY, none, loss, TRAIT_LOSS_BY_GRADIENT, none)
#define OP_PROGRAM_PASS_MAP(X)                                                          \
    X(COMM_START, "start", "", 0, none, operands)                                       \
    X(COMM_WAIT, "wait", "", 0, none, operands)                                         \
    X(LOAD, "load", "", 0, none, operands)                                              \
    X(SAVE, "save", "", 0, none, operands)                                              \
    X(RING_ATTENTION_GRAD, "ring_attention_grad", "", 0, ring_attention_grad, operands) \
    X(VOCAB_XENT_GRAD, "vocab_xent_grad", "", 0, linear_xent_grad, operands)

enum {
    PROGRAM_OPS_BEFORE = OPS - 1,
#define OP_ENUM(id, ...) OP_##id,
    OP_PROGRAM_MODEL_MAP(OP_ENUM) OP_PROGRAM_PASS_MAP(OP_ENUM)
#undef OP_ENUM
        PROGRAM_OPS
};

/* What a MOVE (a redistribution) does over the ranks of comm, and the move that its gradient takes (R replicated, S shard, P partial;
 * ~P: replicated with a partial gradient). whole, grain, zigzag: of the sharded dim, as in ls_placement; ALL_TO_ALL shards dim2
 * instead of dim.
 *     IDENTITY        R  -> ~P   nothing moves      gradient  P -> R  all-reduce        (ALL_REDUCE)
 *     ALL_REDUCE      P  -> R    all-reduce         gradient  nothing moves             (IDENTITY)
 *     ALL_GATHER      S  -> ~P   all-gather         gradient  P -> S  reduce-scatter    (REDUCE_SCATTER)
 *     REDUCE_SCATTER  P  -> S    reduce-scatter     gradient  S -> R  all-gather        (UNSHARD)
 *     SHARD           R  -> S    own shard          gradient  S -> R  all-gather        (UNSHARD)
 *     UNSHARD         S  -> R    all-gather         gradient  R -> S  own shard         (SHARD)
 *     SHARD_PARTIAL   ~P -> S    own shard          gradient  own shard, zeros elsewhere: a partial sum
 *     ALL_TO_ALL      S  -> S'   all-to-all         gradient  the way back              (ALL_TO_ALL) */
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
    size_t whole, whole2, grain, grain2;
    int zigzag;     /* SHARD and UNSHARD alone */
    ls_redop redop; /* the reductions: of the partial results */
    int floating;   /* 1: its exchange may overlap with what stands around it; n >= 2: and REDUCE's with the product before it, in n
                       parts */
};
/* comm NULL: one rank. back: from the experts to the tokens. */
struct shuffle {
    ls_comm *comm;
    bool back;
    size_t expected; /* rows of the own tokens */
};
/* What LOAD and SAVE move: a state of a group of the store. */
struct group_state {
    int group;
    const char *name;
};
/* Over which ranks RING_ATTENTION, VOCAB_XENT and their gradients go round or add up. */
struct across {
    ls_axis axis;
    ls_comm *comm;
    size_t whole; /* T, or V */
    int zigzag;
};

const char *move_name(enum move_kind kind); /* "all_gather" */
const char *axis_name(ls_axis axis);        /* "tp" */

/* What a collective instruction does. The big buffer of [total] elements is cut evenly: rank r of the comm's n has
 * [total*r/n, total*(r+1)/n).
 *   all_reduce      in[total] -> out[total], may be the same value
 *   reduce_scatter  in[total] -> out[own block]; out may be in's own block (a view)
 *   all_gather      in[own block] -> out[total]; in may be out's own block (a view)
 *   broadcast       out[total] from root; no in
 *   all_to_all      in[sum of counts] -> out[sum of recv_counts]
 *   send, recv      in[total] to, out[total] from rank root of the comm
 * counts given by the caller (of program_counts()) cut unevenly instead, and say what total is. */
struct exchange {
    ls_collective op;
    ls_comm *comm;
    ls_redop redop;
    int root;
    int slot; /* start and wait of one exchange share it: 0 .. p->slots - 1 */
    size_t total;
    size_t *counts;      /* [n], of the _v forms */
    size_t *recv_counts; /* [n], of all_to_all: counts + n */
    ls_axis axis;        /* for prints and counts; LS_AXIS_PP, 0: not told */
    bool floating;       /* the overlap pass may start it earlier and wait for it later */
};

/* Values of role COMMUNICATION are in the second. The third, with options.slots: what lasts from one segment to another, inputs and
 * outputs, once a slot. */
enum arena { ARENA_ACTIVATIONS, ARENA_COMMUNICATION, ARENA_SLOT, ARENAS };
enum segment { SEG_FORWARD, SEG_BACKWARD, SEG_WEIGHTS, SEG_OPTIMIZER, SEGMENTS };

enum view_kind { VIEW_RESHAPE, VIEW_TRANSPOSE, VIEW_SLICE, VIEW_EXPAND, VIEW_STOP };
struct view_rule {
    enum view_kind kind;
    int dim0, dim1;
    size_t begin;
}; /* slice: dim0, begin */

struct value {
    char *name; /* "h.3/linear"; unique for inputs, outputs, bound values only */
    ls_dtype dtype;
    int ndim;
    size_t size[LS_DIMS];
    ptrdiff_t stride[LS_DIMS]; /* elements */
    ptrdiff_t offset;          /* elements from the root's first */
    int root;                  /* owner of the bytes; itself when no view */
    ls_role role;
    int param;          /* store index of a parameter, gradient or optimizer value; else -1 */
    int group;          /* store group whose flat buffer this is (param -1); else -1 */
    const char *state;  /* optimizer: which */
    int flat;           /* 1 + the store group whose parameters, or their gradients, stand here in its order for a while; 0: none */
    bool flat_gradient; /* gradients */
    ls_placement place[LS_AXES]; /* all replicated on one rank */
    int time_dim;                /* it counts the tokens of a sequence (time.c); -1: none */
    int block;                   /* 0: none */
    bool keep;                   /* lasts to the end of the program */
    int64_t least, most;         /* i32 inputs: what their readers can take; checked when written */
    ls_tensor *tensor;           /* bound; or NULL */
    /* memory pass, roots only */
    int first, last; /* positions in the order of all segments; last >= first */
    bool used;       /* an instruction touches it */
    enum arena arena;
    int shares;       /* in-place: id of the value whose bytes it takes over, else 0 */
    size_t bytes, at; /* size, offset in the arena */
    uint64_t streams; /* streams pass: bit k: an instruction of stream k touches it; 63: of that one or later ones */
};

/* Plain data: a copy is another instruction, and what its pointers lead to belongs to the program. */
struct instruction {
    int op;
    int nin, nout;
    ls_value in[CALL_OPERANDS], out[CALL_OPERANDS];
    struct op_attr attr;
    union { /* by op; read and written by instruction_view() .., which check the op */
        struct view_rule view;
        struct exchange exchange;
        struct move move;
        struct across across;
        struct shuffle shuffle;
        struct group_state state;
    } own;
    struct shuffle_host *host; /* of SHUFFLE_COUNTS, SHUFFLE; bound */
    ls_when when;
    int block;
    ls_phase phase;
    double flops;                /* of the operation, recomputation inside the kernel included */
    const struct kernel *kernel; /* kernels pass; NULL for OP_VIEW */
    struct call *call;           /* bound operands; NULL until compiled */
    int stream;                  /* streams pass: of p->stream[]; -1: it runs on none */
    int first_wait, waits;       /* streams pass: p->wait[first_wait ..]: numbers of instructions whose ends it waits for */
    bool waited_for;             /* by an instruction of another stream */
    struct device_event *end;    /* recorded after it, if it is waited for; bound */
    size_t scratch_bytes, scratch_at;
    size_t live;    /* memory pass: bytes of the arena in use while it runs, its scratch included */
    double seconds; /* spent in all runs */
    uint64_t runs;
};

/* What instructions of an op have beside operands and attributes: which member of the union, its type, and whose it is. */
enum payload { PAYLOAD_none, PAYLOAD_view, PAYLOAD_exchange, PAYLOAD_move, PAYLOAD_across, PAYLOAD_shuffle, PAYLOAD_state };

static inline enum payload op_payload(int op)
{
    switch (op) {
    case OP_VIEW: return PAYLOAD_view;
    case OP_COMM_START:
    case OP_COMM_WAIT: return PAYLOAD_exchange;
    case OP_MOVE: return PAYLOAD_move;
    case OP_RING_ATTENTION:
    case OP_RING_ATTENTION_GRAD:
    case OP_VOCAB_XENT:
    case OP_VOCAB_XENT_GRAD: return PAYLOAD_across;
    case OP_SHUFFLE_COUNTS:
    case OP_SHUFFLE: return PAYLOAD_shuffle;
    case OP_LOAD:
    case OP_SAVE: return PAYLOAD_state;
    default: return PAYLOAD_none;
    }
}

/* instruction_move(i): the move of instruction i; instruction_set_move(i, m): it becomes *m. An instruction of another op stops. */
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
PAYLOAD_ACCESS(state, struct group_state)
#undef PAYLOAD_ACCESS

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
void list_free(struct list *l);

const char *phase_name(ls_phase phase);
const char *segment_name(enum segment s);
const char *program_op_name(int op);
const char *instruction_name(const struct instruction *i); /* a collective by its own name */

#endif
