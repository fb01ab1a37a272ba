/* layout.h - the rules of ls_layout_check() that a pass asks again of what it was given. Each stands in layout.c alone. */
#ifndef LS_PARALLEL_LAYOUT_H
#define LS_PARALLEL_LAYOUT_H

#include <stdbool.h>
#include "lockstep/layout.h"

const char *layout_schedule_name(const ls_layout *l); /* "auto" resolved */

/* Layouts of which only a part is known; the rest as ls_layout_default(). */
ls_layout layout_of_mesh(const ls_mesh_shape *shape);
ls_layout layout_of_partition(const ls_mesh_shape *shape, const ls_partition_options *o);
ls_layout layout_of_data(const ls_mesh_shape *shape, const ls_data_options *o);

ls_status layout_check_axes(const ls_layout *l);                     /* sizes of the axes, in range */
ls_status layout_check_groups(const ls_layout *l);                   /* replicate and ep divide what they are parts of */
ls_status layout_check_data(const ls_layout *l);                     /* zero, replicas, buckets, types, offload */
ls_status layout_check_model(const ls_model *m, const ls_layout *l); /* heads, widths, vocabulary, experts, chunks; m: checked */
ls_status layout_check_sequence(const ls_layout *l);                 /* its tokens over cp, and with sp over tp */
ls_status layout_check_recompute(const ls_layout *l);
ls_status layout_check_stages(size_t layers, const ls_layout *l);
ls_status layout_check_in_flight(const ls_layout *l); /* of a program with slots */
/* Of a program whose weight gradients are computed in a segment of their own; schedule: the name that asks for it, NULL: not known. */
ls_status layout_check_split(const ls_layout *l, const char *schedule);

#endif
