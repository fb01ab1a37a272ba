/* hf_tensors.h - the tensors of a model's Hugging Face folder, each with the parameters that it is made of. */
#ifndef LS_CHECKPOINT_HF_HF_TENSORS_H
#define LS_CHECKPOINT_HF_HF_TENSORS_H

#include "lockstep/store.h"
#include "models/hf.h"

enum { HF_PARTS = 3 }; /* most parameters of one tensor: GPT-2's q, k, v */

struct hf_tensor {
    struct model_weight part[HF_PARTS]; /* in the order of their `part`; .hf, .hf_ndim, .hf_size are the same in all */
    int parts;
    size_t index; /* for a stacked weight: index among its w.stacked tensors */
};

/* Tensors in the order of their first parameter, those of a stacked one in sequence; free with mem_free(). */
ls_status hf_tensors_of(const ls_model *m, struct hf_tensor **out, size_t *count);

/* Index of w in the store; LS_EINVAL if it has none, or one of another shape. */
ls_status hf_find_parameter(const ls_store *s, const struct model_weight *w, size_t *index);

/* Elements of w in one tensor: all, or those of one tensor of a stacked one. */
size_t hf_part_count(const struct model_weight *w);
/* Copy elements of `esize` bytes between w[size] in the store (for a stacked one, the part of this tensor) and its place in the tensor
 * hf[hf_size].
 */
void hf_place(void *hf, const void *own, const struct model_weight *w, size_t esize);
void hf_pick(void *own, const void *hf, const struct model_weight *w, size_t esize);
/* Where hf has w's elements aligned and in the store's order; NULL: hf_pick() has to put them in order. */
const void *hf_pick_in_place(const void *hf, const struct model_weight *w, size_t esize);

/* Declares every parameter of the model with initial value 0; the caller fills them. */
ls_status hf_declare(ls_store *s, const ls_model *m);

#endif
