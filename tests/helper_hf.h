/* helper_hf.h - folders of Hugging Face models: the golden ones, paths in them, imports. */
#ifndef LS_TESTS_HELPER_HF_H
#define LS_TESTS_HELPER_HF_H

#include "helper_checkpoint.h"

const char *hf_golden_path(const char *model);
const char *hf_path(const char *folder, const char *name);
ls_store *hf_store(const ls_model *m, ls_dtype type, int master);
ls_store *hf_import(const char *folder, ls_dtype type, int master, ls_model *m);
bool hf_same_values(const ls_store *a, const ls_store *b);

#endif
