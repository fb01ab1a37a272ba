/* hooks.h - where the executor calls a program's hooks (lockstep/hook.h). */
#ifndef LS_RUNTIME_HOOKS_H
#define LS_RUNTIME_HOOKS_H

#include "ir/program.h"

/* Called for each instruction n of segment s that runs, before and after it. */
ls_status hooks_before(ls_program *p, enum segment s, int n);
ls_status hooks_after(ls_program *p, enum segment s, int n);

#endif
