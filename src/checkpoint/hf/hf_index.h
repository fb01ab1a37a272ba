/* hf_index.h - model.safetensors.index.json: which file of a sharded Hugging Face folder holds which tensor.
 *
 * {"metadata": {"total_size": bytes of all tensors}, "weight_map": {"TENSOR": "model-00001-of-00002.safetensors", ...}}
 * File names must be bare: they are looked up in the folder of the index and nowhere else.
 */
#ifndef LS_CHECKPOINT_HF_HF_INDEX_H
#define LS_CHECKPOINT_HF_HF_INDEX_H

#include "base/json.h"

#define HF_INDEX_NAME "model.safetensors.index.json"

struct hf_index {
    json_node *root;
    const json_node *map; /* tensor -> file */
    size_t nfiles;
    const char **file; /* each once, sorted; borrowed from root */
};

ls_status hf_index_parse(const char *text, size_t bytes, const char *what, struct hf_index *out);
void hf_index_free(struct hf_index *x); /* zeroes *x */

#endif
