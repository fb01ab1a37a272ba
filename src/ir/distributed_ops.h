/* distributed_ops.h - ops that compute across several ranks: emitted by the partition pass, expanded by the lower pass. */
#ifndef LS_IR_DISTRIBUTED_OPS_H
#define LS_IR_DISTRIBUTED_OPS_H

#include "ir/program.h"

/* vocab_xent.c. w: this rank's rows [first, first + v) of the a->full rows of the vocabulary. Returns the loss, the same on all ranks. */
ls_value program_vocab_xent(ls_program *p, ls_value x, ls_value w, ls_value targets, ls_value denominator, size_t first,
                            const struct across *a);
void vocab_xent_lower(ls_program *p, const struct instruction *i);
void vocab_xent_grad_lower(ls_program *p, const struct instruction *i);

/* ring_attention.c. q[B,t,H,D] k v[B,t,G,D], t this rank's shard of a->full tokens. Returns o. */
ls_value program_ring_attention(ls_program *p, ls_value q, ls_value k, ls_value v, int causal, const struct across *a);
void ring_lower(ls_program *p, const struct instruction *i);
void ring_grad_lower(ls_program *p, const struct instruction *i);

#endif
