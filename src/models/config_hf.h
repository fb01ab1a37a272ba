/* config_hf.h - keys of a Hugging Face config.json, read one by one. *out keeps its value when a key is absent or null. */
#ifndef LS_MODELS_CONFIG_HF_H
#define LS_MODELS_CONFIG_HF_H

#include "base/json.h"
#include "lockstep/nn.h"

int hf_absent(const json_node *n);                                        /* or null */
ls_status hf_read_size(const json_node *o, const char *key, size_t *out); /* must be there; 1 or more */
ls_status hf_read_size_or(const json_node *o, const char *key, size_t *out);
ls_status hf_read_real(const json_node *o, const char *key, double *out);
ls_status hf_read_bool(const json_node *o, const char *key, int *out);
ls_status hf_read_name(const json_node *o, const char *key, const char **out); /* lives as long as the document */
/* The one value that we compute with; absent is taken for it. */
ls_status hf_expect_bool(const json_node *o, const char *key, int want);
ls_status hf_expect_real(const json_node *o, const char *key, double want);
ls_status hf_expect_absent(const json_node *o, const char *key);

#endif
