/* hf_export.h - exports a model to a Hugging Face folder, from a store or, tensor by tensor, from a checkpoint. */
#ifndef LS_CHECKPOINT_HF_HF_EXPORT_H
#define LS_CHECKPOINT_HF_HF_EXPORT_H

#include "checkpoint/reader.h"
#include "lockstep/checkpoint.h"

/* store: declares the model's parameters; saved: the checkpoint with their elements, in which case the store need not be allocated; NULL:
 * the store has them. */
ls_status hf_export(const char *folder, const ls_model *m, const ls_store *store, const struct saved *saved, const ls_hf_options *options);

#endif
