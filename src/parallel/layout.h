/* layout.h - the rules of ls_layout_check() that passes and calls apply, too, to programs that were built without a layout. Each rule is
 * written once, in layout.c. */
#ifndef LS_PARALLEL_LAYOUT_H
#define LS_PARALLEL_LAYOUT_H

#include <stdbool.h>
#include "lockstep/layout.h"

const char *layout_schedule_name(const ls_layout *l); /* with "auto" resolved */
const char *layout_method_name(ls_method m);          /* as parallel.method has it */
int layout_workers(const ls_layout *l);               /* the ranks that compute samples: dp, minus the one that only serves (ASYNC) */
/* Under the layout's schedule; without stages 1 and false. */
int layout_least_chunks(const ls_layout *l); /* least chunks that a rank can have */
bool layout_splits(const ls_layout *l);      /* weight gradients are actions of their own */
bool layout_is_v(const ls_layout *l);        /* the chunks of a rank are placed in a V */

/* Gathers of updated parameters overlap the next forward (zero/carry.c). */
bool layout_carries_gathers(const ls_layout *l);

/* The fewest micro-batches of micro_batch samples in which dp ranks compute `samples` per step. */
int64_t layout_micro_batches(int64_t samples, int64_t dp, int64_t micro_batch);
/* Micro-batches that a step has if nothing says how many samples: enough to fill a pipeline. */
int64_t layout_usual_micro_batches(int64_t pp);

/* Layouts of which only some fields are known; the others are those of ls_layout_default(). */
ls_layout layout_of_mesh(const ls_mesh_shape *shape);
ls_layout layout_of_partition(const ls_mesh_shape *shape, const ls_partition_options *o);
ls_layout layout_of_data(const ls_mesh_shape *shape, const ls_data_parallel_options *o);

ls_status layout_check_axes(const ls_layout *l);                     /* the axis sizes and their product are in range */
ls_status layout_check_ranks(const ls_layout *l, int64_t ranks);     /* the product of the axes is `ranks`; l: checked */
ls_status layout_check_groups(const ls_layout *l);                   /* replicate divides dp; ep divides the ranks it splits */
ls_status layout_check_data_parallel(const ls_layout *l);            /* zero, replicas, method, buckets, types, offload */
ls_status layout_check_model(const ls_model *m, const ls_layout *l); /* heads, widths, vocabulary, experts, chunks; m: checked */
ls_status layout_check_sequence(const ls_layout *l);                 /* its tokens are enough for cp, and with sp for tp */
ls_status layout_check_recompute(const ls_layout *l);
ls_status layout_check_in_backward(const ls_layout *l);
/* with: what the model has whose statistics are those of all ranks ("experts", "batch norms"); NULL: nothing. */
ls_status layout_check_async(const ls_layout *l, const char *with);
ls_status layout_check_stages(size_t layers, const ls_layout *l);
/* The stages that a layout names, of `least` to `most` blocks: begin[pp * vpp + 1]. *count: how many, pp * vpp + 1 if there are too many.
 * LS_EINVAL if they are not numbers in that range. */
ls_status layout_read_stages(const ls_layout *l, int least, int most, int *begin, int *count);
ls_status layout_check_stage(const ls_stage *s, int layers); /* a stage with given boundaries */
ls_status layout_check_in_flight(const ls_layout *l);        /* for a program with slots */

#endif
