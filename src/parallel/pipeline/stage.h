/* stage.h - the part of a model's forward that a pipeline stage is.
 *
 * The forward was appended whole. An instruction belongs to the stage that has its block; outside of blocks, to the first stage in
 * front of them, to the last after them. What depends on no parameter (tables of positions, casts of inputs) belongs to every
 * stage that reads it, and so do views. Exactly one value crosses from a stage to the next. A sum of numbers that several stages
 * make (a loss with shares of its own in the blocks) falls into one sum a stage.
 */
#ifndef LS_PARALLEL_PIPELINE_STAGE_H
#define LS_PARALLEL_PIPELINE_STAGE_H

#include "lockstep/pipeline.h"
#include "ir/program.h"

/* Leaves of the forward what belongs to the stage, before any other pass. What crosses becomes the input "stage.in", keeping its id,
 * and the output "stage.out"; p->stage has both. Inputs and outputs of other stages are gone; p->loss is the sum of the stage's
 * shares, LS_NONE where it has none. LS_EINVAL where the values that cross are not one: the message names them. */
ls_status stage_cut(ls_program *p, const ls_stage *stage);

/* Of a whole forward: which parameters the stage reads: reads[ls_store_count()]. Changes nothing. */
ls_status stage_reads(ls_program *p, const ls_stage *stage, bool *reads);

/* Of a whole forward: FLOPs of each block, cost[nblocks - 1], before them and after. */
void stage_costs(const ls_program *p, double *cost, double *before, double *after);

#endif
