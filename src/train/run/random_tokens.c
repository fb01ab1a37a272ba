/* random_tokens.c - a step's samples without data. */
#include "train/run/random_tokens.h"

#include "base/rng.h"

void random_tokens(struct step *s, uint64_t index, double ignored)
{
    size_t count = s->accumulate * s->batch * s->seq_len, own = (s->end - s->begin) * s->seq_len;
    uint64_t stream = rng_stream("random.tokens"), first = (index * s->global + s->begin) * s->seq_len, vocab = s->model.vocab,
             seed = s->seed;

    if (s->image) step_fill_pictures(s, index * s->global);
    for (size_t i = 0; i < count; i++) {
        uint64_t at = 3 * (first + i);

        if (!s->image) {
            s->tokens[i] = (int32_t)(rng_u32(seed, stream, at) % vocab);
            s->targets[i] = (int32_t)(rng_u32(seed, stream, at + 1) % vocab);
        }
        if (i >= own || rng_uniform(seed, stream, at + 2) < ignored) s->targets[i] = -1;
    }
}
