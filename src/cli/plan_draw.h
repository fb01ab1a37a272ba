/* plan_draw.h - pictures that `lockstep plan` draws of a layout: its mesh, its pipeline's schedule. */
#ifndef LS_CLI_PLAN_DRAW_H
#define LS_CLI_PLAN_DRAW_H

#include "train/config/config.h"

/* machine: ranks on each; 0: not told. */
ls_status plan_draw_mesh(const struct config *c, int machine);
/* svg: a file to draw it into as well; NULL: none. */
ls_status plan_draw_schedule(const struct config *c, const char *svg);

#endif
