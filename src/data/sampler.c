/* sampler.c - the tokens of sample i. */
#include "base/base.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lockstep/data.h"

ls_status ls_sampler_init(ls_sampler *s, const ls_tokens *tokens, ls_range part, size_t seq_len, int32_t vocab, uint64_t seed, int shuffle)
{
    size_t count = ls_tokens_count(tokens);

    if (part.begin > part.end || part.end > count)
        return ls_fail(LS_EINVAL, "samples are requested from tokens %zu .. %zu, but there are only %zu", part.begin, part.end, count);
    if (seq_len == 0) return ls_fail(LS_EINVAL, "seq_len is 0; must be at least 1");
    if (part.end - part.begin <= seq_len)
        return ls_fail(LS_EINVAL, "%zu tokens are fewer than one sample of %zu + 1", part.end - part.begin, seq_len);
    *s = (ls_sampler){ tokens, part.begin, seq_len, (part.end - part.begin - 1) / seq_len, seed, vocab, shuffle };
    return LS_OK;
}

size_t ls_sampler_position(const ls_sampler *s, uint64_t index)
{
    uint64_t epoch = index / s->samples, window = index % s->samples;

    if (s->shuffle) window = rng_permute(s->seed, rng_stream("data.order") + epoch, window, s->samples);
    return s->begin + (size_t)window * s->seq_len;
}

ls_status ls_sampler_get(const ls_sampler *s, uint64_t index, int32_t *x, int32_t *y)
{
    size_t at = ls_sampler_position(s, index), n = s->seq_len;

    LS_TRY(ls_tokens_read(s->tokens, at, n, s->vocab, x));
    for (size_t i = 1; i < n; i++) y[i - 1] = x[i];
    return ls_tokens_read(s->tokens, at + n, 1, s->vocab, y + n - 1);
}
