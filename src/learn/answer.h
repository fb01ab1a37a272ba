/* answer.h - the answer of a card: runs the card's command, with this executable, in a process of its own. */
#ifndef LS_LEARN_ANSWER_H
#define LS_LEARN_ANSWER_H

#include "learn/cards.h"

struct answer {
    double measured, claimed; /* in the card's unit; NAN: the run does not print it */
    int code;                 /* exit code of the run */
    double seconds;
};

/* Called with each line that the run prints, as it comes: rows of labs as "claimed measured verdict text", other output as it is. */
typedef void answer_line(void *ctx, const char *line);

/* A cache of the output of commands: a command that several cards have runs once, even if one card names sizes that another leaves at their
 * defaults. Zeroed: empty. With LAB_ROWS=FOLDER in the environment, rows of labs with all sizes at their defaults are read from
 * FOLDER/PROGRAM.jsonl, where labs have written them (LAB_JSON), if that file exists. */
struct answer_cache {
    struct answer_run_kept *kept;
    size_t count;
    char *labs; /* what `lockstep lab --json` prints */
};
void answer_cache_free(struct answer_cache *c);

/* Runs the card with the sizes of a variant; line may be NULL. The run ends with this process. LS_OK also if the run fails: its exit code
 * and last error line (passed as a line) show that. LS_EFORMAT: it ran, but the card's row is missing or not measured. cache NULL: none. */
ls_status answer_run(const struct card *c, int variant, struct answer_cache *cache, answer_line *line, void *ctx, struct answer *out);

#endif
