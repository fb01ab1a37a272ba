/* generate.h - a trained model read from disk, and text made with it, token by token.
 *
 * What can be read: a run's folder, a folder of checkpoints, a checkpoint, or a Hugging Face folder. Keys and values of
 * tokens seen are kept in a cache, so each new token costs one forward pass of one position.
 */
#ifndef LS_TRAIN_RUN_GENERATE_H
#define LS_TRAIN_RUN_GENERATE_H

#include "lockstep/data.h"
#include "lockstep/nn.h"
#include "train/run/sample.h"

struct trained {
    char *path; /* of the checkpoint or Hugging Face folder */
    ls_model model;
    ls_store *store;
    ls_tokenizer *tokenizer; /* NULL: none there */
};

/* tokenizer: what to open instead of the one beside the weights; NULL: that one. */
ls_status trained_open(const char *where, const char *device, ls_dtype type, const char *tokenizer, struct trained *out);
void trained_close(struct trained *t); /* of a zeroed struct a no-op */

/* Called with each new token; anything but LS_OK ends the generation with that status. */
typedef ls_status generate_token_fn(void *ctx, int32_t id);

/* Tokens that a model has positions for after a prompt of n; LS_EINVAL where there is none. */
ls_status generate_room(const struct trained *t, size_t n, size_t *room);

/* Whether `count` tokens fit after a prompt of n: LS_EINVAL if not. generate() checks it too. */
ls_status generate_check(const struct trained *t, size_t n, size_t count);

/* Makes up to `count` tokens after prompt[n], n >= 1; ends early after the end-of-text token, which is not told. */
ls_status generate(const struct trained *t, const int32_t *prompt, size_t n, size_t count, const struct sampling *s, generate_token_fn *fn,
                   void *ctx);

/* Logits of every position of ids[n]: logits[n * vocab]. */
ls_status generate_logits(const struct trained *t, const int32_t *ids, size_t n, float *logits);

#endif
