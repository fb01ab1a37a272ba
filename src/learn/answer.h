/* answer.h - the answer of a card: what it runs is run, by this very command in a process of its own. */
#ifndef LS_LEARN_ANSWER_H
#define LS_LEARN_ANSWER_H

#include "learn/cards.h"

struct answer {
    double measured, claimed; /* in the card's unit; NAN: the run does not say it */
    int code;                 /* exit code of the run */
    double seconds;
};

/* Called with each line of what the run says, as it comes: rows of labs as "claimed measured verdict text", other output as it is. */
typedef void answer_line(void *ctx, const char *line);

/* What commands said: what several cards run is run once, also where one names sizes that another leaves at their defaults. Zeroed: empty.
 * With LAB_ROWS=FOLDER in the environment, rows of labs with all sizes at their defaults are read from FOLDER/PROGRAM.jsonl, where labs
 * have left them (LAB_JSON), if that file exists. */
struct answer_cache {
    struct answer_run_kept *kept;
    size_t count;
    char *labs; /* what `lockstep lab --json` prints */
};
void answer_cache_free(struct answer_cache *c);

/* Runs the card with the sizes of a variant; line may be NULL. The run ends with this process. LS_OK also if the run fails:
 * its code and its last words (as a line) say so. LS_EFORMAT: it ran, but the card's row is not there, or is not measured. cache
 * NULL: none. */
ls_status answer_run(const struct card *c, int variant, struct answer_cache *cache, answer_line *line, void *ctx, struct answer *out);

#endif
