/* test_data_loader.c - samples are a function of their index, and the loader returns the same samples faster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "data/tokens.h"
#include "helper_checkpoint.h"
#include "train/faults/fault_points.h"

enum { VOCAB = 1000 };

static ls_tokens *tokens_make(size_t count)  /* token i is i */
{
    struct ids ids = { 0 };
    ls_tokens *t;

    for (size_t i = 0; i < count; i++) OK(ids_push(&ids, (int32_t)i));
    OK(tokens_from_ids(&ids, VOCAB, &t));
    mem_free(ids.at);
    return t;
}

static void each_window_is_read_once_per_epoch(void **state)
{
    ls_tokens *t = tokens_make(VOCAB);
    ls_sampler s;
    int32_t x[7], y[7];

    (void)state;
    OK(ls_sampler_init(&s, t, (ls_range){ 100, 823 }, 7, VOCAB, 42, 1));
    assert_int_equal(s.samples, (723 - 1) / 7);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        unsigned char seen[200] = { 0 };

        for (uint64_t i = 0; i < s.samples; i++) {
            OK(ls_sampler_get(&s, epoch * s.samples + i, x, y));
            assert_int_equal((x[0] - 100) % 7, 0);
            assert_true(x[0] >= 100 && y[6] < 823);
            assert_int_equal(seen[(x[0] - 100) / 7]++, 0);
            assert_int_equal(ls_sampler_position(&s, epoch * s.samples + i), x[0]);
            for (int k = 0; k < 7; k++) assert_true(x[k] == x[0] + k && y[k] == x[k] + 1);
        }
    }
    ls_tokens_close(&t);
}

static size_t count_same(const ls_sampler *a, const ls_sampler *b, uint64_t shift)
{
    size_t same = 0;

    for (uint64_t i = 0; i < a->samples; i++) same += ls_sampler_position(a, i) == ls_sampler_position(b, i + shift);
    return same;
}

static void test_order_follows_seed_and_epoch(void **state)
{
    ls_tokens *t = tokens_make(VOCAB);
    const ls_range all = { 0, VOCAB };
    ls_sampler a, b, other, straight;

    (void)state;
    OK(ls_sampler_init(&a, t, all, 5, VOCAB, 1, 1));
    OK(ls_sampler_init(&b, t, all, 5, VOCAB, 1, 1));
    OK(ls_sampler_init(&other, t, all, 5, VOCAB, 2, 1));
    OK(ls_sampler_init(&straight, t, all, 5, VOCAB, 1, 0));
    assert_int_equal(a.samples, 199);
    assert_int_equal(count_same(&a, &b, 0), 199);
    assert_true(count_same(&a, &other, 0) < 12);       /* a random permutation agrees in one place on average */
    assert_true(count_same(&a, &a, a.samples) < 12);
    assert_true(count_same(&a, &straight, 0) < 12);
    for (uint64_t i = 0; i < 400; i++) assert_int_equal(ls_sampler_position(&straight, i), i % 199 * 5);
    ls_tokens_close(&t);
}

static void impossible_samplers_are_refused(void **state)
{
    ls_tokens *t = tokens_make(100);
    ls_sampler s;
    int32_t x[10], y[10];

    (void)state;
    REFUSED(LS_EINVAL, "20 tokens are fewer than one sample of 20 + 1",
            ls_sampler_init(&s, t, (ls_range){ 10, 30 }, 20, VOCAB, 0, 1));
    REFUSED(LS_EINVAL, "tokens 50 .. 101, but there are only 100", ls_sampler_init(&s, t, (ls_range){ 50, 101 }, 4, VOCAB, 0, 1));
    REFUSED(LS_EINVAL, "tokens 60 .. 50", ls_sampler_init(&s, t, (ls_range){ 60, 50 }, 4, VOCAB, 0, 1));
    REFUSED(LS_EINVAL, "seq_len is 0", ls_sampler_init(&s, t, (ls_range){ 0, 100 }, 0, VOCAB, 0, 1));
    OK(ls_sampler_init(&s, t, (ls_range){ 0, 100 }, 10, 35, 0, 0));
    assert_int_equal(s.samples, 9);
    OK(ls_sampler_get(&s, 2, x, y));
    REFUSED(LS_EFORMAT, "text: token 35 at position 35 is not in the vocabulary of 35", ls_sampler_get(&s, 3, x, y));
    OK(ls_sampler_init(&s, t, (ls_range){ 0, 100 }, 99, VOCAB, 0, 1));
    assert_int_equal(s.samples, 1);
    ls_tokens_close(&t);
}

