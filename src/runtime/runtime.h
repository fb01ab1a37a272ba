/* runtime.h - what a program has while it runs, beside what was compiled: memory, the selected slot, exchanges in flight, watchers. */
#ifndef LS_RUNTIME_RUNTIME_H
#define LS_RUNTIME_RUNTIME_H

#include "ir/ir.h"

/* An operand of a bound call that lies `at` bytes after the beginning of a slot. */
struct slot_operand {
    void **data;
    size_t at;
};

typedef void program_watch_fn(void *ctx, const ls_program *p, const struct instruction *i, double began, double ended);

/* A fault that is injected (non_finite.h) into runs of that slot. name NULL: none. */
struct poison {
    const char *name;
    int slot;
};

struct run_state {
    bool runnable;
    int *last_run; /* [slots or 1] the segment whose values stand there now; 0: none */
    int *tag;      /* [slots or 1] the micro-batch there, as the caller counts them */
    bool ran_last; /* the last micro-batch of the step has been */
    void *arena[ARENAS];
    int slot;              /* selected */
    struct staged *staged; /* [nstaged], transfer.c */
    int nstaged;
    struct slot_operand *slot_operands; /* pointers that follow the selected slot */
    int nslot_operands;
    ls_work **work; /* [slots of exchanges] in flight */
    program_watch_fn *watch;
    void *watch_ctx;
    struct finding *finding; /* non_finite.h; NULL: runs do not look */
    struct poison poison;
};

/* Called after each instruction that ran, with its times (base_now). */
void program_watch(ls_program *p, program_watch_fn *fn, void *ctx);
/* For watchers: fn gets the operands of i, which has just run, where the host can touch them. What it changes in outputs is changed. */
typedef ls_status program_operands_fn(void *ctx, const struct call *c);
ls_status program_operands(const ls_program *p, const struct instruction *i, program_operands_fn *fn, void *ctx); /* transfer.c */
/* The slot selected now holds micro-batch `micro` from here on: messages name it. */
void program_tag(ls_program *p, int micro);

ls_status bind_pass(ls_program *p); /* execute.c: arena, pointers, prepare() */
/* bind_pass alone, for a program compiled with plan_only: several of one store are spread before the store is allocated. */
ls_status program_bind(ls_program *p);               /* compile.c */
void *program_data(const ls_program *p, ls_value v); /* execute.c: its first byte, in the slot selected */
void unbind(ls_program *p);
void staged_release(ls_program *p); /* transfer.c */
ls_status shuffle_bind(ls_program *p, struct instruction *i);
void shuffle_unbind(const ls_program *p, struct instruction *i);
ls_status shuffle_run(const ls_program *p, const struct instruction *i);
ls_status program_profile_text(const ls_program *p, char **text); /* seconds by op, largest first */

#endif
