/* parity_store.h - a side's store and its file (parity_file.h): states written, and taken from another side's file. */
#ifndef LS_TRAIN_PARITY_PARITY_STORE_H
#define LS_TRAIN_PARITY_PARITY_STORE_H

#include "train/parity/parity_file.h"
#include "train/run/step.h"

struct parity_writer {
    const struct step *step;
    file_writer *out; /* rank 0's; NULL on the others, which take part in the reading */
    float *whole;     /* [elements of the largest parameter] */
    int64_t *stale;   /* [parameters] elements of this rank that are not those of the record */
};

/* out NULL: not the rank that writes. Writes the parameters' records. */
ls_status parity_writer_open(const struct step *s, file_writer *out, struct parity_writer *w);
void parity_writer_close(struct parity_writer *w);

ls_status parity_put(struct parity_writer *w, enum parity_record r, uint64_t step, size_t parameter, const void *data, size_t count);
/* Every gradient of a step; every weight and optimizer state after `updates` updates, and how many elements of all ranks' copies
 * are others. Collective. */
ls_status parity_put_gradients(struct parity_writer *w, uint64_t step);
ls_status parity_put_state(struct parity_writer *w, uint64_t updates);

/* This rank keeps what it holds of the state after `updates` updates; half-precision parameters are the rounded masters. */
ls_status parity_take_state(const struct parity_file *f, uint64_t updates, ls_store *store);

#endif