/* Batch k of the loader against the sampler; each answer is held until the next call. */
static void check_loader(const ls_sampler *s, const ls_batches *b, uint64_t per_step, uint64_t step, uint64_t batches)
{
    const int32_t *x, *y;
    int32_t ex[8], ey[8];
    ls_loader *l;

    assert_true(s->seq_len <= 8);
    OK(ls_loader_open(s, b, &l));
    for (uint64_t k = 0; k < batches; k++) {
        OK(ls_loader_next(l, &x, &y));
        for (size_t row = 0; row < b->batch; row++) {
            OK(ls_sampler_get(s, b->first + k / per_step * step + b->offset + k % per_step * b->batch + row, ex, ey));
            assert_memory_equal(x + row * s->seq_len, ex, s->seq_len * sizeof *ex);
            assert_memory_equal(y + row * s->seq_len, ey, s->seq_len * sizeof *ey);
        }
    }
    ls_loader_close(&l);
    assert_null(l);
}

static void loader_equals_sampler(void **state)
{
    ls_tokens *t = tokens_make(VOCAB);
    ls_sampler s;

    (void)state;
    OK(ls_sampler_init(&s, t, (ls_range){ 3, VOCAB }, 8, VOCAB, 5, 1));
    check_loader(&s, &(ls_batches){ .batch = 3 }, 1, 3, 200);
    check_loader(&s, &(ls_batches){ .batch = 1, .first = 12345, .depth = 1 }, 1, 1, 50);
    check_loader(&s, &(ls_batches){ .batch = 2, .per_step = 3 }, 3, 6, 50);
    for (uint64_t rank = 0; rank < 4; rank++) /* four ranks, two batches of two per step: 16 samples over all ranks */
        check_loader(&s, &(ls_batches){ 2, .first = 160, .per_step = 2, .step = 16, .offset = 4 * rank, .depth = 3 },
                     2, 16, 40);
    check_loader(&s, &(ls_batches){ .batch = 5 }, 1, 5, 0);  /* closed before anything is taken */
    ls_tokens_close(&t);
}

/* Four ranks together see what one rank sees. */
static void ranks_cover_the_step(void **state)
{
    unsigned char seen[64] = { 0 };
    ls_tokens *t = tokens_make(VOCAB);
    ls_sampler s;
    const int32_t *x, *y;

    (void)state;
    OK(ls_sampler_init(&s, t, (ls_range){ 0, VOCAB }, 4, VOCAB, 5, 0));
    for (uint64_t rank = 0; rank < 4; rank++) {
        ls_loader *l;

        OK(ls_loader_open(&s, &(ls_batches){ .batch = 2, .per_step = 2, .step = 16, .offset = 4 * rank }, &l));
        for (int k = 0; k < 8; k++) {
            OK(ls_loader_next(l, &x, &y));
            for (int row = 0; row < 2; row++) assert_int_equal(seen[x[row * 4] / 4]++, 0);
        }
        ls_loader_close(&l);
    }
    for (size_t i = 0; i < sizeof seen; i++) assert_int_equal(seen[i], 1);
    ls_tokens_close(&t);
}

static void test_loader_failures(void **state)
{
    ls_tokens *t = tokens_make(100);
    ls_sampler s;
    ls_loader *l = NULL;
    const int32_t *x, *y;

    (void)state;
    OK(ls_sampler_init(&s, t, (ls_range){ 0, 100 }, 10, 35, 0, 0));
    REFUSED(LS_EINVAL, "a batch must have at least one sample", ls_loader_open(&s, &(ls_batches){ 0 }, &l));
    REFUSED(LS_EINVAL, "6 samples from 3 on do not fit a step of 8",
            ls_loader_open(&s, &(ls_batches){ .batch = 3, .per_step = 2, .step = 8, .offset = 3 }, &l));
    assert_null(l);
    ls_loader_close(&l);
    OK(ls_loader_open(&s, &(ls_batches){ .batch = 1, .depth = 16 }, &l));
    for (int k = 0; k < 3; k++) {  /* the batches before the bad one come first */
        OK(ls_loader_next(l, &x, &y));
        assert_int_equal(x[0], 10 * k);
    }
    for (int k = 0; k < 2; k++) REFUSED(LS_EFORMAT, "text: token 35 at position 35", ls_loader_next(l, &x, &y));
    ls_loader_close(&l);
    for (int n = 1; n < 3; n++) {
        mem_fail_at(n);
        REFUSED(LS_ENOMEM, "out of memory", ls_loader_open(&s, &(ls_batches){ .batch = 1 }, &l));
    }
    mem_fail_at(0);
    ls_tokens_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_window_is_read_once_per_epoch), cmocka_unit_test(test_order_follows_seed_and_epoch),
        cmocka_unit_test(impossible_samplers_are_refused),           cmocka_unit_test(loader_equals_sampler),
        cmocka_unit_test(ranks_cover_the_step),      cmocka_unit_test(test_loader_failures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
