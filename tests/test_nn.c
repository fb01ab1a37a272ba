/* test_nn.c - models: sizes, counts, config.json, what is refused; recomputation, dropout and tied weights in
 * gradients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"
#include "nn/hf.h"
#include "nn/model.h"

static ls_model preset(const char *name)
{
    ls_model m;

    OK(ls_model_preset(name, &m));
    OK(ls_model_check(&m));
    return m;
}

/* ---- counts ---- */

static void test_counts(void **state)
{
    static const struct { const char *name; size_t parameters; } published[] = {
        { "gpt2-124m", 124439808 }, { "gpt2-350m", 354823168 }, { "gpt2-774m", 774030080 }, { "gpt2-1.5b", 1557611200 },
        { "llama3-8b", 8030261248 }, { "llama3.2-1b", 1235814400 }, { "mixtral-8x7b", 46702792704 },
        { "qwen3-30b-a3b", 30532122624 }, { "qwen3-0.6b", 596049920 }, { "qwen3-1.7b", 1720574976 }, { "qwen3-8b", 8190735360 },
    };
    ls_model m;

    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        m = preset(published[i].name);
        assert_int_equal(ls_model_parameters(&m), published[i].parameters);
    }
    for (int i = 0; ls_model_preset_name(i); i++)
        preset(ls_model_preset_name(i));
    m = preset("llama-demo");
    assert_in_range(ls_model_parameters(&m), 4000000, 6000000);
    REFUSED(LS_EINVAL, "no preset 'gpt3'", ls_model_preset("gpt3", &m));
}

static void test_flops(void **state)
{
    ls_model m = preset("gpt2-124m");
    double products = 12.0 * 12 * 768 * 768 + 50257.0 * 768;  /* a layer: 4 C C + 2 C 4C; the tied head */

    (void)state;
    assert_true(ls_model_flops_per_token(&m, 1024) == 6 * products + 6.0 * 12 * 768 * 1024);
    m.tied = 0;  /* the embedding is looked up, the head multiplied: the same work */
    assert_true(ls_model_flops_per_token(&m, 1024) == 6 * products + 6.0 * 12 * 768 * 1024);
    m = preset("llama3-8b");
    products = 32.0 * (2 * 4096 * 4096.0 + 2 * 1024 * 4096.0 + 3 * 14336 * 4096.0) + 128256 * 4096.0;
    assert_true(ls_model_flops_per_token(&m, 8192) == 6 * products + 6.0 * 32 * 4096 * 8192);
    m = preset("mixtral-8x7b");  /* two of eight experts work */
    products = 32.0 * (2 * 4096 * 4096.0 + 2 * 1024 * 4096.0 + 8 * 4096.0 + 2 * 3 * 14336 * 4096.0) + 32000 * 4096.0;
    assert_true(ls_model_flops_per_token(&m, 8192) == 6 * products + 6.0 * 32 * 4096 * 8192);
}

/* ---- what is refused ---- */

static void impossible_models_are_refused(void **state)
{
#define REFUSE(name, change, says)                          \
    do {                                                    \
        ls_model m = preset(name);                          \
        change;                                             \
        REFUSED(LS_EINVAL, says, ls_model_check(&m));           \
    } while (0)

    (void)state;
    REFUSE("gpt2-tiny", m.layers = 0, "layers is 0");
    REFUSE("gpt2-tiny", m.vocab = (size_t)1 << 40, "vocab is 1099511627776");
    REFUSE("gpt2-tiny", (m.width = 65, m.head_size = 0), "width 65 is not divisible by heads 4");
    REFUSE("gpt2-tiny", m.kv_heads = 2, "kv_heads 2 must be heads 4");
    REFUSE("gpt2-tiny", m.head_size = 32, "heads 4 * head_size 32 is not width 64");
    REFUSE("gpt2-tiny", m.dropout = 1, "dropout 1");
    REFUSE("gpt2-tiny", m.norm_eps = 0, "norm_eps 0");
    REFUSE("gpt2-tiny", m.init_std = NAN, "init_std");
    REFUSE("gpt2-tiny", m.architecture = (ls_architecture)7, "architecture 7");
    REFUSE("llama-tiny", m.kv_heads = 3, "heads 4 is not divisible by kv_heads 3");
    REFUSE("llama-tiny", m.head_size = 15, "head_size 15 must be even");
    REFUSE("llama-tiny", m.dropout = 0.1, "no dropout");
    REFUSE("llama-tiny", m.rope.theta = 0, "theta 0");
    REFUSE("llama-tiny", (m.rope.factor = 8, m.rope.high_freq_factor = 1), "high_freq_factor 1");
    REFUSE("llama-tiny", m.layers = 65537, "layers is 65537");
    REFUSE("llama-tiny", m.experts = 4, "Llama has no experts: experts 4");
    REFUSE("mixtral-tiny", m.experts = 0, "experts is 0");
    REFUSE("mixtral-tiny", m.experts_per_token = 5, "experts_per_token is 5; of 4 experts");
    REFUSE("mixtral-tiny", m.expert_ffn = 0, "expert_ffn is 0");
    REFUSE("mixtral-tiny", m.router = (ls_router)2, "router 2");
    REFUSE("mixtral-tiny", m.drop = (ls_drop)2, "drop 2");
    REFUSE("qwen3-moe-tiny", m.capacity = -1, "capacity -1");
    REFUSE("qwen3-moe-tiny", m.aux_coef = NAN, "aux_coef");
    REFUSE("llama3-8b", (m.width = 1u << 30, m.ffn = 1u << 30, m.layers = 1u << 16), "than memory has addresses");
#undef REFUSE
}

