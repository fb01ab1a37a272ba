/* helper_partition.h - one forward and backward of a small model under a partition, and the same on one rank. */
#ifndef HELPER_PARTITION_H
#define HELPER_PARTITION_H

#include "lockstep/nn.h"
#include "lockstep/parallel.h"
#include "ir/program.h"

struct partition_case {
    const char          *name;
    ls_model             model;
    ls_mesh_shape        shape;
    ls_partition_options options;
    size_t               batch, time;
    ls_recompute         recompute;
    int                  fuse_loss;
    void (*build)(ls_program *p, const struct partition_case *c); /* NULL: partition_build() */
    ls_dtype type;                                                /* type of the store: f32, or f64 to compare formulas without rounding */
};

/* GPT-2 and Llama of a few hundred weights: heads of 4 elements. */
ls_model partition_gpt2(size_t heads, size_t ffn, size_t vocab, double dropout);
ls_model partition_llama(size_t heads, size_t kv_heads, size_t ffn, size_t vocab, int tied);

/* Mixtral or Qwen3-MoE of that size, with 4 heads. */
ls_model partition_experts(ls_architecture family, size_t experts, size_t chosen, size_t ffn, size_t shared);

/* Inputs tokens and targets [batch,time], denominator and the model's other inputs; backward from the model's loss. */
void partition_build(ls_program *p, const struct partition_case *c);

/* A store with a program of loss and backward (inputs tokens, targets, denominator, step; samples with experts), marked, compiled.
 * mesh NULL: not marked. */
struct partitioned { ls_store *store; ls_program *program; };
ls_status partition_open(const struct partition_case *c, const ls_mesh *mesh, bool plan_only, struct partitioned *out);
void      partition_close(struct partitioned *p);
/* Loss and complete gradients, [all elements] one after another, added up over the ranks. mesh NULL: of one rank. */
ls_status partition_run(const struct partition_case *c, const ls_mesh *mesh, double *loss, double **gradients, size_t *count);
/* On every rank of world: compares the case with a single rank. NULL if all is within `rounding` of each tensor's norm. */
const char *partition_differs(const struct partition_case *c, ls_comm *world, double rounding);
/* Exchanges of one kind over an axis in a segment; bytes: what this rank sends in them (may be NULL). */
int partition_exchanges(const ls_program *p, enum segment s, ls_collective op, ls_axis a, size_t *bytes);

#endif
