/* nn.h - models: named parameters and the ops that make a prediction from them.
 *
 * A model is a plain struct; building it appends ops to a program and declares parameters in its store. The model does not know about
 * ranks, precisions other than the store's type, or whether gradients will be computed. Each layer is a block of the program. Parameter
 * names are Hugging Face's for Llama; GPT-2's are HF's without "transformer.", with `attn.c_attn` [in,3*out] stored as three [out,in]
 * (`h.0.attn.q.weight`, `.k`, `.v`), and `attn.proj`, `mlp.fc`, `mlp.proj` [out,in].
 */
#ifndef LS_NN_H
#define LS_NN_H

#include "lockstep/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The families of language models: FAMILY(name in the enum, name in options and files). Everything else about a family is in
 * src/models/NAME.c. */
#define LS_FAMILY_MAP(FAMILY)    \
    FAMILY(GPT2, gpt2)           \
    FAMILY(LLAMA, llama)         \
    FAMILY(MIXTRAL, mixtral)     \
    FAMILY(QWEN3, qwen3)         \
    FAMILY(QWEN3_MOE, qwen3_moe) \
    FAMILY(STARCODER2, starcoder2)

#define LS_FAMILY_ENUM(upper, name) LS_##upper,
typedef enum ls_architecture { LS_FAMILY_MAP(LS_FAMILY_ENUM) LS_ARCHITECTURES } ls_architecture;

/* What distinguishes one family from another. */
typedef struct ls_family {
    const char *title; /* "GPT-2" */
    int grouped_heads; /* kv_heads may be smaller than heads */
    int rotary;        /* positions rotate queries and keys; 0: learned positions */
    int dropout;
    int activation; /* ls_model.activation is read; 0: the MLP is gated by SiLU (SwiGLU) */
    int head_norms; /* an RMS norm over each head of queries and keys */
    int experts;    /* each MLP is a mixture of experts */
} ls_family;

/* The MLP's activation if the family has a choice: GELU by tanh (OpenAI's), by erf, or max(x, 0)^2 (So et al. 2021). ACTIVATION(name in the
 * enum, name in options and files, its op's name, name in a config.json). */
#define LS_ACTIVATION_MAP(ACTIVATION)                     \
    ACTIVATION(GELU_TANH, gelu_tanh, gelu_tanh, gelu_new) \
    ACTIVATION(GELU_ERF, gelu, gelu_erf, gelu)            \
    ACTIVATION(RELU_SQUARED, relu_squared, relu_squared, relu2)
#define LS_ACTIVATION_ENUM(upper, ...) LS_##upper,
typedef enum ls_activation { LS_ACTIVATION_MAP(LS_ACTIVATION_ENUM) } ls_activation;

/* ROUTER and DROP(name in the enum, name in options and files) */
#define LS_ROUTER_MAP(ROUTER) \
    ROUTER(SOFTMAX, softmax)  \
    ROUTER(SIGMOID, sigmoid)
#define LS_ROUTER_ENUM(upper, name) LS_ROUTER_##upper,
typedef enum ls_router { LS_ROUTER_MAP(LS_ROUTER_ENUM) LS_ROUTERS } ls_router;

#define LS_DROP_MAP(DROP)    \
    DROP(POSITION, position) \
    DROP(PROBABILITY, probability)
#define LS_DROP_ENUM(upper, name) LS_DROP_##upper,
typedef enum ls_drop { LS_DROP_MAP(LS_DROP_ENUM) LS_DROPS } ls_drop;

typedef struct ls_model {
    ls_architecture architecture;
    size_t layers, width, heads, kv_heads, head_size, ffn, vocab, max_positions;
    int tied;                 /* the output projection shares the embedding's weight */
    ls_activation activation; /* families with a choice */
    double norm_eps;
    /* Families with dropout; 0: none. Not read from HF configs. dropout: after embedding, attention output and MLP; attention_dropout: of
     * attention's probabilities. */
    double dropout, attention_dropout;
    ls_rope rope; /* families with rotary positions */
    /* Standard deviation of initial weights with two dims; 0.02. GPT-2's residual projections: divided by sqrt(2 layers). */
    double init_std;
    uint64_t seed; /* seed of dropout */
    /* Families with experts: each token goes to experts_per_token of the experts, which are gated MLPs of width expert_ffn. ffn is not
     * used. */
    size_t experts, experts_per_token, expert_ffn;
    size_t shared_ffn; /* width of a shared expert, a gated MLP that every token passes; 0: none */
    ls_router router;
    int norm_topk;   /* the weights of a token's experts are divided by their sum */
    double capacity; /* an expert takes at most ceil(capacity * tokens * experts_per_token / experts) of a sample's tokens, the others
                        bypass it through the residual; 0: all (dropless) */
    ls_drop drop;    /* which tokens are dropped: those with the smallest scores, or the last ones */
    double aux_coef; /* coefficient of the load-balancing loss, as HF's router_aux_loss_coef; 0: none */
    int aux_over_micro_batch; /* its means are over a micro-batch of all data-parallel ranks; 0: over each sequence (ls_router_loss) */
    double z_coef;            /* coefficient of the router z-loss, the mean of (log sum exp logits)^2; 0: none */
    double router_bias_rate;  /* step of a bias on the scores that balances the load without a loss (DeepSeek-V3); 0: none */
} ls_model;

const char *ls_architecture_name(ls_architecture a);  /* "gpt2" */
const char *ls_architecture_title(ls_architecture a); /* "GPT-2" */
const ls_family *ls_architecture_family(ls_architecture a);