static ls_status model_build(const char *name, size_t b, size_t t, int ndim)
{
    ls_model m = preset(name);
    ls_status st;
    ls_store *s;
    ls_program *p;

    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_model_logits(p, &m, ls_input(p, "tokens", LS_I32, ndim, (size_t[]){ b, t, 1 }));
    st = ls_program_status(p);
    ls_program_release(&p);
    ls_store_release(&s);
    return st;
}

static void impossible_tokens_are_refused(void **state)
{
    (void)state;
    REFUSED(LS_EINVAL, "samples of 65 tokens, but the model has max_positions 64", model_build("gpt2-tiny", 1, 65, 2));
    REFUSED(LS_EINVAL, "max_positions 128", model_build("llama-tiny", 1, 129, 2));
    REFUSED(LS_EINVAL, "tokens have 3 dims", model_build("gpt2-tiny", 1, 8, 3));
    OK(model_build("gpt2-tiny", 1, 64, 2));
}

static void impossible_caches_are_refused(void **state)
{
    ls_model m = preset("llama-tiny"), deeper = m;
    ls_cache *c;
    ls_store *s;
    ls_program *p;
    ls_value tokens, position;

    (void)state;
    REFUSED(LS_EINVAL, "positions 129", ls_cache_new(&m, LS_F32, 1, 129, &c));
    REFUSED(LS_EINVAL, "batch 0", ls_cache_new(&m, LS_F32, 0, 12, &c));
    OK(ls_cache_new(&m, LS_F32, 1, 12, &c));
    OK(ls_store_new(NULL, &s));
    for (int k = 0; k < 2; k++) {
        OK(ls_program_new(s, &p));
        tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ k ? 1 : 2, 3 });
        position = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
        deeper.layers = 3;
        ls_model_decode(p, k ? &deeper : &m, c, tokens, position, position, position, position);
        REFUSED(LS_EINVAL, k ? "a cache of 2 layers for a model of 3" : "one sample at a time, not 2", ls_program_status(p));
        ls_program_release(&p);
    }
    ls_store_release(&s);
    ls_cache_release(&c);
}

/* ---- config.json ---- */

static char folder[] = "/tmp/lockstep-nn-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(folder) < 0 ? -1 : 0;
}

static ls_status read_text(const char *text, ls_model *m)
{
    char path[128];

    snprintf(path, sizeof path, "%s/config.json", folder);
    OK(file_write(path, text, strlen(text)));
    return ls_model_read_hf(folder, m);
}

#define GPT2 "{\"architectures\":[\"GPT2LMHeadModel\"],\"n_layer\":2,\"n_embd\":8,\"n_head\":2,\"vocab_size\":11," \
             "\"n_positions\":16"
#define LLAMA "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

#define MIXTRAL "{\"architectures\":[\"MixtralForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
                "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"
#define QWEN3_MOE "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

#define QWEN3 "{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

