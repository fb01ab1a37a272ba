/* helper_layout.h - the programs of all ranks of a layout, compiled as a plan does. */
#ifndef HELPER_LAYOUT_H
#define HELPER_LAYOUT_H

#include "lockstep/layout.h"

/* LS_OK if the programs of every rank compile. A budget on a mesh is replaced by the first block, as a step does. */
ls_status layout_compile(const ls_model *m, const ls_layout *given);

#endif
