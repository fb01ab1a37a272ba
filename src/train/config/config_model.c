/* config_model.c - builds the model from the options: a preset or a Hugging Face folder, modified by model.*. */
#include "train/config/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "base/text.h"
#include "train/task/task.h"

/* Applies a given size (0: not given); true if it differs from the model's. */
static bool config_model_take(int64_t given, size_t *size)
{
    bool changes = given && (size_t)given != *size;

    if (changes) *size = (size_t)given;
    return changes;
}

/* Applies family, width and heads, and recomputes sizes that depend on them unless they are given. */
static void take_shape(const struct config *c, ls_model *m)
{
    ls_architecture family =
        c->model.architecture == ARCHITECTURE_PRESET ? m->architecture : (ls_architecture)(c->model.architecture - ARCHITECTURE_FIRST);
    bool other = family != m->architecture, wider = config_model_take(c->model.width, &m->width),
         heads = config_model_take(c->model.heads, &m->heads);

    m->architecture = family;
    if (other || heads) m->kv_heads = m->heads;
    if (other || wider || heads) m->head_size = 0;
    config_model_take(c->model.head_size, &m->head_size);
    if (other || wider) m->ffn = ls_model_default_ffn(m);
}

static void take_real(double given, double *value)
{
    if (given >= 0) *value = given;
}

/* Applies the options for experts; an error if the model has none, unless the option turns something off. */
static ls_status take_experts(const struct config *c, ls_model *m)
{
    const struct {
        bool given;
        const char *name;
    } options[] = {
        { c->model.experts > 0, "experts" },
        { c->model.experts_per_token > 0, "experts_per_token" },
        { c->model.expert_ffn > 0, "expert_ffn" },
        { c->model.shared_ffn > 0, "shared_ffn" },
        { c->model.router != ROUTER_PRESET, "router" },
        { c->model.capacity > 0, "capacity" },
        { c->model.drop != DROP_PRESET, "drop" },
        { c->model.aux_loss > 0, "aux_loss" },
        { c->model.aux_loss_scope != SCOPE_PRESET, "aux_loss_scope" },
        { c->model.z_loss > 0, "z_loss" },
        { c->model.router_bias_rate > 0, "router_bias_rate" },
    };
    bool has = ls_architecture_family(m->architecture)->experts;

    for (size_t i = 0; i < COUNT_OF(options) && !has; i++)
        if (options[i].given) return ls_fail(LS_EINVAL, "model.%s does nothing here: the model has no experts", options[i].name);
    if (has && c->model.ffn > 0 && (size_t)c->model.ffn != m->ffn)
        return ls_fail(LS_EINVAL, "model.ffn does nothing here: every feed-forward layer consists of experts; use model.expert_ffn or "
                                  "model.shared_ffn");
    if (!has) return LS_OK;
    config_model_take(c->model.experts, &m->experts);
    config_model_take(c->model.experts_per_token, &m->experts_per_token);
    config_model_take(c->model.expert_ffn, &m->expert_ffn);
    if (c->model.shared_ffn >= 0) m->shared_ffn = (size_t)c->model.shared_ffn;
    if (c->model.router != ROUTER_PRESET) m->router = (ls_router)(c->model.router - ROUTER_FIRST);
    if (c->model.drop != DROP_PRESET) m->drop = (ls_drop)(c->model.drop - DROP_FIRST);
    take_real(c->model.capacity, &m->capacity);
    take_real(c->model.aux_loss, &m->aux_coef);
    if (c->model.aux_loss_scope != SCOPE_PRESET) m->aux_over_micro_batch = c->model.aux_loss_scope == SCOPE_MICRO_BATCH;
    take_real(c->model.z_loss, &m->z_coef);
    take_real(c->model.router_bias_rate, &m->router_bias_rate);
    if (c->model.aux_loss_scope == SCOPE_MICRO_BATCH && m->aux_coef == 0)
        return ls_fail(LS_EINVAL,
                       "model.aux_loss_scope does nothing here: model.aux_loss=0 adds no loss; set a coefficient, 0.01 is usual");
    if (c->model.drop == DROP_FIRST + (int)LS_DROP_PROBABILITY && m->capacity == 0)
        return ls_fail(LS_EINVAL, "model.drop does nothing here: model.capacity=0 drops no token; set a capacity, 1.25 is usual");
    return LS_OK;
}

