/* test_nn_config.c - config.json read and written, names of weights and their dims. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "helper_check.h"
#include "helper_nn.h"
#include "lockstep/nn.h"
#include "models/hf.h"
#include "models/model.h"

static char nn_config_folder[] = "/tmp/lockstep-nn-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(nn_config_folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(nn_config_folder) < 0 ? -1 : 0;
}

static ls_status read_text(const char *text, ls_model *m)
{
    char path[128];

    snprintf(path, sizeof path, "%s/config.json", nn_config_folder);
    OK(file_write(path, text, strlen(text)));
    return ls_model_read_hf(nn_config_folder, m);
}
#define LLAMA "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

#define MIXTRAL "{\"architectures\":[\"MixtralForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
                "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"
#define QWEN3_MOE "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

#define QWEN3 "{\"model_type\":\"qwen3\",\"num_hidden_layers\":2,\"hidden_size\":8,\"num_attention_heads\":4," \
              "\"num_key_value_heads\":2,\"intermediate_size\":12,\"vocab_size\":11,\"max_position_embeddings\":16"

#define STARCODER2 "{\"model_type\":\"starcoder2\",\"num_hidden_layers\":30,\"hidden_size\":3072,\"num_attention_heads\":24," \
              "\"num_key_value_heads\":2,\"intermediate_size\":12288,\"vocab_size\":49152,\"max_position_embeddings\":16384"

static void test_config_read(void **state)
{
    ls_model m;

    (void)state;
    OK(read_text(NN_GPT2_CONFIG "}", &m));
    assert_true(m.architecture == LS_GPT2 && m.layers == 2 && m.width == 8 && m.heads == 2 && m.kv_heads == 2 &&
                m.head_size == 4 && m.ffn == 32 && m.vocab == 11 && m.max_positions == 16 && m.tied && m.activation == LS_GELU_TANH);
    OK(read_text(NN_GPT2_CONFIG ",\"n_inner\":20,\"activation_function\":\"gelu\",\"tie_word_embeddings\":false,"
                  "\"layer_norm_epsilon\":0.001,\"resid_pdrop\":0.1,\"n_ctx\":null}", &m));
    assert_true(m.ffn == 20 && m.activation == LS_GELU_ERF && !m.tied && m.norm_eps == 0.001 && m.dropout == 0);
    OK(read_text(NN_GPT2_CONFIG ",\"activation_function\":\"relu2\"}", &m));
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
                  "\"hidden_size\":1024,\"initializer_range\":0.02,\"intermediate_size\":3072,\"max_position_embeddings\":40960,"
                  "\"max_window_layers\":28,"
                  "\"model_type\":\"qwen3\",\"num_attention_heads\":16,\"num_hidden_layers\":28,\"num_key_value_heads\":8,"
                  "\"rms_norm_eps\":1e-06,\"rope_scaling\":null,\"rope_theta\":1000000,\"sliding_window\":null,"
                  "\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\",\"use_sliding_window\":false,\"vocab_size\":151936}", &m));
    ls_model published = nn_preset("qwen3-0.6b");
    assert_true(m.architecture == published.architecture && m.layers == published.layers && m.width == published.width &&
                m.heads == published.heads && m.kv_heads == published.kv_heads && m.head_size == published.head_size &&
                m.ffn == published.ffn && m.vocab == published.vocab && m.max_positions == published.max_positions && m.tied &&
                published.tied && m.norm_eps == published.norm_eps && m.rope.theta == published.rope.theta && m.rope.factor == 1);
    OK(read_text(QWEN3 "}", &m));  /* transformers' own default of head_dim */
    assert_true(m.architecture == LS_QWEN3 && m.ffn == 12 && m.kv_heads == 2 && m.head_size == 128 && !m.tied && m.norm_eps == 1e-6);
    OK(read_text(QWEN3 ",\"head_dim\":6,\"tie_word_embeddings\":true,\"sliding_window\":null,\"layer_types\":[\"full_attention\"]}", &m));
    assert_true(m.head_size == 6 && m.tied);
    OK(read_text(STARCODER2 ",\"hidden_act\":\"gelu_pytorch_tanh\",\"initializer_range\":0.018042,\"mlp_type\":\"default\","
                  "\"norm_epsilon\":1e-05,\"norm_type\":\"layer_norm\",\"residual_dropout\":0.1,\"rope_theta\":999999.4420358813,"
                  "\"sliding_window\":4096,\"use_bias\":true}", &m));
    published = nn_preset("starcoder2-3b");
    assert_true(m.architecture == LS_STARCODER2 && m.layers == published.layers && m.width == published.width &&
                m.heads == published.heads && m.kv_heads == published.kv_heads && m.head_size == published.head_size &&
                m.ffn == published.ffn && m.vocab == published.vocab && m.max_positions == 4096 && published.max_positions == 4096 &&
                m.tied && published.tied && m.norm_eps == published.norm_eps && m.init_std == published.init_std &&
                m.rope.theta == published.rope.theta && m.activation == LS_GELU_TANH && m.dropout == 0);
    OK(read_text(STARCODER2 ",\"hidden_act\":\"relu2\",\"sliding_window\":null,\"tie_word_embeddings\":false}", &m));
    assert_true(m.max_positions == 16384 && !m.tied && m.activation == LS_RELU_SQUARED);
}

