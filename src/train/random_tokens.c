/* random_tokens.c - a step's samples without data. */
#include "train/random_tokens.h"

#include "base/rng.h"

void random_tokens(struct step *s, uint64_t index, double ignored)
{
    size_t count = s->accumulate * s->batch * s->seq_len, own = (s->end - s->begin) * s->seq_len;
    uint64_t stream = rng_stream("random.tokens"), first = (index * s->global + s->begin) * s->seq_len,
             vocab = s->model.vocab, seed = s->model.seed;

    for (size_t i = 0; i < count; i++) {
        uint64_t at = 3 * (first + i);
        bool counts = i < own && rng_uniform(seed, stream, at + 2) >= ignored;

        s->tokens[i] = (int32_t)(rng_u32(seed, stream, at) % vocab);
        s->targets[i] = counts ? (int32_t)(rng_u32(seed, stream, at + 1) % vocab) : -1;
    }
}
