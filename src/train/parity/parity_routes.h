/* parity_routes.h - compares to which experts two layouts route each token.
 *
 * Rounding differs between two layouts and changes a router's logits slightly. If the last chosen expert and the first one that is not
 * chosen have nearly equal scores, the token goes to another expert. Both are correct, but rounding causes a finite difference. So the
 * reference records all its choices, and the side that follows it adopts a choice if by its own scores the two choices are within
 * `threshold` of each other; then everything else can be compared as without experts. A choice that rounding does not explain is not
 * adopted: it is reported with layer and token.
 *
 * A row is a token in a layer: PARITY_ROUTE_HEAD numbers, then the experts that this side chose (as in kernels/cpu/route.h).
 */
#ifndef LS_TRAIN_PARITY_PARITY_ROUTES_H
#define LS_TRAIN_PARITY_PARITY_ROUTES_H

#include "train/run/step.h"

/* SAME: the reference made the same choice, or there is no reference. TAKEN: the reference chose other experts within the threshold, which
 * were adopted. DROPPED: the reference chose the same experts but dropped the token in others of them, because other tokens of the sequence
 * went elsewhere. BEYOND: the choices or drops differ, and rounding does not explain it. */
enum parity_route_kind { ROUTE_SAME, ROUTE_TAKEN, ROUTE_DROPPED, ROUTE_BEYOND };
/* PARITY_ROUTE_MARGIN: bits of a float, the difference of the two choices' logits / the root mean square of the layer's logits. */
enum { PARITY_ROUTE_LAYER, PARITY_ROUTE_SAMPLE, PARITY_ROUTE_TOKEN, PARITY_ROUTE_KIND, PARITY_ROUTE_MARGIN, PARITY_ROUTE_HEAD };

struct parity_routes;

/* Watches the step's programs until parity_routes_close(). follow: the reference's file, or NULL. *out is NULL for a model without experts.
 */
ls_status parity_routes_open(const struct step *s, double threshold, const char *path, const char *follow, struct parity_routes **out);
void parity_routes_close(struct parity_routes **r);
/* To be called before and after the gradients of a step; end() writes the sorted rows of all ranks. With r NULL no-ops. Collective. */
ls_status parity_routes_begin(struct parity_routes *r, uint64_t step);
ls_status parity_routes_end(struct parity_routes *r, uint64_t step);

/* Name of the file with a step's rows: "PATH.routes.STEP"; the caller frees it (mem_free). The file is a parity_routes_head and the rows.
 */
struct parity_routes_head {
    uint64_t count, width;
    double threshold;
};
char *parity_routes_path(const char *path, uint64_t step);

/* Summary of the choices of a side that followed another, over all steps. */
struct parity_rerouted {
    uint64_t tokens, taken, dropped, beyond; /* numbers of rows; tokens: all of them */
    uint64_t step;                           /* step of the first row that is beyond */
    double margin, threshold;                /* margin: of the first row beyond the threshold; without one, the largest of all rows taken */
    int64_t layer, sample, token;            /* where that row is; layer -1: no row was taken */
    char text[240];                          /* the two choices of the first row that is beyond */
};
/* Summarizes steps [0, steps) of the side that wrote `path` and followed `reference`; steps without a file of rows are skipped. */
ls_status parity_routes_compare(const char *path, const char *reference, uint64_t steps, struct parity_rerouted *out);

#endif
