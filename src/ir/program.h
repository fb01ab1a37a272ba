/* program.h - the inside of a program: values, instructions, segments.
 *
 * The passes in the order of ls_program_compile(): (partition), gradient, recompute, lower, (split), (data), kernels, overlap, memory,
 * bind. Each is one file and works on the lists below; partition and data are those of floor 5. Ids of values are indices; 0 is
 * the null value. A view has the id of the value that owns its bytes in `root`; views of views point at the same root.
 */
#ifndef LS_IR_PROGRAM_H
#define LS_IR_PROGRAM_H

#include <stdbool.h>
#include "base/base.h"
#include "lockstep/comm.h"
#include "lockstep/ops.h"
#include "kernels/kernel.h"

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

/* m applied to x: its output, of this rank's size and placement; LS_NONE and a sticky failure where x does not are laid out as m says. */
ls_value program_move(ls_program *p, const struct move *m, ls_value x); /* redistribute.c */
const char *move_name(enum move_kind kind);                             /* "gather" */
const char *axis_name(ls_axis axis);                                    /* "tp" */

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

/* Where instructions are appended, and how they are marked. Zeroed: forward, in every micro-batch, outside of blocks. A pass moves it in
 * scopes that nest: what begins one returns the cursor to which program_cursor_end() goes back. */
struct cursor {
    enum segment segment;
    ls_phase phase;
    ls_when when;
    int block;
    int depth; /* of scopes */
};

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

/* An operand of a bound call that lies `at` bytes after the beginning of a slot. */
struct slot_operand {
    void **data;
    size_t at;
};

struct instruction;
typedef void program_watch_fn(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended);

