/* config_hf.h - keys of a Hugging Face config.json, read one by one. *out keeps its value if a key is absent or null. */
#ifndef LS_MODELS_CONFIG_HF_H
#define LS_MODELS_CONFIG_HF_H

#include "base/json.h"
#include "lockstep/nn.h"

int hf_absent(const json_node *n);                                        /* or it is null */
ls_status hf_read_size(const json_node *o, const char *key, size_t *out); /* required; 1 or more */
ls_status hf_read_size_or(const json_node *o, const char *key, size_t *out);
ls_status hf_read_real(const json_node *o, const char *key, double *out);
ls_status hf_read_bool(const json_node *o, const char *key, int *out);
ls_status hf_read_name(const json_node *o, const char *key, const char **out);         /* valid as long as the document */
ls_status hf_read_activation(const json_node *o, const char *key, ls_activation *out); /* absent: GELU by tanh */
const char *hf_activation_name(ls_activation activation);
/* Only this value is supported; it is the default if absent. */
ls_status hf_expect_bool(const json_node *o, const char *key, int want);
ls_status hf_expect_real(const json_node *o, const char *key, double want);
ls_status hf_expect_absent(const json_node *o, const char *key);

#endif
