/* same_run.h - whether two commands are the same run of a lab: one may name sizes that the other leaves at their defaults. */
#ifndef LS_LEARN_SAME_RUN_H
#define LS_LEARN_SAME_RUN_H

#include <stdbool.h>
#include "base/text.h"

/* What identifies a run. */
struct same_run {
    struct text key;  /* for a lab "lab z6_offload --ranks 4", with the sizes that are not the lab's defaults; else the command */
    char program[64]; /* program of a lab with all sizes at their defaults; else "" */
};

/* labs: what `lockstep lab --json` prints, a line for each claim. Release with text_free(&out->key). */
ls_status same_run_of(const char *command, const char *labs, struct same_run *out);

#endif
