/* stage.h - extracts the part of a model's forward that belongs to one pipeline stage.
 *
 * The program contains the complete forward. An instruction belongs to the stage that has its block; instructions before the first
 * block belong to the first stage, those after the last block to the last. Instructions that depend on no parameter (position tables,
 * casts of inputs) belong to every stage that reads them, and so do views. Exactly one value crosses each stage boundary. A scalar sum
 * to which several stages contribute (a loss with terms in the blocks) is split into one sum per stage.
 */
#ifndef LS_PARALLEL_PIPELINE_STAGE_H
#define LS_PARALLEL_PIPELINE_STAGE_H

#include "lockstep/layout.h"
#include "lockstep/pipeline.h"
#include "ir/program.h"

/* Removes from the forward what does not belong to the stage; runs before any other pass. The value that crosses becomes the input
 * "stage.in", keeping its id, and the output "stage.out"; both are recorded in p->results.stage. Inputs and outputs of other stages are
 * removed; p->loss becomes the sum of this stage's terms, LS_NONE if it has none. LS_EINVAL if more or less than one value crosses; the
 * message names them. */
ls_status stage_extract(ls_program *p, const ls_stage *stage);

/* Computes which parameters the stage reads, into reads[ls_store_count()]. p is the complete forward and does not change. */
ls_status stage_reads(ls_program *p, const ls_stage *stage, bool *reads);

/* The first pipeline rank whose programs have the same instructions as those of `rank`: both have neither the first nor the last stage, and
 * as many blocks in each chunk; else `rank` itself. Blocks of a transformer are alike, except where recomputation or FSDP units count them.
 * begin[stages * chunks + 1]. The ranks may differ in the micro-batches that are in flight. */
int stage_twin(const ls_layout *l, const ls_pipeline_schedule *s, const int *begin, int rank);

/* Computes the FLOPs of each block of the complete forward p, into cost[nblocks - 1], and those before and after the blocks. */
void stage_costs(const ls_program *p, double *cost, double *before, double *after);

#endif
