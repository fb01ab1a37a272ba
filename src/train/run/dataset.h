/* dataset.h - the data of a run: a tokenizer, tokens, and samplers of the training and validation parts. */
#ifndef LS_TRAIN_RUN_DATASET_H
#define LS_TRAIN_RUN_DATASET_H

#include "data/documents.h"
#include "lockstep/data.h"
#include "train/config/config.h"

struct dataset {
    ls_tokenizer *tokenizer; /* NULL: a token file without one */
    ls_tokens *tokens;
    size_t vocab;               /* of the tokenizer; 0: unknown */
    size_t held, peak;          /* bytes: all of this; the most while it was opened */
    ls_range train, validation; /* validation is empty for data.val_fraction=0 */
    char what[128];             /* "book.txt (4404412 bytes, 1b2c3d4e), 4404412 tokens, ..."; equal for equal samples */
};

/* saved_tokenizer: folder of the one that a resumed run has learnt, or NULL. */
ls_status dataset_open(const struct config *c, const char *saved_tokenizer, struct dataset *out);
void dataset_close(struct dataset *d); /* of a zeroed struct a no-op */

/* The tokenizer of data.tokenizer; bpe learns it from text[bytes]. *out is NULL for a token file and "bytes". */
ls_status dataset_tokenizer(const struct config *c, const char *text, size_t bytes, ls_tokenizer **out);

/* data.text as tokens, and their tokenizer: data.tokenizer, or what was saved in a folder, unless NULL. After each document of JSON
 * lines stands the end-of-text token; `end`: after other texts too. d's other fields are not set. */
ls_status dataset_encode(const struct config *c, const char *saved_tokenizer, bool end, struct dataset *d, struct documents *found);

/* Path of the file that ls_tokenizer_save wrote into a folder; free with mem_free. *out is NULL when there is none. */
ls_status dataset_saved_tokenizer(const char *folder, char **out);

/* Samplers over a part; a model's vocabulary bounds the ids. */
ls_status dataset_train_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out);
ls_status dataset_validation_sampler(const struct dataset *d, const struct config *c, size_t vocab, ls_sampler *out);

#endif
