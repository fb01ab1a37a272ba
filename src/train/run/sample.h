/* sample.h - choosing the next token from logits.
 *
 *     p = softmax(logits / temperature) over the top_k largest logits, of which the fewest with a total of top_p are kept
 * The chosen token is a pure function of the logits, the settings and `index`: its random number is rng_uniform(seed, stream, index), where
 * the stream is rng_stream("sample") + prompt. Of equal logits, the smaller id comes first.
 */
#ifndef LS_TRAIN_RUN_SAMPLE_H
#define LS_TRAIN_RUN_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct sampling {
    double temperature; /* 0: always the likeliest token */
    size_t top_k;       /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
    uint64_t prompt; /* the number of the prompt, 0, 1, ...: each has random numbers of its own */
};

struct candidate {
    float logit;
    int32_t id;
};

/* logits[vocab]; scratch[vocab] is overwritten. index: number of tokens sampled before this one. */
int32_t sample_next(const float *logits, size_t vocab, const struct sampling *s, uint64_t index, struct candidate *scratch);

#endif
