/* dataset.h - the data of a run: a tokenizer, the tokens, and samplers of the training and the validation tokens. */
#ifndef LS_TRAIN_RUN_DATASET_H
#define LS_TRAIN_RUN_DATASET_H

#include "data/documents.h"
#include "lockstep/data.h"
#include "train/config/config.h"

struct dataset {
    ls_tokenizer *tokenizer; /* NULL: a token file without a tokenizer */
    ls_tokens *tokens;
    size_t vocab;               /* size of the tokenizer's vocabulary; 0: unknown */
    size_t held, peak;          /* bytes that the data hold; bytes that were held at most while they were opened */
    ls_range train, validation; /* validation is empty if data.val_fraction is 0 */
    char what[128];             /* "book.txt (4404412 bytes, 1b2c3d4e), 4404412 tokens, ..."; equal for equal samples */
};

/* saved_tokenizer: folder with the tokenizer that a resumed run has learned, or NULL. */
ls_status dataset_open(const struct config *c, const char *saved_tokenizer, struct dataset *out);
void dataset_close(struct dataset *d); /* does nothing on a zeroed struct */

/* Opens data.tokenizer; "bpe" learns a tokenizer from text[bytes]. *out is NULL for a token file with data.tokenizer=bytes. */
ls_status dataset_tokenizer(const struct config *c, const char *text, size_t bytes, ls_tokenizer **out);

/* Encodes data.text with the tokenizer in the folder saved_tokenizer or, if that is NULL, with data.tokenizer, and sets d->tokens and
 * d->tokenizer only. The end-of-text token follows each document of JSON lines and, with `end`, any other text too. */
ls_status dataset_encode(const struct config *c, const char *saved_tokenizer, bool end, struct dataset *d, struct documents *found);

/* Path of the file that ls_tokenizer_save() wrote into a folder; free it with mem_free. *out is NULL if there is no such file. */
ls_status dataset_saved_tokenizer(const char *folder, char **out);

/* Samplers of the training and the validation tokens; an id that is not below `vocab`, the model's vocabulary, is an error. */
ls_status dataset_train_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out);
ls_status dataset_validation_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out);

#endif
