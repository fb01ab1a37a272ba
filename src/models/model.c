/* model.c - a model of any family as ops: hidden states, loss, logits, and one step of generation. */
#include "models/model.h"

#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "ir/builder.h"

#define FAMILY_ROW(upper, name) { #name, &family_##name },
static const struct {
    const char *name;
    const struct family *family;
} families[LS_ARCHITECTURES] = { LS_FAMILY_MAP(FAMILY_ROW) };

const struct family *family_of(ls_architecture a)
{
    ASSERT((unsigned)a < LS_ARCHITECTURES);
    return families[a].family;
}

const struct family *model_family(const ls_model *m) { return family_of(m->architecture); }
const char *ls_architecture_name(ls_architecture a) { return families[a].name; }
const char *ls_architecture_title(ls_architecture a) { return family_of(a)->has.title; }
const ls_family *ls_architecture_family(ls_architecture a) { return &family_of(a)->has; }
size_t ls_model_default_ffn(const ls_model *m) { return model_family(m)->default_ffn(m->width); }

/* ---- checks ---- */

static ls_status model_check_sizes(const ls_model *m)
{
    enum { MOST_LAYERS = 1 << 16 };
    const struct {
        const char *name;
        size_t value;
    } sizes[] = {
        { "layers", m->layers },       { "width", m->width },
        { "heads", m->heads },         { "kv_heads", m->kv_heads },
        { "head_size", m->head_size }, { "ffn", model_family(m)->has.experts ? 1 : m->ffn },
        { "vocab", m->vocab },         { "max_positions", m->max_positions },
    };

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > INT32_MAX)
            return ls_fail(LS_EINVAL, "model: %s is %zu; must be 1 to %d", sizes[i].name, sizes[i].value, INT32_MAX);
    if (m->layers > MOST_LAYERS) return ls_fail(LS_EINVAL, "model: layers is %zu; must be 1 to %d", m->layers, MOST_LAYERS);
    if (m->heads * m->head_size > INT32_MAX)
        return ls_fail(LS_EINVAL, "model: heads %zu * head_size %zu is too large: at most %d", m->heads, m->head_size, INT32_MAX);
    return LS_OK;
}

static ls_status check_rotary(const ls_model *m)
{
    if (m->head_size % 2)
        return ls_fail(LS_EINVAL, "model: head_size %zu must be even, because rotary positions rotate pairs", m->head_size);
    if (!(m->rope.theta > 0) || !(m->rope.factor >= 1) || m->rope.original_positions < 1)
        return ls_fail(LS_EINVAL, "model: rope theta %g must be positive, factor %g 1 or more, original positions %lld 1 or more",
                       m->rope.theta, m->rope.factor, (long long)m->rope.original_positions);
    if (m->rope.factor != 1 && !(m->rope.high_freq_factor > m->rope.low_freq_factor && m->rope.low_freq_factor > 0))
        return ls_fail(LS_EINVAL, "model: rope's high_freq_factor %g must be above low_freq_factor %g, and that above 0",
                       m->rope.high_freq_factor, m->rope.low_freq_factor);
    return LS_OK;
}

/* Counts in double: the count in size_t is only safe after this check. */
static ls_status check_total(const ls_model *m)
{
    if (model_elements(m, false) > (double)(SIZE_MAX / 64))
        return ls_fail(LS_EINVAL, "model: %zu layers of width %zu and ffn %zu have more parameters than memory has addresses", m->layers,
                       m->width, m->ffn);
    return LS_OK;
}

