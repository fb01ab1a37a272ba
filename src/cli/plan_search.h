/* plan_search.h - `lockstep plan --machine NAME --search`: the fastest layouts, the gain of each axis, and the winner as a config. */
#ifndef LS_CLI_PLAN_SEARCH_H
#define LS_CLI_PLAN_SEARCH_H

#include "cli/args.h"
#include "train/plan/search.h"

struct search_request {
    const struct cluster *cluster;
    int64_t ranks;    /* number of ranks of the layouts */
    unsigned fixed;   /* choices that the user made */
    const char *out;  /* file for the winner's config; NULL: none */
    const char *html; /* file for a page with a table and a scatter of time against memory; NULL: none */
    bool json;
    double room; /* bytes of a rank */
};

/* Call it before the options are checked: records what the user fixed, and gives the config a layout with it that passes the checks. */
ls_status plan_search_complete(struct invocation *in, struct search_request *r);
/* job and base: those of the config. */
ls_status plan_search_run(struct invocation *in, const struct search_request *r, const struct plan_job *job, const ls_layout *base);

#endif
