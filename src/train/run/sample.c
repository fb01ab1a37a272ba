/* sample.c - choosing the next token from logits. */
#include "train/run/sample.h"

#include <math.h>
#include <stdlib.h>
#include "base/base.h"
#include "base/rng.h"

static int larger_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

static int32_t likeliest(const float *logits, size_t vocab)
{
    size_t best = 0;

    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

static double weight(const struct candidate *c, const struct candidate *first, double temperature)
{
    return exp(((double)c->logit - first->logit) / temperature);
}

/* Number of candidates, sorted by probability, that together have at least the share top_p of the first n. */
static size_t nucleus(const struct candidate *c, size_t n, const struct sampling *s)
{
    double sum = 0, held = 0;

    for (size_t i = 0; i < n; i++) sum += weight(&c[i], c, s->temperature);
    for (size_t i = 0; i < n; i++) {
        held += weight(&c[i], c, s->temperature);
        if (held >= s->top_p * sum) return i + 1;
    }
    return n;
}

int32_t sample_next(const float *logits, size_t vocab, const struct sampling *s, uint64_t index, struct candidate *scratch)
{
    double sum = 0, held = 0;
    size_t n = s->top_k && s->top_k < vocab ? s->top_k : vocab;

    if (s->temperature == 0) return likeliest(logits, vocab);
    for (size_t i = 0; i < vocab; i++) scratch[i] = (struct candidate){ logits[i], (int32_t)i };
    qsort(scratch, vocab, sizeof *scratch, larger_first);
    if (s->top_p < 1) n = nucleus(scratch, n, s);
    for (size_t i = 0; i < n; i++) sum += weight(&scratch[i], scratch, s->temperature);
    double draw = rng_uniform(s->seed, rng_stream("sample") + s->prompt, index) * sum;
    for (size_t i = 0; i < n; i++) {
        held += weight(&scratch[i], scratch, s->temperature);
        if (draw < held) return scratch[i].id;
    }
    return scratch[n - 1].id;
}