ls_status ls_model_check(ls_model *m)
{
    ls_model c = *m;

    if ((unsigned)c.architecture >= LS_ARCHITECTURES)
        return ls_fail(LS_EINVAL, "model: architecture %d does not exist", (int)c.architecture);
    if (c.kv_heads == 0) c.kv_heads = c.heads;
    if (c.head_size == 0) {
        if (c.heads && c.width % c.heads)
            return ls_fail(LS_EINVAL, "model: width %zu is not divisible by heads %zu; change one of them", c.width, c.heads);
        c.head_size = c.heads ? c.width / c.heads : 0;
    }
    LS_TRY(model_check_sizes(&c));
    if (!model_family(&c)->has.experts && (c.experts || c.experts_per_token || c.expert_ffn || c.shared_ffn))
        return ls_fail(LS_EINVAL,
                       "model: %s has no experts: experts %zu, experts_per_token %zu, expert_ffn %zu and shared_ffn %zu must be 0",
                       model_family(&c)->has.title, c.experts, c.experts_per_token, c.expert_ffn, c.shared_ffn);
    if (c.heads % c.kv_heads)
        return ls_fail(LS_EINVAL, "model: heads %zu is not divisible by kv_heads %zu; change one of them", c.heads, c.kv_heads);
    if (!(c.norm_eps > 0 && c.norm_eps < 1)) return ls_fail(LS_EINVAL, "model: norm_eps %g must be above 0 and below 1", c.norm_eps);
    if (!(c.dropout >= 0 && c.dropout < 1)) return ls_fail(LS_EINVAL, "model: dropout %g must be 0 or more and below 1", c.dropout);
    if (!(c.attention_dropout >= 0 && c.attention_dropout < 1))
        return ls_fail(LS_EINVAL, "model: attention_dropout %g must be 0 or more and below 1", c.attention_dropout);
    if (!(c.init_std >= 0 && c.init_std < 1e3))
        return ls_fail(LS_EINVAL, "model: init_std %g must be 0 or more; 0.02 is usual", c.init_std);
    if (!model_family(&c)->has.grouped_heads && c.kv_heads != c.heads)
        return ls_fail(LS_EINVAL, "model: %s has no grouped heads: kv_heads %zu must be heads %zu", model_family(&c)->has.title, c.kv_heads,
                       c.heads);
    if (!model_family(&c)->has.dropout && (c.dropout != 0 || c.attention_dropout != 0))
        return ls_fail(LS_EINVAL, "model: %s has no dropout: dropout %g and attention_dropout %g must be 0", model_family(&c)->has.title,
                       c.dropout, c.attention_dropout);
    if (model_family(&c)->has.rotary) LS_TRY(check_rotary(&c));
    if (model_family(&c)->check) LS_TRY(model_family(&c)->check(&c));
    LS_TRY(check_total(&c));
    *m = c;
    return LS_OK;
}

/* Checks a copy of m, and that tokens are [B,T] with T within its positions; false if not, with the program's status set. */
static bool model_begin(ls_program *p, const ls_model *m, ls_value tokens, ls_model *checked)
{
    *checked = *m;
    if (tokens.id == 0 || !program_ok(p)) return false;
    ls_status st = ls_model_check(checked);
    if (st < 0) {
        program_fail_by(p, st);
        return false;
    }
    if (ls_value_ndim(p, tokens) != 2) {
        program_fail(p, "model: tokens have %d dims; expected [B,T]", ls_value_ndim(p, tokens));
        return false;
    }
    size_t t = ls_value_size(p, tokens, 1);
    if (t > checked->max_positions) {
        program_fail(p, "model: samples of %zu tokens, but the model has max_positions %zu", t, checked->max_positions);
        return false;
    }
    return true;
}

/* ---- forward ---- */

/* 0 .. T-1 as a new tensor. */
static ls_status positions_new(const char *device, size_t t, ls_tensor **out)
{
    int32_t *count = mem_array(MEM_OTHER, t, sizeof *count);

    if (!count) return LS_ENOMEM;
    for (size_t i = 0; i < t; i++) count[i] = (int32_t)i;
    ls_status st = ls_tensor_new(device, LS_I32, 1, &t, LS_OTHER, out);
    if (st == LS_OK) st = ls_tensor_write(*out, count, LS_I32, t);
    mem_free(count);
    return st;
}

/* 0 .. T-1, [T] i32; one per program and length. */
static ls_value count_positions(ls_program *p, size_t t)
{
    ls_tensor *tensor = NULL;
    char name[40];

    snprintf(name, sizeof name, "positions.%zu", t);
    ls_value found = program_find(p, name);
    if (found.id) return found;
    ls_status st = positions_new(ls_store_settings(ls_program_store(p)).device, t, &tensor);
    found = st < 0 ? program_fail_by(p, st) : ls_bind(p, name, tensor);
    ls_tensor_release(&tensor);
    ls_declare_time(p, found, 0);
    return found;
}

/* Queries of text i, whose keys and values are appended to its cache. */
static ls_value attend_text(ls_program *p, const struct forward *f, size_t layer, size_t i, ls_value q, ls_value k, ls_value v)
{
    k = cache_append(p, f->cache[i]->k[layer], 'k', layer, i, k, f->position[i]);
    v = cache_append(p, f->cache[i]->v[layer], 'v', layer, i, v, f->position[i]);
    return ls_attention(p, q, k, v, 1, f->length[i]);
}

