/* parity_gates.h - ReLU inputs within rounding of zero.
 *
 * A ReLU whose input is 1e-9 in one layout and -1e-9 in another is right in both, but its sample's gradient flows through it in one and
 * stops in the other: a finite difference made by rounding. So the reference writes down its gates of that kind, and the side that follows
 * it takes their decisions as it takes the weights: such an input is set to the reference's side of zero before backward reads it. Only
 * inputs are set that both sides found within the threshold, and how many there were is reported. A mistake larger than rounding
 * moves inputs beyond the threshold, which are left alone, and shows in the gradients.
 */
#ifndef LS_TRAIN_PARITY_PARITY_GATES_H
#define LS_TRAIN_PARITY_PARITY_GATES_H

#include "train/parity/parity_store.h"

struct parity_gates;

/* Watches the step's program from here on. threshold: of an input to the root mean square of its layer's. follow NULL: nothing is taken.
 * *out NULL: an architecture without ReLUs. */
ls_status parity_gates_open(const struct step *s, double threshold, const struct parity_file *follow, struct parity_gates **out);
void parity_gates_close(struct parity_gates **g);
/* Around the gradients of a step; end writes what was found. NULL is a no-op. Collective. */
ls_status parity_gates_begin(struct parity_gates *g, uint64_t step);
ls_status parity_gates_end(struct parity_gates *g, struct parity_writer *w);

#endif
