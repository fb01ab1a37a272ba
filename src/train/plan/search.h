/* search.h - finds the layouts of a model on a machine under which a step takes the least time.
 *
 * The layouts: all divisors of the ranks as tp, cp, pp and (of a model with experts) ep, dp being what is left; ZeRO stages 0 to 3, with
 * one copy of the shards or one a node; with and without sequence parallelism; both cp methods; every micro-batch that divides a rank's
 * samples; recomputation none, selective and full; schedules 1f1b, interleaved with 2 to SEARCH_VPP_MOST chunks, zb-h1 and zb-v. (gpipe
 * takes as long as 1f1b and holds more.) Where a layout does not fit and the machine's file describes a host that is apart: with its
 * optimizer state in the host's memory, and then with its parameters and gradients there, too. What the caller fixes is kept, and so is
 * everything else of the base layout.
 *
 * All that fit are priced from patterns (prices.h), except those that cannot be among the best: kernels, the communication inside a
 * micro-batch and the schedule's bubble alone take longer than what was found. What does not fit is not priced if that is known without:
 * from its activations and its share of what is sharded, or from a smaller micro-batch or more recomputation. Of the rest, those with the
 * lowest prices are compiled completely, in ascending order, until no other can be better unless its price is wrong by more than
 * SEARCH_SLACK (SEARCH_SLACK_LOADED). So the winner is the one that compiling every layout finds; test_search does that for small spaces.
 */
#ifndef LS_TRAIN_PLAN_SEARCH_H
#define LS_TRAIN_PLAN_SEARCH_H

#include "train/plan/prices.h"
#include "train/plan/step_seconds.h"

enum { SEARCH_VPP_MOST = 8, SEARCH_KEPT = 16 };
#define SEARCH_SLACK        0.02
#define SEARCH_SLACK_LOADED 0.05 /* of layouts with offloaded parameters, whose loads may queue for more blocks than a pattern has */

/* What the caller may fix. */
enum search_choice {
    SEARCH_DP = 1 << 0,
    SEARCH_TP = 1 << 1,
    SEARCH_CP = 1 << 2,
    SEARCH_PP = 1 << 3,
    SEARCH_EP = 1 << 4,
    SEARCH_VPP = 1 << 5,
    SEARCH_SCHEDULE = 1 << 6,
    SEARCH_ZERO = 1 << 7,
    SEARCH_REPLICATE = 1 << 8,
    SEARCH_SP = 1 << 9,
    SEARCH_CP_METHOD = 1 << 10,
    SEARCH_MICRO_BATCH = 1 << 11,
    SEARCH_RECOMPUTE = 1 << 12,
    SEARCH_OFFLOAD = 1 << 13,
};

struct search_space {
    int ranks;
    size_t global;  /* samples of a step */
    double room;    /* bytes of a rank */
    unsigned fixed; /* bits of search_choice: the base's value is kept */
    ls_layout base;
    /* Of an earlier search of the same job, machine and sequence length: the programs that it compiled are not compiled again. NULL: the
     * search has its own. */
    struct prices *prices;
};

/* A layout with its price, and what its own programs take and hold where `exact`. */
struct search_found {
    ls_layout layout;
    double price, bytes;
    bool exact;
    struct step_seconds seconds;
    struct plan_bytes plan;
};

/* The axes that a layout uses beside dp. */
enum { SEARCH_USES_TP = 1, SEARCH_USES_CP = 2, SEARCH_USES_PP = 4, SEARCH_USES_EP = 8, SEARCH_USES = 16 };
int search_uses(const ls_layout *l);

/* Of a layout that fits: its price, and search_uses(). */
struct search_point {
    double seconds, bytes;
    int uses;
};
enum { SEARCH_POINTS = 4096 };

struct search_result {
    struct search_found best[SEARCH_KEPT]; /* by time, the exact ones first */
    int found, exact;
    /* The fastest by price that has exactly these axes, without those that do not fit once compiled; price INFINITY: none. bound: all
     * others with these axes take at least so long; INFINITY: there are no others. */
    struct search_found with[SEARCH_USES];
    double bound[SEARCH_USES];
    double least; /* bytes of a rank under the layout that holds the least, if nothing fits */
    ls_layout least_layout;
    /* Layouts that are possible, but for those of groups that are left out as a whole; those that were priced; those of them that fit. */
    int64_t checked, priced, fit;
    int compiled; /* programs of patterns, by this search */
    /* Every point_every-th of those that fit and were priced completely. */
    struct search_point point[SEARCH_POINTS];
    int points;
    int64_t point_every;
};

/* LS_OK with found 0: no layout fits. LS_EINVAL: none is possible, with what was fixed. */
ls_status search_layouts(const struct plan_job *j, const struct cluster *c, const struct search_space *s, struct search_result *out);

#endif
