/* task_language.c - text as tokens, predicted by a transformer. */
#include "train/task/task.h"

#include <math.h>
#include <stdio.h>
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "train/run/evaluate_saved.h"
#include "train/parity/parity_bounds.h"

static const struct task_idle idle[] = {
    { "parallel.sync_batch_norm", "this model has no batch norm" },
    { NULL, NULL },
};

/* ---- the model ---- */

/* --model.architecture's values, and which of the model's options each has. */
static void language_list_families(struct text *out)
{
    text_put(out, "\n%-15s %-10s has\n", "architecture", "family");
    for (int i = 0; i < LS_ARCHITECTURES; i++) {
        const ls_family *f = ls_architecture_family((ls_architecture)i);

        text_put(out, "%-15s %-10s %s positions%s%s%s%s%s\n", ls_architecture_name((ls_architecture)i), f->title,
                 f->rotary ? "rotary" : "learned", f->grouped_heads ? ", grouped heads" : "", f->head_norms ? ", norms of heads" : "",
                 f->experts ? ", experts" : "", f->dropout ? ", dropout" : "", f->activation ? ", a choice of activation" : "");
    }
}

static void language_list_presets(struct text *out)
{
    text_put(out, "%-15s %-10s %6s %6s %6s %9s %7s %9s %15s\n", "name", "family", "layers", "width", "heads", "kv_heads", "ffn",
             "positions", "parameters");
    for (int i = 0; ls_model_preset_name(i); i++) {
        const char *name = ls_model_preset_name(i);
        char count[32];
        ls_model m;

        if (ls_model_preset(name, &m) != LS_OK) continue;
        text_put(out, "%-15s %-10s %6zu %6zu %6zu %9zu %7zu %9zu %15s\n", name, ls_architecture_title(m.architecture), m.layers, m.width,
                 m.heads, m.kv_heads, m.experts ? m.expert_ffn : m.ffn, m.max_positions,
                 text_count(count, (int64_t)ls_model_parameters(&m)));
    }
    language_list_families(out);
}

static ls_status language_model(const struct config *c, size_t vocab, struct task_model *out)
{
    struct task_model m = { .task = &task_language };

    LS_TRY(config_model(c, vocab, &m.transformer));
    *out = m;
    return LS_OK;
}

static ls_status language_saved_model(const struct config *c, const char *path, const ls_model *described, struct task_model *out)
{
    (void)c;
    if (!described) return ls_fail(LS_EFORMAT, "%s holds no language model, and no config.yaml that names an image preset", path);
    *out = (struct task_model){ .task = &task_language, .transformer = *described };
    return LS_OK;
}

static size_t language_parameters(const struct task_model *m) { return ls_model_parameters(&m->transformer); }

static void language_describe(const struct task_model *model, bool brief, char out[TASK_TEXT])
{
    const ls_model *m = &model->transformer;
    char heads[32] = "";

    if (!brief) snprintf(heads, sizeof heads, ", %zu heads", m->heads);
    snprintf(out, TASK_TEXT, "%s, %zu layers, width %zu%s, vocabulary %zu", ls_architecture_title(m->architecture), m->layers, m->width,
             heads, m->vocab);
}

/* The number of rounded tensors that norms of heads add to a branch, on average over the two branches of a layer. The normed q or k is one
 * more. Tensors that were rounded before it (the block's norm, q itself) count relative to a head's root mean square, by which gradients
 * are divided once more: of heads of D normal elements the mean of 1 / rms^4 is D / (D - 4) times that of 1 / rms^2. Below D = 6 there is
 * no such mean. */
static double language_head_norms(const ls_model *m)
{
    double head = fmax((double)m->head_size, 6);

    return ls_architecture_family(m->architecture)->head_norms ? (1 + 2 * (head / (head - 4) - 1)) / 2 : 0;
}

static struct parity_chain language_chain(const struct task_model *model, double seq_len, double samples)
{
    const ls_model *m = &model->transformer;
    double width = (double)m->width, heads = (double)(m->heads * m->head_size), kv = (double)(m->kv_heads * m->head_size);
    double ffn = (double)(m->experts ? m->expert_ffn : m->ffn), head = (double)m->head_size, vocab = (double)m->vocab;
    double router = m->experts ? width + (double)m->experts : 0, depth = parity_through(2 * (double)m->layers);
    /* norm, q, scores, softmax, values, projection; norm, up, down */
    double attention = 2 * width + head + 2 * seq_len + heads, mlp = 2 * width + ffn + router;
    /* projection, values and softmax, q and k, the three projections, norm; down, up, norm */
    double attention_back = width + 2 * head + 2 * seq_len + heads + 2 * kv + width, mlp_back = 2 * width + ffn + router;

    return (struct parity_chain){ .forward = depth * (attention + mlp) / 2 + 2 * width,
                                  .backward = depth * (attention_back + mlp_back) / 2 + vocab + width,
                                  .rounded = depth * (6 + language_head_norms(m)) + 2,
                                  .terms = samples * seq_len,
                                  .targets = samples * seq_len,
                                  .classes = vocab,
                                  .uses = m->tied ? 2 : 1 };
}

/* ---- the step ---- */

static ls_value language_loss(ls_program *p, const struct task_model *model, const struct task_inputs *in, bool training)
{
    ls_model m = model->transformer;
    ls_value tokens = ls_input(p, "tokens", LS_I32, 2, (size_t[]){ in->batch, in->seq_len }), site = LS_NONE;

    if (!training) m.dropout = m.attention_dropout = 0;
    if (m.dropout > 0 || m.attention_dropout > 0) site = ls_input(p, "step", LS_I64, 1, (size_t[]){ 2 });
    if (training && m.experts) ls_input(p, "samples", LS_F32, 1, (size_t[]){ 2 });
    return ls_model_loss(p, &m, tokens, in->targets, in->denominator, site);
}

