/* plan_case_model.c - the model of a published run, as options. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "cli/plan_case.h"

/* Columns that a row cannot do without. */
static const char *const needed[] = { "layers", "hidden", "ffn_hidden", "heads", "vocab", "seq", "gpus", "global_batch" };

const char *case_needed(size_t i) { return i < COUNT_OF(needed) ? needed[i] : NULL; }

/* Models with experts, whose number and width are not among the columns: those of their published configurations. kv_heads: instead of the
 * row's. Latent attention (DeepSeek-V2, 2024) has a fifth less in its projections than this one key head with as many query heads
 * (DeepSeek-V3), and a quarter more FLOPs for each pair of query and key. */
static const struct experts {
    const char *name, *preset;
    int experts, active, width, head, shared, kv_heads;
    int nodes; /* most nodes that a token's experts are on (node-limited routing); 0: no limit */
} with_experts[] = {
    { "Grok1-314B", "mixtral-8x7b", 8, 2, 32768, 128, 0, 0, 0 },        { "GPT-OSS-120B", "mixtral-8x7b", 128, 4, 2880, 64, 0, 0, 0 },
    { "GPT-OSS-20B", "mixtral-8x7b", 32, 4, 2880, 64, 0, 0, 0 },        { "Mixtral-8x7B", "mixtral-8x7b", 8, 2, 14336, 128, 0, 0, 0 },
    { "Mixtral-8x22B", "mixtral-8x7b", 8, 2, 16384, 128, 0, 0, 0 },     { "Qwen3-30B-A3B", "qwen3-30b-a3b", 128, 8, 768, 128, 0, 0, 0 },
    { "Qwen3-235B-A22B", "qwen3-30b-a3b", 128, 8, 1536, 128, 0, 0, 0 }, { "DeepSeekV3", "qwen3-30b-a3b", 256, 8, 2048, 128, 2048, 1, 4 },
    { "Kimi-K2", "qwen3-30b-a3b", 384, 8, 2048, 128, 2048, 1, 0 },
};

/* The letters and digits of a name in lower case: "Mixtral 8x7B" is "Mixtral-8x7B". */
static void plain_name(const char *text, char *out, size_t room)
{
    size_t n = 0;

    for (; *text && n + 1 < room; text++) {
        if (isalnum((unsigned char)*text))
            out[n++] = (char)tolower((unsigned char)*text);
        else if (strchr("(,;", *text))
            break; /* the rest of the name is something else */
    }
    out[n] = '\0';
}

static const struct experts *experts_of(const struct plan_case *r)
{
    char model[80], name[80];

    plain_name(case_text(r, "model"), model, sizeof model);
    for (size_t i = 0; i < COUNT_OF(with_experts); i++) {
        plain_name(with_experts[i].name, name, sizeof name);
        if (strcmp(model, name) == 0) return &with_experts[i];
    }
    return NULL;
}

ls_status case_check_model(const struct plan_case *r)
{
    static const char *const sizes[] = { "kv_heads", "gpus_per_node", "tp", "pp", "dp", "cp", "ep", "vpp", "micro_batch" };

    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        LS_TRY(case_check_number(r, needed[i]));
        if (case_number(r, needed[i], 0) < 1) return ls_fail(LS_EINVAL, "%s is not published", needed[i]);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) LS_TRY(case_check_number(r, sizes[i]));
    if (case_number(r, "ep", 1) > 1 && !experts_of(r))
        return ls_fail(LS_EINVAL, "ep is %s, but the experts of model '%s' are not known: their number and width are not among the columns",
                       case_text(r, "ep"), case_text(r, "model"));
    return LS_OK;
}

static ls_status put_option(struct options *o, const char *name, const char *text) { return options_set(o, name, text, "case"); }

static ls_status put_number(struct options *o, const char *name, double x)
{
    char text[32];

    snprintf(text, sizeof text, "%.0f", x);
    return put_option(o, name, text);
}

static ls_status put_experts(const struct experts *e, struct options *o)
{
    LS_TRY(put_number(o, "model.experts", e->experts));
    LS_TRY(put_number(o, "model.experts_per_token", e->active));
    LS_TRY(put_number(o, "model.expert_ffn", e->width));
    if (e->shared) LS_TRY(put_number(o, "model.shared_ffn", e->shared));
    return put_number(o, "model.head_size", e->head);
}

/* A preset whose family has the MLP and the heads of the row's model: Nemotron-4 has grouped heads, and no gate. */
static const char *preset_of(const struct experts *e, bool gated, bool grouped)
{
    if (e) return e->preset;
    return gated ? "llama3-8b" : grouped ? "starcoder2-3b" : "gpt2-124m";
}

ls_status case_put_model(const struct plan_case *r, struct options *o)
{
    const struct experts *e = experts_of(r);
    double heads = case_number(r, "heads", 1), hidden = case_number(r, "hidden", 1), kv_heads = case_number(r, "kv_heads", 0);

    if (kv_heads == 0) kv_heads = heads;
    bool gated = case_size(r, "glu", 1) != 0, grouped = kv_heads != heads;

    LS_TRY(put_option(o, "model.preset", preset_of(e, gated, grouped)));
    LS_TRY(put_number(o, "model.layers", case_number(r, "layers", 1)));
    LS_TRY(put_number(o, "model.width", hidden));
    LS_TRY(put_number(o, "model.heads", heads));
    if (!e) LS_TRY(put_number(o, "model.ffn", case_number(r, "ffn_hidden", 1)));
    LS_TRY(put_number(o, "model.vocab", case_number(r, "vocab", 1)));
    LS_TRY(put_number(o, "model.max_positions", case_number(r, "seq", 1)));
    LS_TRY(put_number(o, "data.seq_len", case_number(r, "seq", 1)));
    if (*case_text(r, "tied_emb")) LS_TRY(put_option(o, "model.tied", case_size(r, "tied_emb", 0) ? "true" : "false"));
    if (!gated && !e) LS_TRY(put_option(o, "model.dropout", "0"));
    if (!gated && !e && !grouped) return LS_OK;
    LS_TRY(put_number(o, "model.kv_heads", e && e->kv_heads ? e->kv_heads : kv_heads));
    return e ? put_experts(e, o) : put_number(o, "model.head_size", floor(hidden / heads));
}

/* In Megatron-Bridge's benchmarks and NVIDIA's DeepSeek-V3 recipe of May 2025 (dgxc-benchmarking), experts are whole. */
int case_whole_experts(const struct plan_case *r)
{
    bool whole = case_says(r, "source", "Megatron-Bridge") || case_says(r, "source", "dgxc-benchmarking deepseek_v3/");

    return whole && experts_of(r) && case_size(r, "tp", 1) > 1 ? case_size(r, "ep", 1) : 0;
}

void case_put_exchange(const struct plan_case *r, struct cluster *c)
{
    const struct experts *e = experts_of(r);
    bool once = case_says(r, "source", "Megatron-Bridge") || case_says(r, "source", "Automodel");

    c->whole_experts = case_whole_experts(r);
    if (!e || !once) return;
    c->token_experts = e->active;
    c->token_nodes = e->nodes;
}

bool case_has_experts(const struct plan_case *r) { return experts_of(r) != NULL; }

void case_assume_model(struct plan_case *r)
{
    const struct experts *e = experts_of(r);
    char text[160];

    if (!e) return;
    snprintf(text, sizeof text, "%d experts of width %d, %d for each token%s", e->experts, e->width, e->active,
             e->kv_heads ? "; latent attention as heads of 128 with one key head" : "");
    case_assume(r, text);
}
