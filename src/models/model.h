/* model.h - internals that the families of models share: tables of weights, and the parts of a forward pass.
 *
 * A family (GPT-2, Llama) is one file and a row of LS_FAMILY_MAP: a table of its weights, the functions that append its ops, its
 * presets, and how its config.json is read and written. Everything about weights comes from the table: the forward pass declares parameters
 * from it, the counts sum over it, and Hugging Face folders are read and written by it (hf.h). Rows are in the order of declaration.
 */
#ifndef LS_MODELS_MODEL_H
#define LS_MODELS_MODEL_H

#include <stdbool.h>
#include "lockstep/nn.h"

enum model_dim {
    DIM_NONE,
    DIM_VOCAB,
    DIM_POSITIONS,
    DIM_WIDTH,
    DIM_QUERY,
    DIM_KEY,
    DIM_FFN,
    DIM_HEAD,
    DIM_EXPERTS /* the router's outputs */,
    DIM_EXPERT_FFN,
    DIM_SHARED_FFN,
    DIM_BALANCED /* experts, if they have a bias; else 0 */,
    DIM_STACK /* dim 0 of stacked weights */,
    MODEL_DIMS
};
enum weight_place { PLACE_BEFORE, PLACE_LAYER, PLACE_AFTER, PLACE_UNTIED /* the head of a model that isn't tied */ };
enum weight_init {
    INIT_NORMAL,   /* deviation init_std */
    INIT_RESIDUAL, /* init_std / sqrt(2 layers): 2 layers of them add up in the residual stream */
    INIT_ONES,
    INIT_ZEROS
};

/* A row with a dim of 0 is not a weight of this model. */
struct weight_row {
    const char *name; /* name in the store; in a layer, after the layer's name and a dot */
    const char *hf;   /* name in a Hugging Face folder, likewise */
    enum weight_place place;
    enum model_dim rows, columns; /* our shape; columns DIM_NONE: one dim */
    enum weight_init init;
    int product;     /* 1: a factor of a matrix product; 0: looked up, scaled or added */
    int transposed;  /* HF holds [in,out], we [out,in] */
    int part, parts; /* ours is HF's outputs [part, part+1) * out / parts */
    int stacked;     /* [experts,rows,columns]; HF has a tensor for each, with its number in place of "*" */
    int normed;      /* what it computes goes through a norm at once */
};

/* State that a forward pass hands from layer to layer. */
struct forward {
    const ls_model *m;
    ls_value positions; /* [T] i32 */
    ls_value rope;      /* [T,D], or LS_NONE: no rotation */
    ls_value step;      /* ls_dropout's step; LS_NONE: no dropout */
    /* Generation: each text has a cache. With one text, x is [1,T,C]; with several, each has one token: x is [1,texts,C]. */
    size_t texts;                      /* 0: no generation */
    ls_cache *const *cache;            /* [texts] */
    const ls_value *position, *length; /* [texts], each [1] i32 */
    ls_value samples;                  /* ls_route's operand, or LS_NONE */
    bool losses;                       /* the routers' losses and loads are needed */
};

struct preset {
    const char *name;
    ls_model model;
}; /* architecture is filled in by ls_model_preset() */

typedef struct json_node json_node;
struct json_out;

struct family {
    ls_family has;
    const char *hf_architecture; /* "GPT2LMHeadModel" */
    const char *hf_type;         /* "gpt2" */
    const char *hf_prefix;       /* prefix of all HF names of the table except the head's, when written */
    const char *layer;           /* "h", "model.layers": a layer's block is layer.I */
    const char *embedding;       /* the row whose weight a tied head uses */
    const struct weight_row *rows;
    int nrows;
    ls_value (*embed)(ls_program *p, const struct forward *f, ls_value tokens);                  /* [B,T] -> [B,T,C] */
    ls_value (*layer_forward)(ls_program *p, const struct forward *f, size_t layer, ls_value x); /* [B,T,C] -> same */
    ls_value (*final_norm)(ls_program *p, const struct forward *f, ls_value x);
    ls_status (*check)(const ls_model *m); /* checks beyond those that ls_model_check() makes by `has`; NULL: none */
    size_t (*default_ffn)(size_t width);
    const struct preset *presets;
    int npresets;
    /* Hugging Face's config.json (config_hf.h): reading replaces *m, whose architecture is set afterwards. */
    ls_status (*read_config)(const json_node *o, ls_model *m);
    void (*write_config)(struct json_out *j, const ls_model *m);
    ls_status (*check_hf)(const ls_model *m); /* checks that Hugging Face's model computes the same; NULL: it always does */
    const char *const *hf_ignored;            /* suffixes of the names of tensors in HF folders that carry no weights; NULL ends the list */
};

#define FAMILY_EXTERN(upper, name) extern const struct family family_##name;
LS_FAMILY_MAP(FAMILY_EXTERN)
const struct family *model_family(const ls_model *m);
const struct family *family_of(ls_architecture a);

enum { NO_LAYER = -1 };
/* Elements of all weights, or of those in matmuls of one token; exact up to 2^53, never out of range. */
double model_elements(const ls_model *m, bool products_only);
size_t model_dim_size(const ls_model *m, enum model_dim d);
enum { MODEL_WEIGHT_DIMS = 3 };
/* The meaning of each dim of the parameter `name`, which also determines its sharding; returns the number of dims. 0: the model has no such
 * weight. */
int model_weight_dims(const ls_model *m, const char *name, enum model_dim out[MODEL_WEIGHT_DIMS]);
/* The number of inputs of the matrix `name` if what it computes goes through a norm at once; else 0. */
size_t model_normed_inputs(const ls_model *m, const char *name);
/* The parameter of the table's row `name`; layer NO_LAYER for rows outside of layers. */
ls_value model_param(ls_program *p, const ls_model *m, const char *name, long layer);
/* x[..,I] -> [..,O], by the rows of these names. */
ls_value model_linear(ls_program *p, const struct forward *f, const char *weight, const char *bias, size_t layer, ls_value x);
ls_value model_layer_norm(ls_program *p, const struct forward *f, const char *weight, const char *bias, long layer, ls_value x);
ls_value model_activation(ls_program *p, const struct forward *f, ls_value x); /* the activation of the model's MLP */
/* x itself in generation and without dropout. Masks are told apart by the layer's block and the site. */
ls_value model_dropout(ls_program *p, const struct forward *f, const char *site, ls_value x);
/* q[B,T,H*D] k,v[B,T,G*D] -> [B,T,H*D]: rotated, written to the cache if there is one, causal. */
ls_value model_attend(ls_program *p, const struct forward *f, size_t layer, ls_value q, ls_value k, ls_value v);

/* experts.c: x[B,T,C] -> the output of each token's experts and of the shared one. */
ls_value model_experts(ls_program *p, const struct forward *f, size_t layer, ls_value x);

/* cache.c */
struct ls_cache {
    size_t layers, batch, positions;
    ls_tensor **k, **v;
}; /* v: the second half of k's array */
/* The layer's cache of text `text`, with x[B,T,G,D] at rows position[0] .. of it. which: 'k' or 'v'. */
ls_value cache_append(ls_program *p, ls_tensor *cache, char which, size_t layer, size_t text, ls_value x, ls_value position);

#endif
