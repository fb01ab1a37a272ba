/* search.h - finds the layouts of a model on a machine under which a step takes the least time.
 *
 * The space: all divisors of the ranks as tp, cp, pp and (for a model with experts) ep, with dp the rest; ZeRO stages 0 to 3, with one copy
 * of the shards or one per node; with and without sequence parallelism; both cp methods; every micro-batch that divides a rank's samples;
 * recomputation none, selective and full; schedules 1f1b, interleaved with 2 to SEARCH_VPP_MOST chunks, zb-h1 and zb-v. (gpipe takes as
 * long as 1f1b and needs more memory.) If a layout does not fit and the machine file describes a host with memory of its own, it is also
 * tried with its optimizer state offloaded there, then with its parameters and gradients too. Choices that the caller fixes, and all other
 * fields, are those of the base layout.
 *
 * All layouts that fit are priced from patterns (prices.h), except those that cannot be among the best, because their kernels, the
 * communication inside a micro-batch and the schedule's bubble alone take longer than the best so far. A layout is not priced either if it
 * is known not to fit: from its activations and its share of what is sharded, or because it does not fit with a smaller micro-batch or more
 * recomputation. Of the rest, those with the lowest prices are compiled completely, in ascending order, until no other can be better unless
 * its price is wrong by more than SEARCH_SLACK (SEARCH_SLACK_LOADED). So the winner is the one that compiling every layout finds;
 * test_search does that for small spaces.
 */
#ifndef LS_TRAIN_PLAN_SEARCH_H
#define LS_TRAIN_PLAN_SEARCH_H

#include "lockstep/plan.h"
#include "train/plan/prices.h"
#include "train/plan/step_seconds.h"

enum { SEARCH_VPP_MOST = 8, SEARCH_KEPT = LS_PLAN_FOUND };
#define SEARCH_SLACK        0.02
#define SEARCH_SLACK_LOADED 0.05 /* with offloaded parameters, whose loads may queue over more blocks than a pattern has */

/* What the caller may fix. */
enum search_choice {
    SEARCH_DP = LS_PLAN_FIX_DP,
    SEARCH_TP = LS_PLAN_FIX_TP,
    SEARCH_CP = LS_PLAN_FIX_CP,
    SEARCH_PP = LS_PLAN_FIX_PP,
    SEARCH_EP = LS_PLAN_FIX_EP,
    SEARCH_VPP = LS_PLAN_FIX_VPP,
    SEARCH_SCHEDULE = LS_PLAN_FIX_SCHEDULE,
    SEARCH_ZERO = LS_PLAN_FIX_ZERO,
    SEARCH_REPLICATE = LS_PLAN_FIX_REPLICATE,
    SEARCH_SP = LS_PLAN_FIX_SP,
    SEARCH_CP_METHOD = LS_PLAN_FIX_CP_METHOD,
    SEARCH_MICRO_BATCH = LS_PLAN_FIX_MICRO_BATCH,
    SEARCH_RECOMPUTE = LS_PLAN_FIX_RECOMPUTE,
    SEARCH_OFFLOAD = LS_PLAN_FIX_OFFLOAD,
};

struct search_space {
    int ranks;
    size_t global;  /* samples per step */
    double room;    /* bytes that a rank may hold */
    unsigned fixed; /* bits of search_choice: the base's value is kept */
    ls_layout base;
    /* The prices of an earlier search of the same job, machine and sequence length, whose programs are not compiled again. NULL: the search
     * makes its own. */
    struct prices *prices;
};

/* A layout with its price and, if `exact`, the seconds and bytes of its own compiled programs. */
struct search_found {
    ls_layout layout;
    double price, bytes;
    bool exact;
    struct step_seconds seconds;
    struct plan_bytes plan;
};

/* The axes other than dp that a layout uses. */
enum { SEARCH_USES_TP = 1, SEARCH_USES_CP = 2, SEARCH_USES_PP = 4, SEARCH_USES_EP = 8, SEARCH_USES = 16 };
int search_uses(const ls_layout *l);

/* The price of a layout that fits, and its search_uses(). */
struct search_point {
    double seconds, bytes;
    int uses;
};
enum { SEARCH_POINTS = 4096 };

struct search_result {
    struct search_found best[SEARCH_KEPT]; /* by time, the exact ones first */
    int found, exact;
    /* By set of axes: the layout with the lowest price that uses exactly these axes and fits when it is compiled; price INFINITY: none.
     * bound: a lower bound of the seconds of all others with these axes; INFINITY: there are no others. */
    struct search_found with[SEARCH_USES];
    double bound[SEARCH_USES];
    double least; /* if nothing fits: bytes per rank of the layout that needs the least */
    ls_layout least_layout;
    /* Numbers of layouts: valid ones, except those in groups that were skipped as a whole; priced ones; priced ones that fit. */
    int64_t checked, priced, fit;
    int compiled; /* programs that this search compiled for patterns */
    /* Every point_every-th of the layouts that fit and were priced completely. */
    struct search_point point[SEARCH_POINTS];
    int points;
    int64_t point_every;
};

/* LS_EINVAL if the base has what a search cannot price, or what no layout of the model can have. Messages name options. */
ls_status search_check_base(const ls_model *m, const ls_layout *base);
ls_layout search_alone(const ls_layout *base); /* the base on one rank, with one sample */
/* Writes the layout, its micro-batches and its recomputation into out and returns it. */
enum { SEARCH_TEXT = 320 };
const char *search_layout_text(const ls_layout *l, char out[SEARCH_TEXT]);
/* Fails with LS_ENOMEM and the layout that needs the least. */
ls_status search_nothing_fits(const struct search_space *s, const struct search_result *r);

/* LS_OK with found 0: no layout fits. LS_EINVAL: search_check_base(), or no layout is valid with the choices that are fixed. */
ls_status search_layouts(const struct plan_job *j, const struct cluster *c, const struct search_space *s, struct search_result *out);

#endif
