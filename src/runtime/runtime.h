/* runtime.h - the state of a running program: memory, the selected slot, exchanges in flight, watchers. */
#ifndef LS_RUNTIME_RUNTIME_H
#define LS_RUNTIME_RUNTIME_H

#include "ir/ir.h"

/* An operand of a bound call at offset `at` of a slot. */
struct slot_operand {
    void **data;
    size_t at;
};

typedef void program_watch_fn(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended);

/* An injected fault: called after each instruction that runs in the slot, and may change its outputs. fn NULL, unless src/train/faults has
 * armed one. */
struct run_fault {
    ls_status (*fn)(const void *ctx, ls_program *p, const struct instruction *i);
    const void *ctx;
    int slot;
};

/* What the runtime keeps of an instruction. */
struct instruction_run {
    struct call *call;         /* bound operands; NULL for views */
    struct device_event *end;  /* recorded after it, if another instruction waits for it */
    struct shuffle_host *host; /* for SHUFFLE_COUNTS, SHUFFLE and starts of it */
    int multi;                 /* instructions of the list, from this one on, that are one launch; 0, 1: only this one */
    double seconds;            /* total over all runs. On a device with streams those in which the host enqueues, unless it waits for each
                                * instruction: with a watcher, or after program_launch_singly() */
    uint64_t runs;
};

struct run_state {
    bool runnable;
    struct instruction_run *instruction; /* of all lists, one after the other; made when the program is bound */
    struct call *calls;                  /* those of all instructions that have one */
    size_t reserved;                     /* bytes of these two that a plan counts and does not take; 0: none */
    int *last_run;                       /* [slots or 1] the segment whose values are in the slot; 0: none */
    int *tag;                            /* [slots or 1] the micro-batch in the slot, as the caller numbers them */
    bool ran_last;                       /* the last micro-batch of the step has run */
    bool no_update;                      /* updates in backward: a gradient of this backward is not finite, so nothing more is updated */
    void *block[ARENAS], *arena[ARENAS]; /* as allocated, and from where values are counted */
    int slot;                            /* the selected slot */
    struct staged *staged;               /* [nstaged], transfer.c */
    int nstaged;
    struct slot_operand *slot_operands; /* pointers that follow the selected slot */
    int nslot_operands;
    ls_work **work; /* [exchanges] exchanges in flight */
    program_watch_fn *watch;
    void *watch_ctx;
    struct hooks *hooks;     /* hooks.h; NULL: none */
    struct graphs *graphs;   /* graphs.h; NULL: none */
    struct multi *multi;     /* multi_launch.h; NULL: none */
    bool singly;             /* program_launch_singly() */
    struct finding *finding; /* non_finite.h; NULL: runs do not record findings */
    struct run_fault fault;
};

/* What is kept of an instruction of the program's lists, and its call. The program is bound. */
struct instruction_run *instruction_run(const ls_program *p, const struct instruction *i); /* bind.c */
struct call *instruction_bound(const ls_program *p, const struct instruction *i);

/* fn is called after each instruction, with its start and end time (base_now). On a device with streams the host then waits for each. */
void program_watch(ls_program *p, program_watch_fn *fn, void *ctx);
/* For watchers: calls fn with the operands of i, which has just run, in host memory. Changes to outputs take effect. */
typedef ls_status program_operands_fn(void *ctx, const struct call *c);
ls_status program_operands(const ls_program *p, const struct instruction *i, program_operands_fn *fn, void *ctx); /* transfer.c */
/* Labels the selected slot with micro-batch `micro`, for messages. */
void program_tag(ls_program *p, int micro);

/* bind.c: counts in the ledger what is kept of each instruction, instead of allocating it: for plans. */
ls_status runs_reserve(ls_program *p);
ls_status bind_pass(ls_program *p); /* bind.c: allocates arenas, resolves pointers, calls prepare() */
/* Runs bind_pass for a program compiled with plan_only: several programs of one store are distributed before the store is allocated. */
ls_status program_bind(ls_program *p);               /* compile.c */
void *program_data(const ls_program *p, ls_value v); /* bind.c: the first byte of v in the selected slot */
void unbind(ls_program *p);
void staged_release(ls_program *p); /* transfer.c */
/* The value that the host may read or write by that name; count must be its own. */
ls_status transfer_find(const ls_program *p, const char *name, size_t count, int *out);
/* Enqueues a copy of the value's bytes to host, which must not be touched until *stream is there. */
ls_status transfer_out(const ls_program *p, int value, void *host, size_t count, struct device_stream **stream);
ls_status shuffle_bind(ls_program *p, const struct instruction *i);
void shuffle_unbind(const ls_program *p, struct instruction_run *r);
ls_status shuffle_run_counts(const ls_program *p, const struct instruction *i);
/* Exchanges the rows, or begins to: *work is waited for. work NULL: at once. What the exchange leaves of the output is zeroed. */
ls_status shuffle_run_rows(const ls_program *p, const struct instruction *i, ls_work **work);
/* How many graphs (graphs.h) the last micro-batch of a step has, and the instructions that they take of all. */
struct graph_counts {
    int graphs, instructions, all;
};
struct graph_counts program_graphs(const ls_program *p);
/* From now on each instruction is launched by itself and, on a device with streams, waited for, so that its seconds are the device's. A
 * collective that has been started is not; its seconds are those in which others waited for it. */
void program_launch_singly(ls_program *p);
/* It is in this run: one looks at single instructions (watchers, hooks, check_finite, injected faults), or program_launch_singly() was
 * called. */
bool program_launches_singly(const ls_program *p);
/* profile.c: seconds by op since the program was bound or the profile was cleared, largest first. */
ls_status program_profile_text(const ls_program *p, char **text);
void program_profile_clear(ls_program *p);

#endif
