/* plan_draw.h - draws a layout for `lockstep plan`: its mesh and its pipeline's schedule. */
#ifndef LS_CLI_PLAN_DRAW_H
#define LS_CLI_PLAN_DRAW_H

#include "train/config/config.h"

/* machine: number of ranks on each machine; 0: machines are not shown. */
ls_status plan_draw_mesh(const struct config *c, int machine);
/* svg: file that the drawing is also written to; NULL: none. */
ls_status plan_draw_schedule(const struct config *c, const char *svg);

#endif