static void malformed_configs_are_refused(void **state)
{
    static const struct { const char *text, *says; } cases[] = {
        { "[]", "not an object" },
        { "{}", "neither 'architectures' nor 'model_type'" },
        { "{\"architectures\":[\"BertModel\"]}", "'architectures' is 'BertModel'" },
        { "{\"model_type\":\"mistral\"}", "'model_type' is 'mistral'" },
        { "{\"architectures\":[\"GPT2LMHeadModel\"]}", "'n_layer' is missing" },
        { NN_GPT2_CONFIG ",\"n_layer\":3}", "config.json" },
        { NN_GPT2_CONFIG ",\"n_inner\":-1}", "'n_inner' must be a whole number" },
        { NN_GPT2_CONFIG ",\"n_inner\":2.5}", "'n_inner' must be a whole number" },
        { NN_GPT2_CONFIG ",\"activation_function\":\"relu\"}", "'activation_function' is 'relu'" },
        { NN_GPT2_CONFIG ",\"activation_function\":7}", "'activation_function' must be a string" },
        { NN_GPT2_CONFIG ",\"scale_attn_weights\":false}", "'scale_attn_weights' is false" },
        { NN_GPT2_CONFIG ",\"scale_attn_by_inverse_layer_idx\":true}", "'scale_attn_by_inverse_layer_idx' is true" },
        { NN_GPT2_CONFIG ",\"add_cross_attention\":true}", "'add_cross_attention' is true" },
        { NN_GPT2_CONFIG ",\"tie_word_embeddings\":1}", "'tie_word_embeddings' must be true or false" },
        { NN_GPT2_CONFIG ",\"quantization_config\":{}}", "'quantization_config' is set" },
        { NN_GPT2_CONFIG ",\"quantization_config\":4}", "'quantization_config' must be an object" },
        { NN_GPT2_CONFIG ",\"model_type\":7}", "'model_type' must be a string" },
        { NN_GPT2_CONFIG ",\"model_type\":[\"gpt2\"]}", "'model_type' must be a string" },
        { NN_GPT2_CONFIG ",\"torch_dtype\":32}", "'torch_dtype' must be a string" },
        { NN_GPT2_CONFIG ",\"attn_pdrop\":\"0.1\"}", "'attn_pdrop' must be a number" },
        { NN_GPT2_CONFIG ",\"eos_token_id\":[1,\"2\"]}", "'eos_token_id' must be a whole number or a list of them" },
        { NN_GPT2_CONFIG ",\"use_cache\":1}", "'use_cache' must be true or false" },
        { "{\"architectures\":\"GPT2LMHeadModel\",\"model_type\":\"gpt2\"}", "'architectures' must be a list of strings" },
        { "{\"architectures\":[5],\"model_type\":\"gpt2\"}", "'architectures' must be a list of strings" },
        { NN_GPT2_CONFIG ",\"layer_norm_epsilon\":\"x\"}", "'layer_norm_epsilon' must be a number" },
        { LLAMA ",\"hidden_act\":\"gelu\"}", "'hidden_act' is 'gelu'" },
        { STARCODER2 ",\"hidden_act\":\"silu\"}", "'hidden_act' is 'silu'" },
        { STARCODER2 ",\"use_bias\":false}", "'use_bias' is false" },
        { STARCODER2 ",\"sliding_window\":0}", "'sliding_window' must be a whole number" },
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
        { MIXTRAL ",\"num_local_experts\":1}", "experts_per_token is 2; with 1 experts" },
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
        a = nn_preset(ls_model_preset_name(i));
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

static double written_rate(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    assert_non_null(at);
    at += strlen(key);
    return strtod(at + strspn(at, " :"), NULL);
}

/* Dropout is written with the model; configs' rates are settings of another training and are not read. */
static void test_dropout_written(void **state)
{
    ls_model a = nn_preset("gpt2-tiny"), b;
    size_t bytes;
    char *text;

    (void)state;
    a.dropout = 0.25;
    a.attention_dropout = 0.125;
    OK(model_write_hf_config(&a, LS_F32, &text, &bytes));
    assert_true(written_rate(text, "\"attn_pdrop\"") == 0.125);
    assert_true(written_rate(text, "\"resid_pdrop\"") == 0.25);
    OK(read_text(text, &b));
    assert_true(b.dropout == 0 && b.attention_dropout == 0);
    mem_free(text);
}

static void test_hf_names(void **state)
{
    ls_model gpt2 = nn_preset("gpt2-tiny"), llama = nn_preset("llama-tiny");
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

/* Sharding uses these dims. */
static void test_weight_dims(void **state)
{
    enum model_dim dim[MODEL_WEIGHT_DIMS];
    struct model_weight w;
    ls_model m;

    (void)state;
    for (int i = 0; ls_model_preset_name(i); i++) {
        m = nn_preset(ls_model_preset_name(i));
        if (m.experts)
            m.shared_ffn = 40, m.router_bias_rate = 0.1;
        for (size_t k = 0; k < model_weight_count(&m); k++) {
            model_weight_at(&m, k, &w);
            assert_int_equal(model_weight_dims(&m, w.name, dim), w.ndim);
            for (int d = 0; d < w.ndim; d++)
                assert_int_equal(model_dim_size(&m, dim[d]), w.size[d]);
            assert_true((dim[0] == DIM_STACK) == (w.stacked > 0));
        }
    }
    m = nn_preset("mixtral-tiny");
    assert_int_equal(model_weight_dims(&m, "model.layers.1.mlp.gate.weight", dim), 2);
    assert_int_equal(dim[0], DIM_EXPERTS);  /* the router is on all ranks */
    assert_int_equal(model_weight_dims(&m, "model.layers.x.mlp.gate.weight", dim), 0);
    assert_int_equal(model_weight_dims(&m, "model.layers.1.norm.weight", dim), 0);
    assert_int_equal(model_weight_dims(&m, "mlp.gate.weight", dim), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_read),
        cmocka_unit_test(malformed_configs_are_refused),
        cmocka_unit_test(test_config_written),
        cmocka_unit_test(test_dropout_written),
        cmocka_unit_test(test_hf_names),
        cmocka_unit_test(test_weight_dims),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
