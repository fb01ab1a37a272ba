/* parity_routes.h - which experts each token went to, in one layout and in another.
 *
 * Rounding that differs between two layouts moves a router's logits a little, and where the last expert chosen and the first one not chosen
 * score alike, the token goes to another expert: right in both, but a finite difference made by rounding. So the reference
 * writes down all its choices, and the side that follows it takes them, token by token, where its own scores put the two choices
 * within `threshold` of each other: everything else then compares as if there were no experts. A choice farther away than rounding explains
 * is not taken: it is reported with layer and token.
 *
 * A row is a token in a layer: PARITY_ROUTE_HEAD numbers, then the experts that this side chose (as in kernels/cpu/route.h).
 */
#ifndef LS_TRAIN_PARITY_PARITY_ROUTES_H
#define LS_TRAIN_PARITY_PARITY_ROUTES_H

#include "train/run/step.h"

/* SAME: the reference chose these too, or there is none. TAKEN: it chose others, within the threshold. DROPPED: it chose these and
 * dropped others, as tokens of the sequence went elsewhere. BEYOND: it chose or dropped others, and rounding does not explain it. */
enum parity_route_kind { ROUTE_SAME, ROUTE_TAKEN, ROUTE_DROPPED, ROUTE_BEYOND };
/* PARITY_ROUTE_MARGIN: the bits of a float, the distance of the two choices' logits / the root mean square of the layer's logits. */
enum { PARITY_ROUTE_LAYER, PARITY_ROUTE_SAMPLE, PARITY_ROUTE_TOKEN, PARITY_ROUTE_KIND, PARITY_ROUTE_MARGIN, PARITY_ROUTE_HEAD };

struct parity_routes;

/* Watches the step's programs from here on. follow: the reference's file, or NULL. *out NULL: a model without experts. */
ls_status parity_routes_open(const struct step *s, double threshold, const char *path, const char *follow, struct parity_routes **out);
void parity_routes_close(struct parity_routes **r);
/* Around the gradients of a step; NULL is a no-op. end writes the rows of all ranks, sorted, beside the side's file. Collective. */
ls_status parity_routes_begin(struct parity_routes *r, uint64_t step);
ls_status parity_routes_end(struct parity_routes *r, uint64_t step);

/* Where a side writes a step's rows: "PATH.routes.STEP", struct parity_routes_head and the rows. The caller frees it (mem_free). */
struct parity_routes_head {
    uint64_t count, width;
    double threshold;
};
char *parity_routes_path(const char *path, uint64_t step);

/* What a side that followed another found in all its steps. */
struct parity_rerouted {
    uint64_t tokens, taken, dropped, beyond; /* tokens: of all layers and steps */
    uint64_t step;                           /* of the first that is beyond */
    double margin, threshold;                /* margin: the largest of those taken; of the first beyond, if there is one */
    int64_t layer, sample, token;            /* of that margin; layer -1: nowhere */
    char text[240];                          /* the two choices of the first beyond */
};
/* Steps [0, steps) of the side that wrote `path` following `reference`; those that it has no rows of are left out. */
ls_status parity_routes_compare(const char *path, const char *reference, uint64_t steps, struct parity_rerouted *out);

#endif
