/* framework.h - what the programs of published runs hold in a GPU's memory: frameworks on PyTorch that keep other things than lockstep.
 *
 * A plan's own bytes are exact, but those of lockstep's programs. For a table of published runs (`lockstep plan --cases`) the bytes follow
 * from what the source of their framework keeps. Per parameter: weights, gradients and optimizer state. Per token of a micro-batch in
 * flight and block, with width h, FFN width f, a heads, k key heads and s tokens in a sample, in half types:
 *
 *   8 h                 inputs and outputs of two norms          2 h        dropout's masks, where there is dropout
 *   4 h + 4 h k / a     queries, keys, values and what attention returns
 *   8 f or 4 f          a gated FFN, or one with GELU            5 a s      scores, softmax and its dropout, unless attention is fused
 *
 * (Korthikanti et al. 2022, section 4.1, for GPT's blocks; gated ones by the same count.) cp divides the tokens; tp divides all lines
 * except the first, and with sequence parallelism that one too. A program that keeps the gathered inputs of its column-parallel matmuls
 * holds 4 h of them undivided. Selective recomputation drops the scores; torchtitan's keeps every second matmul's output: 6.5 h + 2 h k / a
 * + 2 f. Full recomputation keeps 2 h, and one block's activations while it is repeated. The last stage holds its logits several times
 * while it computes their loss. If runs hold more than this count, the rest is a share of the activations, fitted for each framework.
 */
#ifndef LS_PLAN_FRAMEWORK_H
#define LS_PLAN_FRAMEWORK_H

#include <stdbool.h>
#include "lockstep/layout.h"

struct framework;

/* The framework that a run's source names, or NULL. */
const struct framework *framework_of(const char *source);
const char *framework_name(const struct framework *f);

/* A model, as tables of runs describe it. */
struct framework_model {
    int layers;
    double hidden, ffn, heads, kv_heads, vocab, seq_len;
    bool gated, tied, fused_attention, f32_gradients;
};

/* Bytes of the rank that holds the most. twice: the schedule holds twice as many micro-batches as 1F1B (ZB-2p). The layout must have passed
 * ls_layout_check(). LS_ENOMEM if out of memory. */
ls_status framework_bytes(const struct framework *f, const struct framework_model *m, const ls_layout *l, bool twice, double *out);

#endif
