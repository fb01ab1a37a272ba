/* generate.h - reads a trained model from disk and generates text with it, token by token.
 *
 * The model is read from a run's folder, a folder of checkpoints, a checkpoint, or a Hugging Face folder. The keys and values of
 * earlier tokens are kept in a cache, so each new token costs a forward pass of one position.
 */
#ifndef LS_TRAIN_RUN_GENERATE_H
#define LS_TRAIN_RUN_GENERATE_H

#include "lockstep/data.h"
#include "lockstep/nn.h"
#include "train/run/sample.h"

struct trained {
    char *path; /* path of the checkpoint or Hugging Face folder */
    ls_model model;
    ls_store *store;
    ls_tokenizer *tokenizer; /* NULL: there is none beside the weights, and none was given */
};

/* tokenizer: the tokenizer to open; NULL: the one beside the weights, if there is one. */
ls_status trained_open(const char *where, const char *device, ls_dtype type, const char *tokenizer, struct trained *out);
void trained_close(struct trained *t); /* does nothing on a zeroed struct */

/* Called with each new token; anything but LS_OK ends the generation with that status. */
typedef ls_status generate_token_fn(void *ctx, int32_t id);

/* *room: number of tokens that the model has positions for after a prompt of n tokens. LS_EINVAL if it has none. */
ls_status generate_room(const struct trained *t, size_t n, size_t *room);

/* LS_EINVAL if the model does not have positions for `count` tokens after a prompt of n tokens. generate() checks it too. */
ls_status generate_check(const struct trained *t, size_t n, size_t count);

/* Generates up to `count` tokens after prompt[n], n >= 1. It ends early at the end-of-text token, for which fn is not called. */
ls_status generate(const struct trained *t, const int32_t *prompt, size_t n, size_t count, const struct sampling *s, generate_token_fn *fn,
                   void *ctx);

/* The same for several prompts at once. Each gets the tokens that generate() gives for it alone with sampling.prompt = number: the
 * arithmetic of a text does not depend on the others on the cpu, up to 16 of them (matmuls of more rows sum in another order). Tokens of
 * different prompts are mixed; those of one are in order. */
struct generate_prompt {
    const int32_t *ids; /* [n], n >= 1 */
    size_t n;
    size_t count;    /* largest number of tokens to generate */
    uint64_t number; /* keys its random numbers: sampling.prompt in sample.h */
};
typedef ls_status generate_batch_fn(void *ctx, size_t prompt, int32_t id); /* prompt: its index */
ls_status generate_batch(const struct trained *t, size_t n, const struct generate_prompt *prompts, const struct sampling *s,
                         generate_batch_fn *fn, void *ctx);

/* logits[n * vocab]: the logits of every position of ids[n]. */
ls_status generate_logits(const struct trained *t, const int32_t *ids, size_t n, float *logits);

#endif
