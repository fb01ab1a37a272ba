/* report.h - what a training run starts with and what came of it, as tables for people. */
#ifndef LS_CLI_REPORT_H
#define LS_CLI_REPORT_H

#include "train/run/trainer.h"

void report_start(const struct trainer *t);
void report_end(const struct trainer *t);

/* A word as a shell takes it: quoted when it has to be. Into out; returns out. */
char *report_quote(char *out, size_t room, const char *word);

#endif
