/* random_tokens.c - random samples, for benchmarks and comparisons without data. */
#include "train/run/random_tokens.h"

#include "base/rng.h"

void random_tokens(struct step *s, uint64_t index, double ignored)
{
    size_t count = s->accumulate * s->batch * s->seq_len, own = (s->end - s->begin) * s->seq_len;
    uint64_t stream = rng_stream("random.tokens"), first = (index * s->global + s->begin) * s->seq_len;

    s->model.task->draw(s, index * s->global);
    for (size_t i = 0; i < count; i++)
        if (i >= own || rng_uniform(s->seed, stream, 3 * (first + i) + 2) < ignored) s->targets[i] = -1;
}
