/* report.h - prints a training run's settings and results. */
#ifndef LS_CLI_REPORT_H
#define LS_CLI_REPORT_H

#include "train/run/trainer.h"

void report_start(const struct trainer *t);
void report_end(const struct trainer *t);

/* Quotes a word for a shell if necessary; writes it into out and returns out. */
char *report_quote(char *out, size_t room, const char *word);

#endif
