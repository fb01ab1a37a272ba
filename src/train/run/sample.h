/* sample.h - choosing the next token from logits.
 *
 *     p = softmax(logits / temperature), over the top_k largest, then over the fewest that hold top_p of the mass
 * A draw is a pure function of the logits, the settings and `index`. Ties go to the smaller id.
 */
#ifndef LS_TRAIN_RUN_SAMPLE_H
#define LS_TRAIN_RUN_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct sampling {
    double temperature; /* 0: the likeliest token, always */
    size_t top_k;       /* 0: all */
    double top_p;       /* 1: all */
    uint64_t seed;
};

struct candidate {
    float logit;
    int32_t id;
};

/* logits[vocab]; scratch[vocab] is overwritten. index: how many were drawn before. */
int32_t sample_next(const float *logits, size_t vocab, const struct sampling *s, uint64_t index, struct candidate *scratch);

#endif
