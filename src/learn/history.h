/* history.h - the reviews of cards, in an SQLite database; the only place that uses SQLite.
 *
 * A review is written in one transaction and is on the disk when history_add() returns: however the process ends, earlier reviews are
 * complete, and none is partial. What is due is computed from the reviews each time. Several processes may use one database.
 */
#ifndef LS_LEARN_HISTORY_H
#define LS_LEARN_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include "learn/fsrs.h"
#include "lockstep/status.h"

typedef struct history history;

struct review {
    int64_t at;                 /* seconds since 1970 */
    const char *card, *sizes;   /* "P-05"; the run with its sizes, "lab p2 --stages 4" */
    const char *mode;           /* "learn" or "grill" */
    double predicted, measured; /* NAN: none */
    int rating;                 /* 1 .. 5 */
};

/* $XDG_DATA_HOME/lockstep/learn.db or ~/.local/share/lockstep/learn.db; free with mem_free(). NULL, with a message: neither is set. */
char *history_path(void);
/* Creates folder and file as needed. LS_EIO also if `write` and it cannot be written. LS_EFORMAT: not such a database, or one of a
 * later lockstep. */
ls_status history_open(const char *path, bool write, history **out);
void history_close(history **h);

ls_status history_add(history *h, const struct review *r);
/* fn is called with the reviews in the order in which they were added; r is valid during the call. A failure of fn ends the walk. */
typedef ls_status history_fn(void *ctx, const struct review *r);
ls_status history_each(history *h, history_fn *fn, void *ctx);
/* State of a card after all its reviews. */
ls_status history_card(history *h, const char *card, struct fsrs_card *out);

#endif
