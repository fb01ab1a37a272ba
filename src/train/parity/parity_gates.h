/* parity_gates.h - ReLU inputs within rounding of zero.
 *
 * A ReLU whose input is 1e-9 in one layout and -1e-9 in another is correct in both, but the gradient passes it in one layout and is zero in
 * the other: rounding causes a finite difference. So the reference records these gates, and the side that follows it adopts their signs as
 * it loads the weights: it moves such an input to the reference's side of zero before backward reads it. It moves only inputs that are
 * within the threshold on both sides, and the number of moved inputs is reported. An error larger than rounding moves inputs beyond the
 * threshold, so it still shows in the gradients.
 */
#ifndef LS_TRAIN_PARITY_PARITY_GATES_H
#define LS_TRAIN_PARITY_PARITY_GATES_H

#include "train/parity/parity_store.h"

struct parity_gates;

/* Watches the step's program until parity_gates_close(). threshold: relative to the root mean square of the layer's inputs. follow NULL:
 * gates are only recorded. *out is NULL for an architecture without ReLUs. */
ls_status parity_gates_open(const struct step *s, double threshold, const struct parity_file *follow, struct parity_gates **out);
void parity_gates_close(struct parity_gates **g);
/* To be called before and after the gradients of a step; end() writes the gates. With g NULL no-ops. Collective. */
ls_status parity_gates_begin(struct parity_gates *g, uint64_t step);
ls_status parity_gates_end(struct parity_gates *g, struct parity_writer *w);

#endif