/* Joins x[0] .. x[n - 1], [1,1,H,D] each, along dim 1; x is overwritten. */
static ls_value join_texts(ls_program *p, size_t n, ls_value *x)
{
    enum { MOST = 8 }; /* operands of ls_concat */

    while (n > 1) {
        size_t joined = 0;

        for (size_t i = 0; i < n; i += MOST, joined++)
            x[joined] = n - i == 1 ? x[i] : ls_concat(p, (int)MIN(n - i, (size_t)MOST), x + i, 1);
        n = joined;
    }
    return x[0];
}

static ls_value attend_texts(ls_program *p, const struct forward *f, size_t layer, ls_value q, ls_value k, ls_value v)
{
    ls_value *o;

    if (f->texts == 1) return attend_text(p, f, layer, 0, q, k, v);
    o = mem_array(MEM_OTHER, f->texts, sizeof *o);
    if (!o) return program_fail_by(p, LS_ENOMEM);
    for (size_t i = 0; i < f->texts; i++)
        o[i] = attend_text(p, f, layer, i, ls_slice(p, q, 1, i, i + 1), ls_slice(p, k, 1, i, i + 1), ls_slice(p, v, 1, i, i + 1));
    ls_value all = join_texts(p, f->texts, o);
    mem_free(o);
    return all;
}

ls_value model_linear(ls_program *p, const struct forward *f, const char *weight, const char *bias, size_t layer, ls_value x)
{
    ls_value w = model_param(p, f->m, weight, (long)layer);

    return ls_linear(p, x, w, model_param(p, f->m, bias, (long)layer));
}

ls_value model_layer_norm(ls_program *p, const struct forward *f, const char *weight, const char *bias, long layer, ls_value x)
{
    ls_value w = model_param(p, f->m, weight, layer);

    return ls_layer_norm(p, x, w, model_param(p, f->m, bias, layer), f->m->norm_eps);
}

#define ACTIVATION_CASE(upper, name, op, hf) \
    case LS_##upper: return ls_##op(p, x);
ls_value model_activation(ls_program *p, const struct forward *f, ls_value x)
{
    switch (f->m->activation) {
        LS_ACTIVATION_MAP(ACTIVATION_CASE)
    }
    return LS_NONE;
}

ls_value model_dropout(ls_program *p, const struct forward *f, const char *site, ls_value x)
{
    return f->step.id && f->m->dropout > 0 ? ls_dropout(p, site, x, f->m->dropout, f->m->seed, f->step) : x;
}

ls_value model_attend(ls_program *p, const struct forward *f, size_t layer, ls_value q, ls_value k, ls_value v)
{
    const ls_model *m = f->m;
    size_t size[4], flat[3];
    ls_value o;

    if (q.id == 0) return LS_NONE;
    size[0] = flat[0] = ls_value_size(p, q, 0);
    size[1] = flat[1] = ls_value_size(p, q, 1);
    size[3] = m->head_size;
    flat[2] = m->heads * m->head_size;
    size[2] = m->heads;
    q = ls_reshape(p, q, 4, size);
    size[2] = m->kv_heads;
    k = ls_reshape(p, k, 4, size);
    v = ls_reshape(p, v, 4, size);
    if (f->rope.id) {
        q = ls_rope_apply(p, q, f->rope);
        k = ls_rope_apply(p, k, f->rope);
    }
    if (f->texts)
        o = attend_texts(p, f, layer, q, k, v);
    else if (f->step.id && m->attention_dropout > 0)
        o = ls_attention_dropout(p, "attention.probabilities", q, k, v, 1, m->attention_dropout, m->seed, f->step);
    else
        o = ls_attention(p, q, k, v, 1, LS_NONE);
    return ls_reshape(p, o, 3, flat);
}

void ls_model_layer_name(const ls_model *m, size_t layer, char *out, size_t room)
{
    snprintf(out, room, "%s.%zu", model_family(m)->layer, layer);
}

