/* hf_tensors.h - the tensors of a model's Hugging Face folder, each with the parameters that it is made of. */
#ifndef LS_CHECKPOINT_HF_HF_TENSORS_H
#define LS_CHECKPOINT_HF_HF_TENSORS_H

#include "lockstep/store.h"
#include "models/hf.h"

enum { HF_PARTS = 3 }; /* most parameters of one tensor: GPT-2's q, k, v */

struct hf_tensor {
    struct model_weight part[HF_PARTS]; /* in the order of their `part`; .hf, .hf_ndim, .hf_size are alike in all */
    int parts;
    size_t slice; /* of a stacked weight: which of its w.stacked tensors */
};

/* In the order of their first parameter, the tensors of a stacked one one after another; free with mem_free(). */
ls_status hf_tensors_of(const ls_model *m, struct hf_tensor **out, size_t *count);

/* Number of the store's parameter that is w; LS_EINVAL when it has none, or one of another shape. */
ls_status hf_find_parameter(const ls_store *s, const struct model_weight *w, size_t *index);

/* Elements of what one tensor gives of w: all, or of a stacked one a slice. */
size_t hf_part_count(const struct model_weight *w);
/* Elements between w[size] as the store holds it (of a stacked one, the slice) and its place in the tensor hf[hf_size]; `esize` bytes each.
 */
void hf_place(void *hf, const void *own, const struct model_weight *w, size_t esize);
void hf_pick(void *own, const void *hf, const struct model_weight *w, size_t esize);

/* Declares every parameter of the model, to be filled by the caller: initial values are zeros. */
ls_status hf_declare(ls_store *s, const ls_model *m);

#endif
