/* llama.h - what Llama and its relatives with experts share: rows of the table of weights, and parts of the forward pass. */
#ifndef LS_NN_LLAMA_H
#define LS_NN_LLAMA_H

#include "nn/model.h"

#define WEIGHT_LINEAR(name, place, out, in) { name, name, place, out, in, INIT_NORMAL, 1, 0, 0, 1, 0 }
#define WEIGHT_NORM(name, place, dim)       { name, name, place, dim, DIM_NONE, INIT_ONES, 0, 0, 0, 1, 0 }

#define LLAMA_EMBEDDING                                                                                        \
    { "model.embed_tokens.weight", "model.embed_tokens.weight", PLACE_BEFORE, DIM_VOCAB, DIM_WIDTH, INIT_NORMAL, \
      0, 0, 0, 1, 0 }
#define LLAMA_ATTENTION                                                            \
    WEIGHT_NORM("input_layernorm.weight", PLACE_LAYER, DIM_WIDTH),                 \
    WEIGHT_LINEAR("self_attn.q_proj.weight", PLACE_LAYER, DIM_QUERY, DIM_WIDTH),   \
    WEIGHT_LINEAR("self_attn.k_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),     \
    WEIGHT_LINEAR("self_attn.v_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),     \
    WEIGHT_LINEAR("self_attn.o_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_QUERY),   \
    WEIGHT_NORM("post_attention_layernorm.weight", PLACE_LAYER, DIM_WIDTH)
#define LLAMA_HEAD                                           \
    WEIGHT_NORM("model.norm.weight", PLACE_AFTER, DIM_WIDTH), \
    WEIGHT_LINEAR("lm_head.weight", PLACE_UNTIED, DIM_VOCAB, DIM_WIDTH)

/* The experts' weights and the router's. hf: the name of the part in Hugging Face's files; gate, up and down of each expert, * its number. */
#define WEIGHT_STACK(name, hf, out, in) { name, hf, PLACE_LAYER, out, in, INIT_NORMAL, 1, 0, 0, 1, 1 }
#define LLAMA_EXPERTS(hf, gate, up, down)                                                                                                       \
    { "mlp.gate.weight", hf ".gate.weight", PLACE_LAYER, DIM_EXPERTS, DIM_WIDTH, INIT_NORMAL, 1, 0, 0, 1, 0 },                            \
    { "mlp.gate.bias", hf ".gate.bias", PLACE_LAYER, DIM_BALANCED, DIM_NONE, INIT_ZEROS, 0, 0, 0, 1, 0 },                                  \
    WEIGHT_STACK("mlp.experts.gate_proj.weight", hf ".experts.*." gate ".weight", DIM_EXPERT_FFN, DIM_WIDTH),                                  \
    WEIGHT_STACK("mlp.experts.up_proj.weight", hf ".experts.*." up ".weight", DIM_EXPERT_FFN, DIM_WIDTH),                                      \
    WEIGHT_STACK("mlp.experts.down_proj.weight", hf ".experts.*." down ".weight", DIM_WIDTH, DIM_EXPERT_FFN),                                  \
    WEIGHT_LINEAR("mlp.shared_experts.gate_proj.weight", PLACE_LAYER, DIM_SHARED_FFN, DIM_WIDTH),                                         \
    WEIGHT_LINEAR("mlp.shared_experts.up_proj.weight", PLACE_LAYER, DIM_SHARED_FFN, DIM_WIDTH),                                           \
    WEIGHT_LINEAR("mlp.shared_experts.down_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_SHARED_FFN)

ls_value  llama_linear(ls_program *p, const struct forward *f, const char *weight, size_t layer, ls_value x);
ls_value  llama_norm(ls_program *p, const struct forward *f, const char *weight, long layer, ls_value x);
ls_value  llama_embed(ls_program *p, const struct forward *f, ls_value tokens);
ls_value  llama_attention(ls_program *p, const struct forward *f, size_t layer, ls_value x);
/* names: of gate, up, down. */
ls_value  llama_mlp(ls_program *p, const struct forward *f, const char *const names[3], size_t layer, ls_value x);
ls_value  llama_final_norm(ls_program *p, const struct forward *f, ls_value x);
ls_status llama_check(const ls_model *m);
/* A layer whose MLP is a mixture of experts. */
ls_value  llama_experts_layer(ls_program *p, const struct forward *f, size_t layer, ls_value x);
ls_status llama_experts_check(const ls_model *m);

#endif
