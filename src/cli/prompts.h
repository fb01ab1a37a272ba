/* prompts.h - the prompts of a file, one per line, for `generate --prompts`. */
#ifndef LS_CLI_PROMPTS_H
#define LS_CLI_PROMPTS_H

#include "train/run/generate.h"

struct prompts {
    const char *path;
    char *text;        /* the file, with a NUL for each line feed */
    const char **line; /* [n] */
    size_t n;
};

/* LS_EINVAL names a line that is not a prompt, or says that the file is empty. path is borrowed. */
ls_status prompts_read(const char *path, struct prompts *out);
void prompts_free(struct prompts *p); /* does nothing on a zeroed struct */

struct prompts_options {
    int64_t tokens; /* largest number of tokens of each; -1: `usual`, or as many as the model has positions for */
    size_t usual;
    size_t batch; /* texts at once */
    struct sampling sampling;
};
/* Prints each prompt with its number and the text that the model generates after it, in the order of the file; then, on standard error, how
 * many tokens were generated per second. */
ls_status prompts_run(const struct trained *t, const struct prompts *p, const struct prompts_options *o);

#endif