/* ---- checks ---- */

bool config_is_preset(const char *name)
{
    for (int i = 0; task_preset(i); i++)
        if (strcmp(task_preset(i), name) == 0) return true;
    return false;
}

static ls_status fail_preset(const char *given)
{
    size_t least = strlen(given) / 2 + 1;
    struct text all = { 0 };
    const char *near = NULL;

    for (int i = 0; task_preset(i); i++) {
        size_t distance = text_distance(given, task_preset(i));

        text_put(&all, "%s%s", i ? ", " : "", task_preset(i));
        if (distance >= least) continue;
        least = distance;
        near = task_preset(i);
    }
    ls_status st = text_status(&all);
    if (st == LS_OK)
        st = ls_fail(LS_EINVAL, "model.preset: no preset '%s'; %s%s%sthere are %s", given, near ? "did you mean '" : "", near ? near : "",
                     near ? "'? " : "", all.data);
    text_free(&all);
    return st;
}

/* Writes the nearest divisors of `size` below and above n, "2 or 4", into out and returns it. */
static const char *divisors_near(char *out, size_t room, size_t size, size_t n)
{
    size_t below = MIN(n, size), above = n;

    while (below > 1 && size % below) below--;
    while (above <= size && above <= 4 * n && size % above) above++;
    if (above <= size && size % above == 0)
        snprintf(out, room, "%zu or %zu", MAX(below, (size_t)1), above);
    else
        snprintf(out, room, "%zu", MAX(below, (size_t)1));
    return out;
}

static ls_status check_heads(const ls_model *m)
{
    size_t kv = m->kv_heads ? m->kv_heads : m->heads, size = m->head_size ? m->head_size : m->heads ? m->width / m->heads : 0;
    const ls_family *family = ls_architecture_family(m->architecture);
    char near[48];

    if (m->heads && !m->head_size && m->width % m->heads)
        return ls_fail(LS_EINVAL, "model.width=%zu is not divisible by model.heads=%zu; use %s heads, or another width", m->width, m->heads,
                       divisors_near(near, sizeof near, m->width, m->heads));
    if (!family->grouped_heads && kv != m->heads)
        return ls_fail(LS_EINVAL, "model.kv_heads=%zu: %s has no grouped heads; leave it out, or use the %zu of model.heads", kv,
                       family->title, m->heads);
    if (kv && m->heads % kv)
        return ls_fail(LS_EINVAL, "model.heads=%zu is not divisible by model.kv_heads=%zu; use %s", m->heads, kv,
                       divisors_near(near, sizeof near, m->heads, kv));
    if (family->rotary && size % 2)
        return ls_fail(
            LS_EINVAL,
            "model.width=%zu / model.heads=%zu gives heads of %zu channels, but rotary embeddings need an even number; use sizes whose "
            "ratio is even",
            m->width, m->heads, size);
    return LS_OK;
}

static ls_status config_model_check_options(const struct config *c, const ls_model *m)
{
    LS_TRY(check_heads(m));
    if (c->model.dropout > 0 && !ls_architecture_family(m->architecture)->dropout)
        return ls_fail(LS_EINVAL, "model.dropout=%g does nothing here: %s has no dropout; leave it out", c->model.dropout,
                       ls_architecture_title(m->architecture));
    if (c->model.attention_dropout > 0 && !ls_architecture_family(m->architecture)->dropout)
        return ls_fail(LS_EINVAL, "model.attention_dropout=%g does nothing here: %s has no dropout; leave it out",
                       c->model.attention_dropout, ls_architecture_title(m->architecture));
    if (m->experts && m->experts_per_token > m->experts)
        return ls_fail(LS_EINVAL, "model.experts_per_token=%zu is more than model.experts=%zu; use 1 to %zu", m->experts_per_token,
                       m->experts, m->experts);
    return LS_OK;
}

static ls_status take_activation(const struct config *c, ls_model *m)
{
    if (c->model.activation == ACTIVATION_PRESET) return LS_OK;
    if (!ls_architecture_family(m->architecture)->activation)
        return ls_fail(LS_EINVAL, "model.activation does nothing here: the feed-forward part of %s is SwiGLU",
                       ls_architecture_title(m->architecture));
    m->activation = (ls_activation)(c->model.activation - ACTIVATION_FIRST);
    return LS_OK;
}

