/* parity_store.h - writes the states of a side's store to its file (parity_file.h), and loads states from another side's file. */
#ifndef LS_TRAIN_PARITY_PARITY_STORE_H
#define LS_TRAIN_PARITY_PARITY_STORE_H

#include "train/parity/parity_file.h"
#include "train/run/step.h"

enum { PARITY_STATES = 2 }; /* optimizer states that are compared */

struct parity_writer {
    const struct step *step;
    file_writer *out;                 /* on rank 0; NULL on other ranks, which only take part in gathering tensors */
    float *full;                      /* [elements of the largest parameter] a gathered tensor */
    int64_t *stale;                   /* [parameters] number of elements of this rank that differ from the record */
    int64_t *here;                    /* [parameters] number of ranks that have it, or a part of it */
    int64_t (*states)[PARITY_STATES]; /* [parameters] number of ranks that have each state */
};

/* Writes the records of the parameters. out is NULL on all ranks but 0. */
ls_status parity_writer_open(const struct step *s, file_writer *out, struct parity_writer *w);
void parity_writer_close(struct parity_writer *w);

ls_status parity_put(struct parity_writer *w, enum parity_record r, uint64_t step, size_t parameter, const void *data, size_t count);
/* Write all gradients of a step; and the weights and optimizer states after `updates` updates, with the number of elements in which the
 * ranks' copies differ. Collective. */
ls_status parity_put_gradients(struct parity_writer *w, uint64_t step);
ls_status parity_put_state(struct parity_writer *w, uint64_t updates);

/* Loads the state after `updates` updates: each rank keeps the part that it holds; half-precision parameters are rounded from the masters.
 */
ls_status parity_take_state(const struct parity_file *f, uint64_t updates, ls_store *store);

#endif
