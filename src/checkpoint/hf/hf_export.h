/* hf_export.h - a model -> a Hugging Face folder, out of a store or, tensor by tensor, out of a checkpoint. */
#ifndef LS_CHECKPOINT_HF_HF_EXPORT_H
#define LS_CHECKPOINT_HF_HF_EXPORT_H

#include "checkpoint/reader.h"
#include "lockstep/checkpoint.h"

/* store: with the model's parameters; saved: where their elements come from, and the store is declared alone; NULL: the store. */
ls_status hf_export(const char *folder, const ls_model *m, const ls_store *store, const struct saved *saved, const ls_hf_options *options);

#endif