static ls_status read_base(const struct config *c, ls_model *out)
{
    if (c->model.hf[0]) {
        ls_status st = ls_model_read_hf(c->model.hf, out);

        return st == LS_OK ? LS_OK : ls_fail_at(st, "model.hf");
    }
    for (int i = 0; ls_model_preset_name(i); i++)
        if (strcmp(ls_model_preset_name(i), c->model.preset) == 0) return ls_model_preset(c->model.preset, out);
    return fail_preset(c->model.preset);
}

ls_status config_model(const struct config *c, size_t vocab, ls_model *out)
{
    ls_model m;

    LS_TRY(read_base(c, &m));
    take_shape(c, &m);
    config_model_take(c->model.layers, &m.layers);
    config_model_take(c->model.kv_heads, &m.kv_heads);
    config_model_take(c->model.max_positions, &m.max_positions);
    config_model_take(c->model.vocab, &m.vocab);
    LS_TRY(take_experts(c, &m));
    config_model_take(c->model.ffn, &m.ffn);
    if (c->model.rope_theta > 0 && !ls_architecture_family(m.architecture)->rotary)
        return ls_fail(LS_EINVAL, "model.rope_theta does nothing here: %s has learned position embeddings",
                       ls_architecture_title(m.architecture));
    if (c->model.rope_theta > 0) m.rope.theta = c->model.rope_theta;
    LS_TRY(take_activation(c, &m));
    if (c->model.tied != SWITCH_PRESET) m.tied = c->model.tied == SWITCH_TRUE;
    if (c->model.dropout > 0) m.dropout = c->model.dropout;
    if (c->model.attention_dropout > 0) m.attention_dropout = c->model.attention_dropout;
    if (!c->model.vocab && vocab && !config_has_weights(c)) m.vocab = vocab;
    if (vocab > m.vocab)
        return ls_fail(LS_EINVAL,
                       "model.vocab: the tokenizer has %zu tokens, but the model's vocabulary only %zu; use --model.vocab=%zu or more",
                       vocab, m.vocab, vocab);
    LS_TRY(config_model_check_options(c, &m));
    m.seed = (uint64_t)c->train.seed;
    LS_TRY(ls_model_check(&m));
    *out = m;
    return LS_OK;
}

static void put_experts(struct config *c, const ls_model *m)
{
    c->model.experts = (int64_t)m->experts;
    c->model.experts_per_token = (int64_t)m->experts_per_token;
    c->model.expert_ffn = (int64_t)m->expert_ffn;
    c->model.shared_ffn = (int64_t)m->shared_ffn;
    c->model.router = ROUTER_FIRST + (int)m->router;
    c->model.drop = DROP_FIRST + (int)m->drop;
    c->model.capacity = m->capacity;
    c->model.aux_loss = m->aux_coef;
    c->model.aux_loss_scope = m->aux_over_micro_batch ? SCOPE_MICRO_BATCH : SCOPE_SEQUENCE;
    c->model.z_loss = m->z_coef;
    c->model.router_bias_rate = m->router_bias_rate;
}

void config_put_model(struct config *c, const ls_model *m)
{
    const ls_family *family = ls_architecture_family(m->architecture);

    c->model.architecture = ARCHITECTURE_FIRST + (int)m->architecture;
    c->model.layers = (int64_t)m->layers;
    c->model.width = (int64_t)m->width;
    c->model.heads = (int64_t)m->heads;
    c->model.kv_heads = (int64_t)m->kv_heads;
    c->model.head_size = (int64_t)m->head_size;
    c->model.ffn = (int64_t)m->ffn;
    c->model.vocab = (int64_t)m->vocab;
    c->model.max_positions = (int64_t)m->max_positions;
    c->model.tied = m->tied ? SWITCH_TRUE : SWITCH_FALSE;
    if (family->activation) c->model.activation = ACTIVATION_FIRST + (int)m->activation;
    c->model.rope_theta = family->rotary ? m->rope.theta : 0;
    if (m->experts) put_experts(c, m);
}
