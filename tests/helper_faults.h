/* helper_faults.h - faults injected into the programs that a test opens. */
#ifndef HELPER_FAULTS_H
#define HELPER_FAULTS_H

#include "train/faults/faults.h"

/* The fault of all programs that are opened from here on; checked: the checks of placements run on them, and may refuse them. */
void faults_set(enum fault f, bool checked);
/* Called by what opens a program over several ranks, before it is compiled. */
void faults_give(ls_program *p, const ls_mesh *mesh);

#endif
