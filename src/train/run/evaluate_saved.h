/* evaluate_saved.h - the loss of a model that is on disk, over validation data or a text, on any layout of ranks. */
#ifndef LS_TRAIN_RUN_EVALUATE_SAVED_H
#define LS_TRAIN_RUN_EVALUATE_SAVED_H

#include "train/run/evaluate.h"

struct evaluated {
    const struct task *task;
    double loss; /* nats per unit of the task */
    size_t samples;
    size_t tokens;    /* predicted; 0: samples are no sequences */
    size_t bytes;     /* of text that these tokens stand for; 0: no tokenizer is beside the model */
    size_t left_over; /* tokens at the end of the data that fill no sample */
    char data[128];   /* what was read, as struct dataset says it */
};

/* True when the folder is of Hugging Face's kind, not one of ours. */
bool evaluate_is_hf(const char *path);
/* The model of a checkpoint's or Hugging Face folder's weights, by what is there and, where that says nothing, by the config. */
ls_status evaluate_model(const struct config *c, const char *path, struct task_model *out);
/* Opens ranks, data and model as the config says and evaluates the weights at `path`. All ranks call it and get the result. Without
 * data.val_fraction all of the data is evaluated. `watch` is told of the turns of this rank. */
ls_status evaluate_saved(const struct config *c, const char *path, struct evaluate_watch watch, struct evaluated *out);

#endif
