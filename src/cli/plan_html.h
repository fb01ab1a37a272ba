/* plan_html.h - pictures of plans as self-contained HTML: a search's layouts as a table and a scatter of time against memory, and the time
 * line of a planned step. */
#ifndef LS_CLI_PLAN_HTML_H
#define LS_CLI_PLAN_HTML_H

#include "train/plan/search.h"
#include "train/plan/step_sim.h"

/* title: one line. room: bytes that a rank may hold. */
ls_status plan_html_search(const char *path, const char *title, const struct search_result *r, double room);

/* Bytes of the shown rank of a stage: held throughout the step, and activations when the most micro-batches are in flight. */
struct stage_bytes {
    double always, activations;
};
/* Shows one rank of each stage, with rows for its program and its communication, and its memory. Plays step 0. bytes: [stages]. */
ls_status plan_html_step(const char *path, const char *title, struct step_sim *s, const struct stage_bytes *bytes);

#endif
