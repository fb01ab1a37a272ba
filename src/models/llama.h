/* llama.h - shared by Llama and its relatives with experts: rows of the table of weights, and parts of the forward pass. */
#ifndef LS_MODELS_LLAMA_H
#define LS_MODELS_LLAMA_H

#include "models/model.h"

#define WEIGHT_LINEAR(name, place, out, in)                       \
    {                                                             \
        name, name, place, out, in, INIT_NORMAL, 1, 0, 0, 1, 0, 0 \
    }
/* The same for a weight whose product goes through a norm at once. */
#define WEIGHT_NORMED(name, place, out, in)                       \
    {                                                             \
        name, name, place, out, in, INIT_NORMAL, 1, 0, 0, 1, 0, 1 \
    }
#define WEIGHT_NORM(name, place, dim)                                 \
    {                                                                 \
        name, name, place, dim, DIM_NONE, INIT_ONES, 0, 0, 0, 1, 0, 0 \
    }

#define LLAMA_EMBEDDING                                                                                                             \
    {                                                                                                                               \
        "model.embed_tokens.weight", "model.embed_tokens.weight", PLACE_BEFORE, DIM_VOCAB, DIM_WIDTH, INIT_NORMAL, 0, 0, 0, 1, 0, 0 \
    }
#define LLAMA_ATTENTION                                                              \
    WEIGHT_NORM("input_layernorm.weight", PLACE_LAYER, DIM_WIDTH),                   \
        WEIGHT_LINEAR("self_attn.q_proj.weight", PLACE_LAYER, DIM_QUERY, DIM_WIDTH), \
        WEIGHT_LINEAR("self_attn.k_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),   \
        WEIGHT_LINEAR("self_attn.v_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),   \
        WEIGHT_LINEAR("self_attn.o_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_QUERY), \
        WEIGHT_NORM("post_attention_layernorm.weight", PLACE_LAYER, DIM_WIDTH)
/* The same with an RMS norm over each head of q and k. */
#define LLAMA_NORMED_ATTENTION                                                                                                        \
    WEIGHT_NORM("input_layernorm.weight", PLACE_LAYER, DIM_WIDTH),                                                                    \
        WEIGHT_NORMED("self_attn.q_proj.weight", PLACE_LAYER, DIM_QUERY, DIM_WIDTH),                                                  \
        WEIGHT_NORMED("self_attn.k_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),                                                    \
        WEIGHT_LINEAR("self_attn.v_proj.weight", PLACE_LAYER, DIM_KEY, DIM_WIDTH),                                                    \
        WEIGHT_NORM("self_attn.q_norm.weight", PLACE_LAYER, DIM_HEAD), WEIGHT_NORM("self_attn.k_norm.weight", PLACE_LAYER, DIM_HEAD), \
        WEIGHT_LINEAR("self_attn.o_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_QUERY),                                                  \
        WEIGHT_NORM("post_attention_layernorm.weight", PLACE_LAYER, DIM_WIDTH)
#define LLAMA_MLP                                                             \
    WEIGHT_LINEAR("mlp.gate_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH),   \
        WEIGHT_LINEAR("mlp.up_proj.weight", PLACE_LAYER, DIM_FFN, DIM_WIDTH), \
        WEIGHT_LINEAR("mlp.down_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_FFN)
#define LLAMA_HEAD \
    WEIGHT_NORM("model.norm.weight", PLACE_AFTER, DIM_WIDTH), WEIGHT_LINEAR("lm_head.weight", PLACE_UNTIED, DIM_VOCAB, DIM_WIDTH)

/* The experts' weights and the router's. hf: the part's name in Hugging Face's files; gate, up and down of each expert, * its number. */
#define WEIGHT_STACK(name, hf, out, in)                               \
    {                                                                 \
        name, hf, PLACE_LAYER, out, in, INIT_NORMAL, 1, 0, 0, 1, 1, 0 \
    }
#define LLAMA_EXPERTS(hf, gate, up, down)                                                                         \
    { "mlp.gate.weight", hf ".gate.weight", PLACE_LAYER, DIM_EXPERTS, DIM_WIDTH, INIT_NORMAL, 1, 0, 0, 1, 0, 0 }, \
        { "mlp.gate.bias", hf ".gate.bias", PLACE_LAYER, DIM_BALANCED, DIM_NONE, INIT_ZEROS, 0, 0, 0, 1, 0, 0 },  \
        WEIGHT_STACK("mlp.experts.gate_proj.weight", hf ".experts.*." gate ".weight", DIM_EXPERT_FFN, DIM_WIDTH), \
        WEIGHT_STACK("mlp.experts.up_proj.weight", hf ".experts.*." up ".weight", DIM_EXPERT_FFN, DIM_WIDTH),     \
        WEIGHT_STACK("mlp.experts.down_proj.weight", hf ".experts.*." down ".weight", DIM_WIDTH, DIM_EXPERT_FFN), \
        WEIGHT_LINEAR("mlp.shared_experts.gate_proj.weight", PLACE_LAYER, DIM_SHARED_FFN, DIM_WIDTH),             \
        WEIGHT_LINEAR("mlp.shared_experts.up_proj.weight", PLACE_LAYER, DIM_SHARED_FFN, DIM_WIDTH),               \
        WEIGHT_LINEAR("mlp.shared_experts.down_proj.weight", PLACE_LAYER, DIM_WIDTH, DIM_SHARED_FFN)

ls_value llama_linear(ls_program *p, const struct forward *f, const char *weight, size_t layer, ls_value x);
ls_value llama_norm(ls_program *p, const struct forward *f, const char *weight, long layer, ls_value x);
ls_value llama_embed(ls_program *p, const struct forward *f, ls_value tokens);
ls_value llama_attention(ls_program *p, const struct forward *f, size_t layer, ls_value x);
/* names: those of gate, up, down. The inner part is swiglu(gate, up), [B,T,F]. */
ls_value llama_mlp_inner(ls_program *p, const struct forward *f, const char *const names[3], size_t layer, ls_value x);
ls_value llama_mlp(ls_program *p, const struct forward *f, const char *const names[3], size_t layer, ls_value x);
ls_value llama_final_norm(ls_program *p, const struct forward *f, ls_value x);
size_t llama_default_ffn(size_t width);
extern const char *const llama_hf_ignored[];
/* Members of struct family that all relatives share. */
#define LLAMA_PARTS                                                                                           \
    .hf_prefix = "", .layer = "model.layers", .embedding = "model.embed_tokens.weight", .embed = llama_embed, \
    .final_norm = llama_final_norm, .default_ffn = llama_default_ffn, .hf_ignored = llama_hf_ignored

/* Reads what the config.json files of all relatives have in common; *m has the family's defaults. The shape is the part that decoders with
 * other norms, biases or activations have, too. */
ls_status llama_read_shape(const json_node *o, ls_model *m);
ls_status llama_read_decoder(const json_node *o, ls_model *m);
void llama_write_shape(struct json_out *j, const ls_model *m);
void llama_write_decoder(struct json_out *j, const ls_model *m);
/* A layer with an MLP. */
ls_value llama_layer(ls_program *p, const struct forward *f, size_t layer, ls_value x);
/* A layer whose MLP is a mixture of experts. */
ls_value llama_experts_layer(ls_program *p, const struct forward *f, size_t layer, ls_value x);
ls_status llama_experts_check(const ls_model *m);
ls_status llama_experts_check_hf(const ls_model *m);
/* The sizes of a preset with experts. Last: rotary positions. */
#define LLAMA_EXPERTS_SIZES(layers_, width_, heads_, kv_, head_, experts_, chosen_, ffn_, vocab_, positions_, norm_topk_, aux_, eps_, ...) \
    {                                                                                                                                      \
        .layers = layers_, .width = width_, .heads = heads_, .kv_heads = kv_, .head_size = head_, .vocab = vocab_,                         \
        .max_positions = positions_, .experts = experts_, .experts_per_token = chosen_, .expert_ffn = ffn_, .norm_topk = norm_topk_,       \
        .aux_coef = aux_, .norm_eps = eps_, .rope = __VA_ARGS__, .init_std = 0.02                                                          \
    }

#endif
