/* hf.h - maps our parameters to Hugging Face's: one list for readers and writers of HF folders.
 *
 * Parameter i of a model is the i-th declared, and is filled from one HF tensor:
 *
 *   struct model_weight w;
 *   for (size_t i = 0; i < model_weight_count(&m); i++) {
 *       model_weight_at(&m, i, &w);
 *       ... w.name [w.size] = outputs [w.part, w.part+1) * out / w.parts of HF's w.hf, transposed when w.transposed
 *   }
 *
 * GPT-2's `c_attn` [C,3C] (Conv1D: [in,out]) becomes q, k, v, each [C,C] (Linear: [out,in]): transposed, parts 3. Its
 * bias [3C] becomes three of [C]: parts 3, not transposed. Parts of one HF tensor follow each other, part 0 first, but a weight's and its
 * bias's alternate. Expert weights [E,out,in] are E HF tensors, each [out,in].
 */
#ifndef LS_MODELS_HF_H
#define LS_MODELS_HF_H

#include "lockstep/nn.h"

#define MODEL_NAME_BYTES 96

struct model_weight {
    char name[MODEL_NAME_BYTES]; /* in the store */
    char hf[MODEL_NAME_BYTES];   /* in the folder, as transformers writes it (GPT-2: with "transformer.") */
    int ndim;
    size_t size[3]; /* of our parameter */
    ls_init init;
    int transposed;  /* HF's tensor is [in,out] */
    int part, parts; /* parts 1: the complete HF tensor */
    size_t stacked;  /* number of HF tensors that are stacked in ours, named `hf` with their numbers in place of "*"; 0: one */
    int hf_ndim;
    size_t hf_size[2]; /* shape of HF's tensor, all parts together */
};

size_t model_weight_count(const ls_model *m);
void model_weight_at(const ls_model *m, size_t i, struct model_weight *out); /* i < model_weight_count(m) */

/* True if a folder's tensor `found` is the one that model_weight_at() calls `hf`: equal, or equal except for the prefix "transformer." that
 * GPT-2 folders may omit. */
const char *hf_name_key(const char *name); /* without that prefix */
int hf_name_matches(const char *found, const char *hf);
/* Tensors of a folder that carry no weights: GPT-2's causal masks (h.I.attn.bias, .masked_bias), Llama's rotary_emb.inv_freq, and the head
 * of a tied model. */
int hf_name_is_ignored(const ls_model *m, const char *found);

/* Reads and checks the model that the text of a config.json describes. Messages start with `what`. */
ls_status model_parse_hf(const char *text, size_t bytes, const char *what, ls_model *out);
/* config.json of the model; weights of `type`. Free with mem_free(). */
ls_status model_write_hf_config(const ls_model *m, ls_dtype type, char **text, size_t *bytes);

#endif
