/* samples.h - reads the samples of a step into its buffers. */
#ifndef LS_TRAIN_RUN_SAMPLES_H
#define LS_TRAIN_RUN_SAMPLES_H

#include "train/run/step.h"

/* Loaders that read ahead; zeroed: none yet. */
struct samples {
    ls_loader **loader; /* [loaders] */
    int loaders;
};

int samples_loaders(const ls_layout *l, int rank); /* how many a rank has if samples are not drawn */
/* (Re)starts reading at sample `first` of text, which is not read if samples are drawn. */
ls_status samples_start(const struct step *s, const ls_sampler *text, uint64_t first, struct samples *f);
void samples_close(struct samples *f);
/* Fills s->inputs and s->targets with this rank's samples of the step that begins with sample `first`; rows beyond its share have targets
 * -1. Collective with parallel.method=dataparallel. */
ls_status samples_fetch(struct step *s, const struct samples *f, uint64_t first);
/* Bytes of samples that this rank sends to others in one step; *calls: number of messages. */
size_t samples_sent(const struct step *s, size_t *calls);

#endif
