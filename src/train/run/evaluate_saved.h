/* evaluate_saved.h - the loss of a model that is on disk, on validation data or on a text, under any layout. */
#ifndef LS_TRAIN_RUN_EVALUATE_SAVED_H
#define LS_TRAIN_RUN_EVALUATE_SAVED_H

#include "train/run/evaluate.h"

struct evaluated {
    const struct task *task;
    double loss; /* nats per unit of the task */
    size_t samples;
    size_t tokens;    /* number of predicted tokens; 0: the samples are not sequences */
    size_t bytes;     /* bytes of text that these tokens encode; 0: there is no tokenizer beside the model */
    size_t left_over; /* tokens at the end of the data that do not fill a sample */
    char data[128];   /* the data, described as in struct dataset */
};

/* True if this is a Hugging Face folder, not one of our checkpoints. */
bool evaluate_is_hf(const char *path);
/* The model of a checkpoint or a Hugging Face folder; what the folder does not describe is taken from the config. */
ls_status evaluate_model(const struct config *c, const char *path, struct task_model *out);
/* Opens ranks, data and model as the config says and evaluates the weights at `path`. Collective; every rank gets the result. With
 * data.val_fraction=0 all data are evaluated. `watch` is called in this rank's rounds. */
ls_status evaluate_saved(const struct config *c, const char *path, struct evaluate_watch watch, struct evaluated *out);

#endif