static void test_config_read(void **state)
{
    ls_model m;

    (void)state;
    OK(read_text(GPT2 "}", &m));
    assert_true(m.architecture == LS_GPT2 && m.layers == 2 && m.width == 8 && m.heads == 2 && m.kv_heads == 2 &&
                m.head_size == 4 && m.ffn == 32 && m.vocab == 11 && m.max_positions == 16 && m.tied && m.activation == LS_GELU_TANH);
    OK(read_text(GPT2 ",\"n_inner\":20,\"activation_function\":\"gelu\",\"tie_word_embeddings\":false,"
                  "\"layer_norm_epsilon\":0.001,\"resid_pdrop\":0.1,\"n_ctx\":null}", &m));
    assert_true(m.ffn == 20 && m.activation == LS_GELU_ERF && !m.tied && m.norm_eps == 0.001 && m.dropout == 0);
    OK(read_text(GPT2 ",\"activation_function\":\"relu2\"}", &m));
    assert_int_equal(m.activation, LS_RELU_SQUARED);
    OK(read_text(LLAMA "}", &m));
    assert_true(m.architecture == LS_LLAMA && m.ffn == 12 && m.kv_heads == 4 && m.head_size == 2 && !m.tied &&
                m.rope.theta == 10000 && m.rope.factor == 1);
    OK(read_text(LLAMA ",\"num_key_value_heads\":2,\"head_dim\":6,\"rope_theta\":500000.0,"
                  "\"tie_word_embeddings\":true,"
                  "\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                  "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}", &m));
    assert_true(m.kv_heads == 2 && m.head_size == 6 && m.tied && m.rope.theta == 500000 && m.rope.factor == 8 &&
                m.rope.original_positions == 8192);
    OK(read_text(LLAMA ",\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":7.0,\"rope_type\":\"default\"}}",
                  &m));
    assert_true(m.rope.theta == 7 && m.rope.factor == 1);
    OK(read_text("{\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"head_dim\":128,\"hidden_act\":\"silu\","
                  "\"hidden_size\":1024,\"initializer_range\":0.02,\"intermediate_size\":3072,\"max_position_embeddings\":40960,\"max_window_layers\":28,"
                  "\"model_type\":\"qwen3\",\"num_attention_heads\":16,\"num_hidden_layers\":28,\"num_key_value_heads\":8,"
                  "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,"
                  "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}", &m));
    ls_model published = preset("qwen3-0.6b");
    assert_true(m.architecture == published.architecture && m.layers == published.layers && m.width == published.width &&
                m.heads == published.heads && m.kv_heads == published.kv_heads && m.head_size == published.head_size &&
                m.ffn == published.ffn && m.vocab == published.vocab && m.max_positions == published.max_positions && m.tied &&
                published.tied && m.norm_eps == published.norm_eps && m.rope.theta == published.rope.theta && m.rope.factor == 1);
    OK(read_text(QWEN3 "}", &m));  /* transformers' own default of head_dim */
    assert_true(m.architecture == LS_QWEN3 && m.ffn == 12 && m.kv_heads == 2 && m.head_size == 128 && !m.tied && m.norm_eps == 1e-6);
    OK(read_text(QWEN3 ",\"head_dim\":6,\"tie_word_embeddings\":true,\"sliding_window\":null,\"layer_types\":[\"full_attention\"]}", &m));
    assert_true(m.head_size == 6 && m.tied);
}

static void malformed_configs_are_refused(void **state)
{
    static const struct { const char *text, *says; } cases[] = {
        { "[]", "not an object" },
        { "{}", "neither 'architectures' nor 'model_type'" },
        { "{\"architectures\":[\"BertModel\"]}", "'architectures' is 'BertModel'" },
        { "{\"model_type\":\"mistral\"}", "'model_type' is 'mistral'" },
        { "{\"architectures\":[\"GPT2LMHeadModel\"]}", "'n_layer' is missing" },
        { GPT2 ",\"n_layer\":3}", "config.json" },
        { GPT2 ",\"n_inner\":-1}", "'n_inner' must be a whole number" },
        { GPT2 ",\"n_inner\":2.5}", "'n_inner' must be a whole number" },
        { GPT2 ",\"activation_function\":\"relu\"}", "'activation_function' is 'relu'" },
        { GPT2 ",\"activation_function\":7}", "'activation_function' must be a string" },
        { GPT2 ",\"scale_attn_weights\":false}", "'scale_attn_weights' is false" },
        { GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", "'scale_attn_by_inverse_layer_idx' is true" },
        { GPT2 ",\"add_cross_attention\":true}", "'add_cross_attention' is true" },
        { GPT2 ",\"tie_word_embeddings\":1}", "'tie_word_embeddings' must be true or false" },
        { GPT2 ",\"quantization_config\":{}}", "'quantization_config' is set" },
        { GPT2 ",\"quantization_config\":4}", "'quantization_config' must be an object" },
        { GPT2 ",\"model_type\":7}", "'model_type' must be a string" },
        { GPT2 ",\"model_type\":[\"gpt2\"]}", "'model_type' must be a string" },
        { GPT2 ",\"torch_dtype\":32}", "'torch_dtype' must be a string" },
        { GPT2 ",\"attn_pdrop\":\"0.1\"}", "'attn_pdrop' must be a number" },
        { GPT2 ",\"eos_token_id\":[1,\"2\"]}", "'eos_token_id' must be a whole number or a list of them" },
        { GPT2 ",\"use_cache\":1}", "'use_cache' must be true or false" },
        { "{\"architectures\":\"GPT2LMHeadModel\",\"model_type\":\"gpt2\"}", "'architectures' must be a list of strings" },
        { "{\"architectures\":[5],\"model_type\":\"gpt2\"}", "'architectures' must be a list of strings" },
        { GPT2 ",\"layer_norm_epsilon\":\"x\"}", "'layer_norm_epsilon' must be a number" },
        { LLAMA ",\"hidden_act\":\"gelu\"}", "'hidden_act' is 'gelu'" },
        { LLAMA ",\"attention_bias\":true}", "'attention_bias' is true" },
        { LLAMA ",\"mlp_bias\":true}", "'mlp_bias' is true" },
        { LLAMA ",\"pretraining_tp\":2}", "'pretraining_tp' is 2" },
        { LLAMA ",\"num_key_value_heads\":3}", "heads 4 is not divisible by kv_heads 3" },
        { LLAMA ",\"rope_scaling\":{\"rope_type\":\"yarn\"}}", "'rope_scaling.rope_type' is 'yarn'" },
        { LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", "lacks factor, low_freq_factor" },
        { LLAMA ",\"rope_scaling\":5}", "'rope_scaling' must be an object" },
        { LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", "'partial_rotary_factor' is 0.5" },
        { LLAMA ",\"hidden_size\":99999999999}", "config.json" },
        { MIXTRAL ",\"sliding_window\":4096}", "'sliding_window' is set" },
        { MIXTRAL ",\"router_jitter_noise\":0.1}", "'router_jitter_noise' is 0.1" },
        { MIXTRAL ",\"num_local_experts\":1}", "experts_per_token is 2; of 1 experts" },
        { QWEN3_MOE ",\"decoder_sparse_step\":2}", "'decoder_sparse_step' is 2" },
        { QWEN3_MOE ",\"mlp_only_layers\":[0]}", "'mlp_only_layers' lists 1 layers" },
        { QWEN3_MOE ",\"use_sliding_window\":true}", "'use_sliding_window' is true" },
        { QWEN3 ",\"use_sliding_window\":true}", "'use_sliding_window' is true" },
        { QWEN3 ",\"attention_bias\":true}", "'attention_bias' is true" },
    };
    ls_model m;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        FAILS(cases[i].says, read_text(cases[i].text, &m));
    REFUSED(LS_EIO, "/nonexistent", ls_model_read_hf("/nonexistent", &m));
}

static void test_config_written(void **state)
{
    ls_model a, b;
    size_t bytes;
    char *text;

    (void)state;
    for (int i = 0; ls_model_preset_name(i); i++) {
        a = preset(ls_model_preset_name(i));
        a.activation = a.architecture == LS_GPT2 ? (ls_activation)(i % 3) : LS_GELU_TANH;
        OK(model_write_hf_config(&a, LS_BF16, &text, &bytes));
        assert_int_equal(strlen(text), bytes);
        assert_non_null(strstr(text, "bfloat16"));
        OK(read_text(text, &b));
        mem_free(text);
        assert_true(a.architecture == b.architecture && a.layers == b.layers && a.width == b.width &&
                    a.heads == b.heads &&
                    a.kv_heads == b.kv_heads && a.head_size == b.head_size && a.ffn == b.ffn && a.vocab == b.vocab &&
                    a.max_positions == b.max_positions && a.tied == b.tied && a.activation == b.activation &&
                    a.norm_eps == b.norm_eps && a.init_std == b.init_std && a.rope.theta == b.rope.theta &&
                    a.rope.factor == b.rope.factor);
        assert_true(a.experts == b.experts && a.experts_per_token == b.experts_per_token && a.expert_ffn == b.expert_ffn &&
                    a.norm_topk == b.norm_topk && a.aux_coef == b.aux_coef);
        if (a.rope.factor != 1)
            assert_memory_equal(&a.rope, &b.rope, sizeof a.rope);
    }
}

static void test_hf_names(void **state)
{
    ls_model gpt2 = preset("gpt2-tiny"), llama = preset("llama-tiny");
    struct model_weight w;

    (void)state;
    assert_true(hf_name_matches("wte.weight", "transformer.wte.weight"));
    assert_true(hf_name_matches("transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.bias"));
    assert_false(hf_name_matches("wpe.weight", "transformer.wte.weight"));
    assert_true(hf_name_is_ignored(&gpt2, "h.0.attn.bias") &&
                hf_name_is_ignored(&gpt2, "transformer.h.1.attn.masked_bias"));
    assert_true(hf_name_is_ignored(&gpt2, "lm_head.weight"));
    assert_false(hf_name_is_ignored(&gpt2, "h.0.attn.c_attn.bias"));
    assert_false(hf_name_is_ignored(&llama, "lm_head.weight"));
    assert_true(hf_name_is_ignored(&llama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
    model_weight_at(&gpt2, 6, &w);  /* wte, wpe, ln_1 twice, q twice, k */
    assert_string_equal(w.name, "h.0.attn.k.weight");
    assert_string_equal(w.hf, "transformer.h.0.attn.c_attn.weight");
    assert_true(w.transposed && w.part == 1 && w.parts == 3 && w.size[0] == 64 && w.hf_size[0] == 64 &&
                w.hf_size[1] == 192);
    model_weight_at(&gpt2, 7, &w);
    assert_true(!w.transposed && w.ndim == 1 && w.size[0] == 64 && w.hf_size[0] == 192);
    model_weight_at(&llama, model_weight_count(&llama) - 1, &w);
    assert_string_equal(w.hf, "lm_head.weight");
}

/* Sharding goes by these dims. */
static void test_weight_dims(void **state)
{
    enum model_dim dim[MODEL_WEIGHT_DIMS];
    struct model_weight w;
    ls_model m;

    (void)state;
    for (int i = 0; ls_model_preset_name(i); i++) {
        m = preset(ls_model_preset_name(i));
        if (m.experts)
            m.shared_ffn = 40, m.balance = 0.1;
        for (size_t k = 0; k < model_weight_count(&m); k++) {
            model_weight_at(&m, k, &w);
            assert_int_equal(model_weight_dims(&m, w.name, dim), w.ndim);
            for (int d = 0; d < w.ndim; d++)
                assert_int_equal(model_dim_size(&m, dim[d]), w.size[d]);
            assert_true((dim[0] == DIM_STACK) == (w.stacked > 0));
        }
    }
    m = preset("mixtral-tiny");
    assert_int_equal(model_weight_dims(&m, "model.layers.1.mlp.gate.weight", dim), 2);
    assert_int_equal(dim[0], DIM_EXPERTS);  /* the router is on all ranks */
    assert_int_equal(model_weight_dims(&m, "model.layers.x.mlp.gate.weight", dim), 0);
    assert_int_equal(model_weight_dims(&m, "model.layers.1.norm.weight", dim), 0);
    assert_int_equal(model_weight_dims(&m, "mlp.gate.weight", dim), 0);
}

/* ---- gradients of whole models ---- */

struct run { ls_store *s; ls_program *p; double loss; };

static struct run train_once(const ls_model *m, ls_dtype type, const ls_compile_options *options, int64_t dropout_step)
{
    enum { B = 2, T = 12 };
    ls_store_options so = { "cpu", type, 1, 42 };
    int32_t x[B * T], y[B * T];
    ls_value tokens, targets, step = LS_NONE;
    struct run r;

    OK(ls_store_new(&so, &r.s));
    OK(ls_program_new(r.s, &r.p));
    tokens = ls_input(r.p, "tokens", LS_I32, 2, (size_t[]){ B, T });
    targets = ls_input(r.p, "targets", LS_I32, 2, (size_t[]){ B, T });
    if (dropout_step >= 0)
        step = ls_input(r.p, "step", LS_I64, 1, (size_t[]){ 1 });
    ls_backward(r.p, ls_output(r.p, "loss", ls_model_loss(r.p, m, tokens, targets, LS_NONE, step)));
    OK(ls_program_compile(r.p, options));
    for (int i = 0; i < B * T; i++) {
        x[i] = i * 37 % (int)m->vocab;
        y[i] = i % 5 ? (i * 37 + 37) % (int)m->vocab : -1;
    }
    OK(ls_program_write(r.p, "tokens", x, LS_I32, B * T));
    OK(ls_program_write(r.p, "targets", y, LS_I32, B * T));
    if (dropout_step >= 0)
        OK(ls_program_write(r.p, "step", &dropout_step, LS_I64, 1));
    OK(ls_program_run(r.p, LS_FORWARD | LS_BACKWARD | LS_WEIGHTS));
    OK(ls_program_read(r.p, "loss", &r.loss, LS_F64, 1));
    return r;
}

static void close_run(struct run *r)
{
    ls_program_release(&r->p);
    ls_store_release(&r->s);
}

/* The largest |a - b| / |a| over the gradients of all parameters. */
static double difference(const struct run *a, const struct run *b)
{
    double most = 0;

    for (size_t i = 0; i < ls_store_count(a->s); i++) {
        size_t n = ls_tensor_count(ls_store_grad(a->s, i));
        double *x = malloc(2 * n * sizeof *x), *y = x + n, off = 0, norm = 0;

        OK(ls_tensor_read(ls_store_grad(a->s, i), x, LS_F64, n));
        OK(ls_tensor_read(ls_store_grad(b->s, i), y, LS_F64, n));
        for (size_t k = 0; k < n; k++) {
            off += (x[k] - y[k]) * (x[k] - y[k]);
            norm += x[k] * x[k];
        }
        assert_true(norm > 0);
        most = fmax(most, sqrt(off / norm));
        free(x);
    }
    return most;
}

/* Halfway between the arenas of keeping everything and of keeping block inputs only. */
static size_t half_budget(const ls_model *m, ls_dtype type, const struct run *plain)
{
    struct run full = train_once(m, type, &(ls_compile_options){ .recompute = LS_RECOMPUTE_FULL }, 3);
    size_t most = ls_program_cost(plain->p).activations, least = ls_program_cost(full.p).activations;

    assert_true(least < most);
    close_run(&full);
    return (most + least) / 2;
}

/* Whatever is kept or made again, and whenever the weights' gradients are formed: the same bits. */
static void test_recompute(void **state)
{
    ls_compile_options modes[] = {
        { .recompute = LS_RECOMPUTE_SELECTIVE }, { .recompute = LS_RECOMPUTE_FULL },
        { .recompute = LS_RECOMPUTE_EVERY, .every = 2 }, { .recompute = LS_RECOMPUTE_EVERY, .every = 3 },
        { .split_backward = 1 }, { .recompute = LS_RECOMPUTE_BUDGET },
        { .recompute = LS_RECOMPUTE_FULL, .split_backward = 1, .check_finite = 1 },
    };
    static const char *const names[] = { "gpt2-tiny", "llama-tiny" };
    static const ls_dtype types[] = { LS_F32, LS_BF16 };

    (void)state;
    for (int k = 0; k < 4; k++) {
        ls_model m = preset(names[k / 2]);
        struct run plain, other;

        m.layers = 4;
        m.dropout = k / 2 ? 0 : 0.25;
        plain = train_once(&m, types[k % 2], NULL, 3);
        modes[5].bytes = half_budget(&m, types[k % 2], &plain);
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
            other = train_once(&m, types[k % 2], &modes[i], 3);
            if (other.loss != plain.loss || difference(&plain, &other) != 0)
                fail_msg("%s %s, mode %zu: loss %.17g and %.17g, gradients differ by %g", names[k / 2],
                         ls_dtype_name(types[k % 2]), i, plain.loss, other.loss, difference(&plain, &other));
            close_run(&other);
        }
        close_run(&plain);
    }
}

static void test_fused_loss(void **state)
{
    ls_compile_options fused = { .fuse_loss = 1 };
    ls_model m = preset("llama-tiny");
    struct run a = train_once(&m, LS_F64, NULL, -1), b = train_once(&m, LS_F64, &fused, -1);

    (void)state;
    assert_true(fabs(a.loss - b.loss) <= 1e-14 * a.loss);
    assert_true(difference(&a, &b) < 1e-12);
    close_run(&a);
    close_run(&b);
}

/* Masks depend on step and seed; without a step there are none. */
static void test_dropout(void **state)
{
    ls_model m = preset("gpt2-tiny"), other;
    struct run plain, none, a, again, later, reseeded;

    (void)state;
    plain = train_once(&m, LS_F32, NULL, -1);
    m.dropout = 0.2;
    other = m;
    other.seed = 1;
    none = train_once(&m, LS_F32, NULL, -1);
    a = train_once(&m, LS_F32, NULL, 5);
    again = train_once(&m, LS_F32, NULL, 5);
    later = train_once(&m, LS_F32, NULL, 6);
    reseeded = train_once(&other, LS_F32, NULL, 5);
    assert_true(none.loss == plain.loss && a.loss == again.loss);
    assert_true(a.loss != plain.loss && a.loss != later.loss && a.loss != reseeded.loss);
    close_run(&plain);
    close_run(&none);
    close_run(&a);
    close_run(&again);
    close_run(&later);
    close_run(&reseeded);
}

/* A tied model is an untied one whose head starts as the embedding: the two gradients add up on the one parameter. */
static void test_tied(void **state)
{
    ls_model tied = preset("llama-tiny"), untied = tied;
    struct run a, b;
    size_t n, head;
    double *e, *sum, *h;

    (void)state;
    tied.tied = 1;
    assert_int_equal(ls_model_parameters(&untied) - ls_model_parameters(&tied), tied.vocab * tied.width);
    a = train_once(&tied, LS_F64, NULL, -1);
    b = train_once(&untied, LS_F64, NULL, -1);
    head = (size_t)ls_store_find(b.s, "lm_head.weight");
    assert_int_equal(ls_store_find(a.s, "lm_head.weight"), -1);
    n = ls_tensor_count(ls_store_value(a.s, 0));
    e = malloc(3 * n * sizeof *e);
    sum = e + n;
    h = sum + n;
    OK(ls_tensor_read(ls_store_value(a.s, 0), e, LS_F64, n));
    OK(ls_store_set(b.s, head, e, LS_F64, n));
    ls_store_zero_grad(b.s);
    OK(ls_program_run(b.p, LS_FORWARD | LS_BACKWARD));
    OK(ls_program_read(b.p, "loss", &b.loss, LS_F64, 1));
    assert_true(a.loss == b.loss);
    OK(ls_tensor_read(ls_store_grad(a.s, 0), sum, LS_F64, n));
    OK(ls_tensor_read(ls_store_grad(b.s, 0), e, LS_F64, n));
    OK(ls_tensor_read(ls_store_grad(b.s, head), h, LS_F64, n));
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(sum[i] - e[i] - h[i]) < 1e-12);
    free(e);
    close_run(&a);
    close_run(&b);
}

/* GPT-2's residual projections start at init_std / sqrt(2 layers), everything else at init_std. */
static void test_initialisation(void **state)
{
    ls_model m = preset("gpt2-tiny");
    struct run r;

    (void)state;
    m.layers = 8;
    r = train_once(&m, LS_F64, NULL, -1);
    for (size_t i = 0; i < ls_store_count(r.s); i++) {
        const char *name = ls_store_name(r.s, i);
        size_t n = ls_tensor_count(ls_store_value(r.s, i));
        const double *x = ls_tensor_data(ls_store_value(r.s, i));
        double want = strstr(name, "proj.weight") ? 0.02 / 4 : 0.02, sum = 0;

        for (size_t k = 0; k < n; k++)
            sum += x[k] * x[k];
        if (ls_store_ndim(r.s, i) == 2)
            assert_true(fabs(sqrt(sum / (double)n) / want - 1) < 0.05);
        else
            assert_true(sum == (strstr(name, "ln_") && strstr(name, "weight") ? (double)n : 0));
    }
    close_run(&r);
}

static void test_mlp(void **state)
{
    ls_store *s;
    ls_program *p;
    ls_value x, y;

    (void)state;
    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    x = ls_input(p, "x", LS_F32, 2, (size_t[]){ 5, 3 });
    y = ls_mlp(p, "net", x, 3, (size_t[]){ 3, 7, 2 });
    OK(ls_program_status(p));
    assert_int_equal(ls_value_size(p, y, 0), 5);
    assert_int_equal(ls_value_size(p, y, 1), 2);
    assert_int_equal(ls_store_elements(s), 3 * 7 + 7 + 7 * 2 + 2);
    assert_true(ls_store_find(s, "net.0.weight") >= 0 && ls_store_find(s, "net.1.bias") >= 0);
    ls_mlp(p, "net", x, 3, (size_t[]){ 3, 8, 2 });
    REFUSED(LS_EINVAL, "net.0.weight", ls_program_status(p));
    ls_program_release(&p);
    OK(ls_program_new(s, &p));
    ls_mlp(p, "one", ls_input(p, "x", LS_F32, 1, (size_t[]){ 3 }), 1, (size_t[]){ 3 });
    REFUSED(LS_EINVAL, "an input and an output make 2", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
}

/* Everything that a user of models does before the first step. */
static ls_status prepare(ls_store *s, ls_program *p)
{
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    ls_model m;
    ls_value x, y;

    LS_TRY(model_parse_hf(GPT2 "}", sizeof GPT2, "config.json", &m));
    m.dropout = 0.1;
    x = ls_input(p, "x", LS_I32, 2, (size_t[]){ 1, 4 });
    y = ls_input(p, "y", LS_I32, 2, (size_t[]){ 1, 4 });
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, ls_input(p, "step", LS_I64, 1, (size_t[]){ 1 })));
    LS_TRY(ls_program_status(p));
    LS_TRY(ls_optimizer_append(p, &adamw));
    LS_TRY(ls_program_compile(p, NULL));
    return ls_store_allocate(s);
}

static ls_status prepare_all(void)
{
    ls_cache *c = NULL;
    ls_store *s = NULL;
    ls_program *p = NULL;
    ls_model m = preset("llama-tiny");
    char *text = NULL;
    size_t bytes;
    ls_status st = ls_cache_new(&m, LS_F32, 1, 8, &c);

    if (st == LS_OK)
        st = model_write_hf_config(&m, LS_F32, &text, &bytes);
    if (st == LS_OK)
        st = ls_store_new(NULL, &s);
    if (st == LS_OK)
        st = ls_program_new(s, &p);
    if (st == LS_OK)
        st = prepare(s, p);
    mem_free(text);
    ls_program_release(&p);
    ls_store_release(&s);
    ls_cache_release(&c);
    return st;
}

/* The Nth allocation fails, for every N: a status, a message, and nothing left behind. */
static void models_fail_cleanly_without_memory(void **state)
{
    struct mem_stats before, after;
    ls_status st = LS_ENOMEM;
    int64_t n;

    (void)state;
    mem_read(&before);
    for (n = 1; st == LS_ENOMEM; n++) {
        mem_fail_at(n);
        st = prepare_all();
        mem_fail_at(0);
        mem_read(&after);
        assert_int_equal(after.total_now, before.total_now);
        if (st < 0 && (st != LS_ENOMEM || !strstr(ls_errmsg(), "out of memory")))
            fail_msg("allocation %lld failed with %d: %s", (long long)n, (int)st, ls_errmsg());
    }
    assert_int_equal(st, LS_OK);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts), cmocka_unit_test(test_flops), cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(impossible_tokens_are_refused), cmocka_unit_test(impossible_caches_are_refused), cmocka_unit_test(test_config_read),
        cmocka_unit_test(malformed_configs_are_refused), cmocka_unit_test(test_config_written), cmocka_unit_test(test_hf_names), cmocka_unit_test(test_weight_dims),
        cmocka_unit_test(test_recompute), cmocka_unit_test(test_fused_loss), cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_tied), cmocka_unit_test(test_initialisation), cmocka_unit_test(test_mlp),
        cmocka_unit_test(models_fail_cleanly_without_memory),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