/* By name: "gpt2-124m", "llama3-8b", ..; each family's file has its presets. */
ls_status ls_model_preset(const char *name, ls_model *out);
const char *ls_model_preset_name(int i); /* NULL past the last */
/* From an HF config.json (or the folder that holds it) of any family. Settings that lockstep does not support are rejected with key and
 * value. */
ls_status ls_model_read_hf(const char *path, ls_model *out);
/* Checks divisibility and ranges; fills head_size and kv_heads if 0. Every message names the option and the numbers. The functions below
 * that append ops check a copy themselves; the two counts require a model that passed. */
ls_status ls_model_check(ls_model *m);
size_t ls_model_default_ffn(const ls_model *m); /* the family's usual ffn for the model's width */
size_t ls_model_parameters(const ls_model *m);  /* elements, tied ones once; all experts */
/* Useful FLOPs of one token's forward + backward at length T: 6 per parameter of the matmuls on its path (the embedding lookup is none) +
 * attention's 12 * layers * heads * head_size * T, halved because it is causal (PaLM, appendix B; halved as in Megatron). */
double ls_model_flops_per_token(const ls_model *m, size_t t);

/* Writes "h.3" or "model.layers.3" into out[room]. */
void ls_model_layer_name(const ls_model *m, size_t layer, char *out, size_t room);

/* tokens [B,T] i32 -> final hidden states after the last norm [B,T,C]. step: as ls_dropout's; LS_NONE: no dropout
 * (evaluation). */
ls_value ls_model_hidden(ls_program *p, const ls_model *m, ls_value tokens, ls_value step);
/* The output projection's weight [V,C]. */
ls_value ls_model_head(ls_program *p, const ls_model *m);
/* Cross-entropy of the next token, targets [B,T] i32; see ls_linear_xent. With experts, each layer's router losses (outputs
 * "LAYER.router_loss" if a coefficient is set) are separate losses, and "LAYER.expert_load" [experts] counts this rank's tokens that chose
 * each expert, LAYER as in ls_model_layer_name(). If the program has an input "samples" (f32 [2], see ls_route), it says which samples are
 * padding and which share of the step's samples the micro-batch has; otherwise all samples are real and the micro-batch is the whole step.
 */
ls_value ls_model_loss(ls_program *p, const ls_model *m, ls_value tokens, ls_value targets, ls_value denominator, ls_value step);
/* Logits [B,T,V]: for tests and short prompts. */
ls_value ls_model_logits(ls_program *p, const ls_model *m, ls_value tokens);

/* Generation. The cache of a text (B = 1): per layer k and v [B,S,G,D] tensors of the store's type. Programs built with a cache retain
 * and share its tensors. */
typedef struct ls_cache ls_cache;
ls_status ls_cache_new(const char *device, const ls_model *m, ls_dtype type, size_t batch, size_t positions, ls_cache **out);
void ls_cache_release(ls_cache **c);
/* tokens [B,T] at positions position[0] .. (inputs [T] i32 `positions` and [1] i32 `position`, `length` = position + T)
 * -> logits [B,V] of row last[0] (input [1] i32). */
ls_value ls_model_decode(ls_program *p, const ls_model *m, ls_cache *c, ls_value tokens, ls_value positions, ls_value position,
                         ls_value length, ls_value last);
/* The next token of n texts of any lengths, each with its own cache: tokens [1,n] at positions [n] i32; of text i, positions[i] also as
 * position[i] (input [1] i32), and length[i] = position[i] + 1 (input [1] i32) -> logits [n,V]. The arrays and caches outlive the call. */
ls_value ls_model_decode_batch(ls_program *p, const ls_model *m, size_t n, ls_cache *const *caches, ls_value tokens, ls_value positions,
                               const ls_value *position, const ls_value *length);

/* A plain multilayer perceptron: sizes[n] from input to output, ReLU between; parameters NAME.0.weight, NAME.0.bias,
 * ... */
ls_value ls_mlp(ls_program *p, const char *name, ls_value x, int n, const size_t *sizes);

/* A residual network for small images (He et al. 2016): torchvision's basic blocks and names (`conv1.weight`,
 * `layer1.0.bn1.running_mean`, `fc.bias`) after a stem of one 3 x 3 convolution. Stage s = 0, 1, .. has filters * 2^s
 * channels on images 2^s times smaller. Each residual block is a block of the program. */
typedef struct ls_image_model {
    size_t channels, height, width; /* shape of an image */
    size_t filters;                 /* filters in the stem and the first stage */
    size_t stages, blocks;          /* number of stages; blocks in each stage */
    size_t classes;
    double momentum, eps; /* of batch norm; the presets have 0.1, 1e-5 */
} ls_image_model;

ls_status ls_image_preset(const char *name, ls_image_model *out); /* "resnet-tiny", "resnet-small" */
const char *ls_image_preset_name(int i);                          /* NULL past the last */
ls_status ls_image_check(const ls_image_model *m);
size_t ls_image_parameters(const ls_image_model *m); /* elements that learn, without running statistics */
/* images [B,C,H,W], labels [B] i32 -> cross-entropy as ls_linear_xent's. Samples with a negative label are padding: they
 * count neither in the loss nor in batch norm's statistics. training: as ls_batch_norm's. */
ls_value ls_image_loss(ls_program *p, const ls_image_model *m, ls_value images, ls_value labels, ls_value denominator, int training);
/* Logits [B,classes] under the running statistics. */
ls_value ls_image_logits(ls_program *p, const ls_image_model *m, ls_value images);

#ifdef __cplusplus
}
#endif
#endif