static ls_status language_feed(const struct feed *f, ls_program *p, const struct micro_batch *m)
{
    float samples[2] = { (float)m->samples, (float)m->global };

    if (ls_program_has(p, "tokens")) LS_TRY(feed_put(p, "tokens", feed_shard(f, m->input), LS_I32, f->batch * f->local));
    LS_TRY(feed_put(p, "samples", samples, LS_F32, 2));
    return feed_put(p, "step", m->site, LS_I64, 2);
}

static size_t language_values(const struct task_model *m, size_t seq_len)
{
    (void)m;
    return seq_len;
}

static double language_flops(const struct step *s)
{
    return ls_model_flops_per_token(&s->model.transformer, s->seq_len) * (double)(s->global * s->seq_len);
}

static void language_draw(struct step *s, uint64_t first)
{
    size_t count = s->accumulate * s->batch * s->seq_len;
    uint64_t stream = rng_stream("random.tokens"), begin = (first + s->begin) * s->seq_len, vocab = s->model.transformer.vocab;
    int32_t *tokens = s->inputs;

    for (size_t i = 0; i < count; i++) {
        uint64_t at = 3 * (begin + i);

        tokens[i] = (int32_t)(rng_u32(s->seed, stream, at) % vocab);
        s->targets[i] = (int32_t)(rng_u32(s->seed, stream, at + 1) % vocab);
    }
}

/* ---- data ---- */

static ls_status language_open_samples(const struct config *c, const struct dataset *d, const struct task_model *m, bool validation,
                                       struct task_samples *out)
{
    struct task_samples s = { 0 };
    size_t vocab = m->transformer.vocab;

    if (!validation)
        LS_TRY(dataset_train_sampler(d, c, vocab, &s.text));
    else if (d->validation.end > d->validation.begin)
        LS_TRY(dataset_validation_sampler(d, c, vocab, &s.text));
    s.count = s.text.samples;
    *out = s;
    return LS_OK;
}

static ls_status language_get_sample(const struct task_samples *s, uint64_t index, void *input, int32_t *targets)
{
    return ls_sampler_get(&s->text, index, input, targets);
}

static ls_status language_open_tokenizer(const struct config *c, const char *path, ls_tokenizer **out)
{
    char *saved;

    LS_TRY(dataset_saved_tokenizer(path, &saved));
    bool found = saved != NULL;
    mem_free(saved);
    if (found) return ls_tokenizer_open(path, out);
    if (!c->data.text[0]) return LS_OK;
    return ls_fail(LS_EFORMAT, "%s: no tokenizer is beside the weights, so a text cannot be read; give --data.tokens=FILE", path);
}

/* Without data.val_fraction all of the data is evaluated. */
static ls_status language_open_saved(const struct config *c, const char *path, const struct task_model *m, struct task_saved *out)
{
    struct dataset *d = &out->data;
    size_t vocab = m->transformer.vocab;

    LS_TRY(language_open_tokenizer(c, path, &out->tokenizer));
    LS_TRY(dataset_open(c, c->data.text[0] ? path : NULL, d));
    if (d->vocab > vocab) return ls_fail(LS_EFORMAT, "%s: the tokenizer has %zu tokens, the model only %zu", path, d->vocab, vocab);
    if (c->data.val_fraction == 0) d->validation = d->train;
    LS_TRY(dataset_validation_sampler(d, c, vocab, &out->samples.text));
    out->samples.count = out->samples.text.samples;
    return LS_OK;
}

/* Bytes of text that the predicted tokens stand for; end-of-text stands for none. */
static ls_status language_count_bytes(const struct task_saved *s, const struct evaluation *e, size_t *out)
{
    int32_t end = ls_tokenizer_end(s->tokenizer);
    size_t total = 0, bytes;

    for (size_t i = 0; i < e->samples; i++) {
        LS_TRY(language_get_sample(&e->from, i, e->inputs, e->targets));
        for (size_t k = 0; k < e->seq_len; k++)
            if (e->targets[k] >= 0 && e->targets[k] != end && ls_tokenizer_token(s->tokenizer, e->targets[k], &bytes)) total += bytes;
    }
    *out = total;
    return LS_OK;
}

static ls_status language_evaluated(const struct task_saved *s, const struct evaluation *e, struct evaluated *out)
{
    size_t part = s->data.validation.end - s->data.validation.begin;

    out->tokens = e->samples * e->seq_len;
    out->left_over = e->samples == e->from.count && part > out->tokens + 1 ? part - out->tokens - 1 : 0;
    snprintf(out->data, sizeof out->data, "%s", s->data.what);
    return s->tokenizer ? language_count_bytes(s, e, &out->bytes) : LS_OK;
}

const struct task task_language = {
    .name = "language",
    .unit = "token",
    .units = "tokens",
    .unit_short = "tok",
    .values = "tokens",
    .sequences = true,
    .transformer = true,
    .perplexity = true,
    .generates = true,
    .idle = idle,
    .preset = ls_model_preset_name,
    .list_presets = language_list_presets,
    .model = language_model,
    .saved_model = language_saved_model,
    .parameters = language_parameters,
    .describe = language_describe,
    .chain = language_chain,
    .loss = language_loss,
    .feed = language_feed,
    .sample_values = language_values,
    .flops = language_flops,
    .draw = language_draw,
    .open_data = dataset_open,
    .open_samples = language_open_samples,
    .get_sample = language_get_sample,
    .open_saved = language_open_saved,
    .evaluated = language_evaluated,
};
