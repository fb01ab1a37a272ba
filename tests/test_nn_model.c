/* test_nn_model.c - model descriptions: parameter counts compared with published ones, FLOPs, refused sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "helper_check.h"
#include "helper_nn.h"
#include "lockstep/nn.h"
#include "models/model.h"

/* ---- counts ---- */

static void test_counts(void **state)
{
    static const struct { const char *name; size_t parameters; } published[] = {
        { "gpt2-124m", 124439808 }, { "gpt2-350m", 354823168 }, { "gpt2-774m", 774030080 }, { "gpt2-1.5b", 1557611200 },
        { "llama3-8b", 8030261248 }, { "llama3.2-1b", 1235814400 }, { "mixtral-8x7b", 46702792704 },
        { "qwen3-30b-a3b", 30532122624 }, { "qwen3-0.6b", 596049920 }, { "qwen3-1.7b", 1720574976 }, { "qwen3-8b", 8190735360 },
        { "starcoder2-3b", 3030371328 }, { "starcoder2-7b", 7173923840 },
    };
    ls_model m;

    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        m = nn_preset(published[i].name);
        assert_int_equal(ls_model_parameters(&m), published[i].parameters);
    }
    for (int i = 0; ls_model_preset_name(i); i++)
        nn_preset(ls_model_preset_name(i));
    m = nn_preset("llama-demo");
    assert_in_range(ls_model_parameters(&m), 4000000, 6000000);
    REFUSED(LS_EINVAL, "unknown preset 'gpt3'", ls_model_preset("gpt3", &m));
}

static void test_flops(void **state)
{
    ls_model m = nn_preset("gpt2-124m");
    double matmuls = 12.0 * 12 * 768 * 768 + 50257.0 * 768;  /* a layer: 4 C C + 2 C 4C; the tied head */

    (void)state;
    assert_true(ls_model_flops_per_token(&m, 1024) == 6 * matmuls + 6.0 * 12 * 768 * 1024);
    m.tied = 0;  /* the embedding is looked up, the head multiplied: the same work */
    assert_true(ls_model_flops_per_token(&m, 1024) == 6 * matmuls + 6.0 * 12 * 768 * 1024);
    m = nn_preset("llama3-8b");
    matmuls = 32.0 * (2 * 4096 * 4096.0 + 2 * 1024 * 4096.0 + 3 * 14336 * 4096.0) + 128256 * 4096.0;
    assert_true(ls_model_flops_per_token(&m, 8192) == 6 * matmuls + 6.0 * 32 * 4096 * 8192);
    m = nn_preset("mixtral-8x7b");  /* two of eight experts work */
    matmuls = 32.0 * (2 * 4096 * 4096.0 + 2 * 1024 * 4096.0 + 8 * 4096.0 + 2 * 3 * 14336 * 4096.0) + 32000 * 4096.0;
    assert_true(ls_model_flops_per_token(&m, 8192) == 6 * matmuls + 6.0 * 32 * 4096 * 8192);
}

/* ---- what is refused ---- */

static void impossible_models_are_refused(void **state)
{
#define REFUSE(name, change, says)                          \
    do {                                                    \
        ls_model m = nn_preset(name);                          \
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
    REFUSE("llama-tiny", m.attention_dropout = 0.1, "no dropout");
    REFUSE("gpt2-tiny", m.attention_dropout = 1, "attention_dropout 1");
    REFUSE("llama-tiny", m.rope.theta = 0, "theta 0");
    REFUSE("llama-tiny", (m.rope.factor = 8, m.rope.high_freq_factor = 1), "high_freq_factor 1");
    REFUSE("llama-tiny", m.layers = 65537, "layers is 65537");
    REFUSE("llama-tiny", m.experts = 4, "Llama has no experts: experts 4");
    REFUSE("mixtral-tiny", m.experts = 0, "experts is 0");
    REFUSE("mixtral-tiny", m.experts_per_token = 5, "experts_per_token is 5; with 4 experts");
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
    ls_model m = nn_preset(name);
    ls_store *s;
    ls_program *p;

    OK(ls_store_new(NULL, &s));
    OK(ls_program_new(s, &p));
    ls_model_logits(p, &m, ls_input(p, "tokens", LS_I32, ndim, (size_t[]){ b, t, 1 }));
    ls_status st = ls_program_status(p);
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
    ls_model m = nn_preset("llama-tiny"), deeper = m;
    ls_cache *c;
    ls_store *s;
    ls_program *p;
    ls_value tokens, position;

    (void)state;
    REFUSED(LS_EINVAL, "positions 129", ls_cache_new("cpu", &m, LS_F32, 1, 129, &c));
    REFUSED(LS_EINVAL, "batch is 0", ls_cache_new("cpu", &m, LS_F32, 0, 12, &c));
    OK(ls_cache_new("cpu", &m, LS_F32, 1, 12, &c));
    OK(ls_store_new(NULL, &s));
    for (int k = 0; k < 2; k++) {
        OK(ls_program_new(s, &p));
        tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ k ? 1 : 2, 3 });
        position = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
        deeper.layers = 3;
        ls_model_decode(p, k ? &deeper : &m, c, tokens, position, position, position, position);
        REFUSED(LS_EINVAL, k ? "a cache of 2 layers for a model of 3" : "decoding takes tokens [1,T], not [2,T]", ls_program_status(p));
        ls_program_release(&p);
    }
    OK(ls_program_new(s, &p));
    tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ 1, 3 });
    position = ls_input(p, "position", LS_I32, 1, (size_t[]){ 1 });
    ls_model_decode_batch(p, &m, 2, (ls_cache *[]){ c, c }, tokens, position, (ls_value[]){ position, position },
                          (ls_value[]){ position, position });
    REFUSED(LS_EINVAL, "3 tokens for 2 texts", ls_program_status(p));
    ls_program_release(&p);
    ls_store_release(&s);
    ls_cache_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(impossible_tokens_are_refused),
        cmocka_unit_test(impossible_caches_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