/* The pass of floor 5 that distributes a program over ranks; runs after lowering. Zeroed: one rank. */
struct distribution {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* The pass of floor 5 that cuts the forward: sizes become this rank's. Runs first. */
struct partition {
    ls_status (*pass)(ls_program *p, void *ctx);
    void (*release)(void *ctx);
    void *ctx;
};

/* Called by compile after each of these passes, and before the check of what the pass made: an edit of the program from outside, by which
 * tests inject faults (train/faults.h). unchecked: the checks of placements are skipped, so that the wrong program runs. Zeroed: none. */
enum edit_after { AFTER_PARTITION, AFTER_GRADIENT, AFTER_RECOMPUTE, AFTER_LOWER, AFTER_DATA_PARALLEL };
struct edit {
    ls_status (*edit)(ls_program *p, enum edit_after after, const void *ctx);
    const void *ctx;
    bool unchecked;
};

/* A pipeline stage that is not the whole model. in, dout: inputs, "stage.in" and "stage.dout"; out, din: outputs, "stage.out" and
 * "stage.din". The gradient pass begins with dout at out (and with 1 at the loss, where there is one) and leaves in's gradient in
 * din. LS_NONE where the stage is the first or the last. Set by the partition pass (in and out), the gradient pass (dout and din). */
struct stage_ends {
    ls_value in, out, din, dout;
};

/* A stream of a program's instructions; index: in the store's set, once bound. */
struct program_stream {
    const ls_comm *comm;
    int lane, index;
};

/* A fault that is injected (non_finite.h) into runs of that slot. name NULL: none. */
struct poison {
    const char *name;
    int slot;
};

struct ls_program {
    ls_store *store;
    ls_status status;
    char message[512];
    struct value *values; /* [0] is the null value */
    int nvalues, values_room;
    struct list list[SEGMENTS];
    char **blocks; /* names; [0] is "" */
    int nblocks;
    struct cursor cursor; /* where ops append now */
    ls_value loss;        /* of ls_backward; LS_NONE on a stage that has no share of it */
    bool backward;        /* ls_backward has been called */
    bool compiled, runnable;
    int *last_run;             /* [slots or 1] the segment whose values stand there now; 0: none */
    int *tag;                  /* [slots or 1] the micro-batch there, as the caller counts them */
    bool wants_last, ran_last; /* gradients are summed in the last micro-batch; it has been */
    ls_compile_options options;
    void *arena[ARENAS];
    size_t arena_bytes[ARENAS], live_peak; /* ARENA_SLOT: of one slot; live_peak: of the activations, all slots */
    /* several ranks */
    struct partition partition;
    bool local; /* values of the store that are made from here on have this rank's sizes */
    struct edit edit;
    struct stage_ends stage;
    int slot;                      /* selected */
    struct program_stream *stream; /* [nstreams]: compute, copy, those of comms; streams pass */
    int nstreams, *wait;
    struct staged *staged; /* [nstaged], transfer.c */
    int nstaged;
    struct slot_operand *slot_operands; /* pointers that follow the selected slot */
    int nslot_operands;
    struct distribution distribution;
    ls_comm *arena_comm; /* whose memory (ls_comm_alloc) ARENA_COMMUNICATION is; NULL: this rank's own */
    size_t **counts;     /* [ncounts], of exchanges */
    int ncounts;
    ls_work **work; /* [slots] exchanges in flight */
    int slots;
    program_watch_fn *watch;
    void *watch_ctx;
    struct finding *finding; /* non_finite.h; NULL: runs do not look */
    struct poison poison;
};

/* Called after each instruction that ran, with its times (base_now). */
void program_watch(ls_program *p, program_watch_fn *fn, void *ctx);
/* The slot selected now holds micro-batch `micro` from here on: messages name it. */
void program_tag(ls_program *p, int micro);

/* program.c: building */
struct value *program_value(ls_program *p, ls_value v); /* valid until the next value is made */
ls_value program_new_value(ls_program *p, const char *what, ls_dtype type, int ndim, const size_t *size);
/* Each begins a scope of the cursor: as given; in a segment, outside of blocks and in every micro-batch; in another phase, block or
 * micro-batch; as instruction i is marked. Returns the cursor as it was, for the end of the scope. */
struct cursor program_cursor_begin(ls_program *p, struct cursor to);
struct cursor program_cursor_segment(ls_program *p, enum segment segment, ls_phase phase);
struct cursor program_cursor_phase(ls_program *p, ls_phase phase);
struct cursor program_cursor_block(ls_program *p, int block);
struct cursor program_cursor_when(ls_program *p, ls_when when);
struct cursor program_cursor_like(ls_program *p, const struct instruction *i);
/* The innermost scope ends; `before` is what its beginning returned. */
void program_cursor_end(ls_program *p, struct cursor before);
/* Appends an instruction at the cursor. Null inputs are absent operands. Valid until the next one is appended; NULL once the program has
 * failed. */
struct instruction *program_append(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout,
                                   const ls_value *out);
/* The same; returns out[0], or LS_NONE. */
ls_value program_emit(ls_program *p, int op, const struct op_attr *attr, int nin, const ls_value *in, int nout, const ls_value *out);
/* Appends *i to the cursor's segment, marked as it is. */
void program_push(ls_program *p, const struct instruction *i);
/* Outputs of *i, which has just been appended, get the time dims that its op carries over. program_append() and program_view() do it. */
void program_carry_time(ls_program *p, const struct instruction *i);
/* counts[n] of an exchange, zeroed, which last as long as the program; NULL once it has failed. */
size_t *program_counts(ls_program *p, int n);
/* The instructions of a segment, which is empty now; the caller frees the list. */
struct list program_take(ls_program *p, enum segment segment);
ls_value program_view(ls_program *p, ls_value x, struct view_rule rule, int ndim, const size_t *size, const ptrdiff_t *stride,
                      ptrdiff_t offset);
ls_value program_param_value(ls_program *p, int param);                    /* of a declared parameter */
ls_value program_grad_value(ls_program *p, int param);                     /* declares the gradient in the store */
ls_value program_state_value(ls_program *p, int param, const char *state); /* declares the state in the store */
/* The flat buffer of a store's group, one dim: [total], or the elements that this rank holds where it is sharded. The kinds of
 * store.h; state: of STORE_STATE. Views of it (program_view) are how single parameters are reached. */
ls_value program_group_value(ls_program *p, int group, int kind, const char *state);
/* A value of role COMMUNICATION, one dim. */
ls_value program_comm_value(ls_program *p, const char *what, ls_dtype type, size_t count);
/* exchange.c: the executor's own instructions, appended like those of program_emit. in and out as struct exchange says (LS_NONE:
 * absent; all_reduce: the same value or two). Start fills e->slot, and e->counts where they are not given; the wait is given the
 * same three. Each start has one wait, in the same segment and with the same `when`, or in the optimizer's. Both are of phase
 * COMMUNICATE. */
void program_exchange_start(ls_program *p, struct exchange *e, ls_value in, ls_value out);
void program_exchange_wait(ls_program *p, const struct exchange *e, ls_value in, ls_value out);
void program_load(ls_program *p, int group, const char *state, ls_value out);
void program_save(ls_program *p, int group, const char *state, ls_value in);
ls_value program_find(const ls_program *p, const char *name); /* input, output or bound; LS_NONE */
/* Sticky failure: the first message stays; returns LS_NONE. */
ls_value program_fail(ls_program *p, const char *fmt, ...) LS_PRINTF(2, 3);
ls_value program_fail_by(ls_program *p, ls_status st); /* st and its message, which are somebody else's */
bool program_ok(const ls_program *p);
void program_bound(ls_program *p, ls_value x, int64_t least, int64_t most); /* narrows what may be written to x's root */
bool value_is_contiguous(const struct value *v);
size_t value_count(const struct value *v);
struct view value_view(const struct value *v, void *root_data); /* as a kernel sees it */
/* "[4,1024,768]" into a buffer of at least 96 bytes; returns it. */
char *value_shape(const struct value *v, char *text);
ls_status list_push(struct list *l, const struct instruction *i);
void list_free(struct list *l);

/* ops_shape.c */
ls_value program_copy(ls_program *p, ls_value x, ls_dtype type);                           /* always a fresh contiguous value */
ls_value program_expand(ls_program *p, ls_value x, int dim, int ndim, const size_t *size); /* x repeats along dim; -1: everywhere */
/* shuffle.c: there[n,e]; out, which shuffled rows go to. */
ls_value program_shuffle_counts(ls_program *p, ls_comm *comm, ls_value counts);
ls_value program_shuffle(ls_program *p, const struct shuffle *s, ls_value rows, ls_value counts, ls_value there, ls_value out);
size_t shuffle_bytes(const ls_program *p,
                     const struct instruction *i); /* that this rank sends, if experts are loaded evenly and nothing is dropped */
ls_status shuffle_bind(ls_program *p, struct instruction *i);
void shuffle_unbind(const ls_program *p, struct instruction *i);
ls_status shuffle_run(const ls_program *p, const struct instruction *i);
/* ops_experts.c: the most rows that the experts of so many samples get. */
size_t program_route_rows(size_t samples, size_t tokens, size_t experts, size_t chosen, size_t capacity);
/* ops.c: what every op needs */
bool program_same_shape(const ls_program *p, ls_value a, ls_value b);
/* Fails with "OP: NAME ..." unless x is given, floating, and of type `type` (LS_DTYPES: any). False: failed, or null in. */
bool program_operand(ls_program *p, const char *op, const char *name, ls_value x, ls_dtype type);

/* One pass a file */
ls_status gradient_pass(ls_program *p);  /* gradient_pass.c: loss -> SEG_BACKWARD */
ls_status recompute_pass(ls_program *p); /* recompute.c */
ls_status lower_pass(ls_program *p);     /* lower.c: instructions that stand for several */
ls_status overlap_pass(ls_program *p);   /* overlap.c: floating exchanges start early, are waited for late */
ls_status split_pass(ls_program *p);     /* compile.c: weight gradients into SEG_WEIGHTS */
ls_status kernels_pass(ls_program *p);   /* compile.c: chooses entries, asks for scratch */
ls_status memory_pass(ls_program *p);    /* memory.c: lifetimes, offsets, peak */
ls_status bind_pass(ls_program *p);      /* execute.c: arena, pointers, prepare() */
/* bind_pass alone, for a program compiled with plan_only: several of one store are spread before the store is allocated. */
ls_status program_bind(ls_program *p);               /* compile.c */
void *program_data(const ls_program *p, ls_value v); /* execute.c: its first byte, in the slot selected */
void unbind(ls_program *p);
void staged_release(ls_program *p); /* transfer.c */

/* compile.c: the program's edit, if it has one. Called by the passes of floor 5, and by compile after the others. */
ls_status program_edit(ls_program *p, enum edit_after after);

/* memory.c */
int program_slots(const ls_program *p);               /* options.slots, or 1 */
size_t program_activation_bytes(const ls_program *p); /* all slots and the arena that they share */

/* cost.c */
double flops_of(const ls_program *p, const struct instruction *i);          /* what the kernel does */
double flops_of_model(const ls_program *p, const struct instruction *i);    /* without recomputation inside it */
size_t instruction_bytes(const ls_program *p, const struct instruction *i); /* that it reads and writes */

const char *phase_name(ls_phase phase);
const char *segment_name(enum segment s);
const char *program_op_name(int op);
const char *instruction_name(const struct instruction *i);        /* a collective by its own name */
ls_status program_profile_text(const ls_program *p, char **text); /* seconds by op, largest first */

#endif