static ls_value run_layers(ls_program *p, struct forward *f, ls_value tokens)
{
    const struct family *family = model_family(f->m);
    char name[64];

    if (family->has.rotary) f->rope = ls_rope_table(p, f->positions, f->m->head_size, &f->m->rope);
    ls_value x = family->embed(p, f, tokens);
    for (size_t i = 0; i < f->m->layers; i++) {
        ls_model_layer_name(f->m, i, name, sizeof name);
        ls_block_begin(p, name);
        x = family->layer_forward(p, f, i, x);
        ls_block_end(p);
    }
    return family->final_norm(p, f, x);
}

static ls_value hidden(ls_program *p, const ls_model *model, ls_value tokens, ls_value step, bool losses)
{
    ls_model m;
    struct forward f = { .m = &m, .step = step, .samples = program_find(p, "samples"), .losses = losses };

    if (!model_begin(p, model, tokens, &m)) return LS_NONE;
    ls_declare_time(p, tokens, 1);
    f.positions = count_positions(p, ls_value_size(p, tokens, 1));
    return run_layers(p, &f, tokens);
}

ls_value ls_model_hidden(ls_program *p, const ls_model *m, ls_value tokens, ls_value step) { return hidden(p, m, tokens, step, false); }

ls_value ls_model_head(ls_program *p, const ls_model *model)
{
    ls_model m = *model;
    ls_status st = ls_model_check(&m);

    if (st < 0) return program_fail_by(p, st);
    return model_param(p, &m, m.tied ? model_family(&m)->embedding : "lm_head.weight", NO_LAYER);
}

ls_value ls_model_loss(ls_program *p, const ls_model *m, ls_value tokens, ls_value targets, ls_value denominator, ls_value step)
{
    ls_value x = hidden(p, m, tokens, step, true);

    if (ls_value_ndim(p, targets) == 2) ls_declare_time(p, targets, 1);
    return ls_linear_xent(p, x, ls_model_head(p, m), targets, denominator);
}

ls_value ls_model_logits(ls_program *p, const ls_model *m, ls_value tokens)
{
    ls_value x = ls_model_hidden(p, m, tokens, LS_NONE);

    return ls_linear(p, x, ls_model_head(p, m), LS_NONE);
}

/* Hidden states [T,C] of tokens [1,T]. */
static ls_value decode(ls_program *p, struct forward *f, ls_value tokens)
{
    const ls_model *m = f->m;

    if (ls_value_size(p, tokens, 0) != 1)
        return program_fail(p, "model: decoding takes tokens [1,T], not [%zu,T]", ls_value_size(p, tokens, 0));
    for (size_t i = 0; i < f->texts; i++) {
        const ls_cache *c = f->cache[i];

        if (c->layers != m->layers) return program_fail(p, "model: a cache of %zu layers for a model of %zu", c->layers, m->layers);
        if (c->batch != 1) return program_fail(p, "model: a cache for %zu texts; each text has a cache of its own", c->batch);
    }
    ls_value x = run_layers(p, f, tokens);
    return x.id == 0 ? LS_NONE : ls_reshape(p, x, 2, (size_t[]){ ls_value_size(p, tokens, 1), m->width });
}

ls_value ls_model_decode(ls_program *p, const ls_model *model, ls_cache *cache, ls_value tokens, ls_value positions, ls_value position,
                         ls_value length, ls_value last)
{
    ls_model m;
    struct forward f = { .m = &m, .positions = positions, .texts = 1, .cache = &cache, .position = &position, .length = &length };

    if (!model_begin(p, model, tokens, &m)) return LS_NONE;
    ls_value x = decode(p, &f, tokens);
    if (x.id == 0) return LS_NONE;
    return ls_linear(p, ls_embedding(p, last, x), ls_model_head(p, &m), LS_NONE);
}

ls_value ls_model_decode_batch(ls_program *p, const ls_model *model, size_t n, ls_cache *const *caches, ls_value tokens, ls_value positions,
                               const ls_value *position, const ls_value *length)
{
    ls_model m;
    struct forward f = { .m = &m, .positions = positions, .texts = n, .cache = caches, .position = position, .length = length };

    if (!model_begin(p, model, tokens, &m)) return LS_NONE;
    if (n == 0 || ls_value_size(p, tokens, 1) != n)
        return program_fail(p, "model: %zu tokens for %zu texts; expected one for each", ls_value_size(p, tokens, 1), n);
    return ls_linear(p, decode(p, &f, tokens), ls_model_head(p, &m), LS_NONE);
}
