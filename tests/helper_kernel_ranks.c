/* helper_kernel_ranks.c - cases of the ops that exist only in distributed programs: attention and cross-entropy over shards. */
#include "helper_kernel_gen.h"

#include <math.h>

/* o of an f32 accumulator or of the type itself; statistics of both sides, some without a key. */
void attention_merge_cases(struct gen *g)
{
    static const size_t shapes[][4] = {
        { 0, 1, 1, 2 }, { 1, 1, 1, 1 }, { 2, 3, 5, 14 }, { 2, 5, 3, 32 }, { 1, 7, 2, 66 }, { 2, 129, 4, 64 },
    };

    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int variant = 0; variant < 6; variant++) {
            const size_t *s = shapes[i], stat[3] = { s[0], s[2], s[1] };

            gen_begin(g);
            gen_in(g, g->type, -2, 2, 4, s);
            struct view *lse = gen_in(g, LS_F32, -30, 30, 3, stat);
            for (size_t r = 0; r < view_count(lse); r += 3)
                element_put(lse, r, -INFINITY);
            g->layout = variant / 2;
            gen_out_add(g, variant % 2 ? LS_F32 : g->type, -2, 2, 4, s);
            gen_out_add(g, LS_F32, -30, 30, 3, stat);
            for (size_t r = 0; r < view_count(lse); r += 5)
                element_put(&g->c.call.out[1], r, -INFINITY);
            gen_emit(g, "[%zu,%zu,%zu,%zu] variant %d", s[0], s[1], s[2], s[3], variant);
        }
}

static const size_t kernel_ranks_parts[][3] = {  /* R, columns here, vocabulary */
    { 0, 4, 5 }, { 1, 1, 1 }, { 3, 5, 7 }, { 17, 16, 33 }, { 37, 31, 517 }, { 64, 2100, 4100 }, { 5, 0, 9 },
};

static void targets_in(struct gen *g, size_t R, size_t V)
{
    struct view *y = gen_in(g, LS_I32, 0, (double)V, DIMS(R));

    for (size_t r = 0; r < R; r++)
        if (r % 5 == 3)
            element_put(y, r, -1);
}

void xent_part_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_ranks_parts); i++)
        for (size_t first = 0; first < 4; first += 2) {
            size_t R = kernel_ranks_parts[i][0], v = kernel_ranks_parts[i][1], V = kernel_ranks_parts[i][2];

            gen_begin(g);
            gen_in(g, g->type, -9, 9, DIMS(R, v));
            targets_in(g, R, V);
            gen_out(g, LS_F32, DIMS(R, 3));
            g->c.call.attr.embedding.first = first;
            gen_emit(g, "R %zu columns %zu of %zu from %zu", R, v, V, first);
        }
}

void xent_whole_cases(struct gen *g)
{
    for (size_t n = 1; n < 6; n += 2)
        for (size_t R = 0; R < 3000; R += 1 + 12 * R) {
            gen_begin(g);
            struct view *stats = gen_in(g, LS_F32, 1, 9, DIMS(n, R, 3));
            for (size_t k = 0; k < n; k++)
                for (size_t r = 0; r < R; r++)
                    if (r % n != k)
                        element_put(stats, (k * R + r) * 3 + 2, 0);
            targets_in(g, R, 7);
            gen_in(g, LS_F32, 40, 60, DIMS(1));
            gen_out_add(g, LS_F32, 1, 2, DIMS(1));
            gen_out(g, LS_F32, DIMS(R));
            gen_emit(g, "n %zu R %zu", n, R);
        }
}

void xent_dlogits_cases(struct gen *g)
{
    for (size_t i = 0; i < COUNT_OF(kernel_ranks_parts); i++)
        for (int wide = 0; wide < 2; wide++) {
            size_t R = kernel_ranks_parts[i][0], v = kernel_ranks_parts[i][1], V = kernel_ranks_parts[i][2];

            gen_begin(g);
            gen_in(g, wide ? LS_F32 : g->type, -4, 4, DIMS(R, v));
            targets_in(g, R, V);
            gen_in(g, LS_F32, 4, 9, DIMS(R));
            gen_in(g, LS_F32, 40, 60, DIMS(1));
            gen_in(g, LS_F32, 1, 2, DIMS(1));
            gen_out(g, g->type, DIMS(R, v));
            g->c.call.attr.embedding.first = V > v ? 1 : 0;
            gen_emit(g, "R %zu columns %zu of %zu%s", R, v, V, wide ? " of f32 logits" : "");
        }
}

void xent_count_cases(struct gen *g)
{
    for (size_t R = 0; R < 4000; R += 1 + 12 * R) {
        gen_begin(g);
        targets_in(g, R, 7);
        gen_out(g, LS_F32, DIMS(1));
        gen_emit(g, "R %zu", R);
    }
    gen_begin(g);
    gen_in(g, LS_I32, -3, -1, DIMS(9));
    gen_out(g, LS_F32, DIMS(1));
    gen_emit(g, "nothing valid");
}
