/* T1 - column-parallel linear: each rank has some of the output columns, with no communication in forward; the gradient of its input is
 * a sum over the ranks, one all-reduce in backward. Row-parallel: each rank has the rows that read its columns, one all-reduce in
 * forward and none in backward. Column -> GeLU -> row: nothing in between, so one all-reduce for two linears, in each direction.
 *
 * A block of GPT-2 over tp 4: the collectives between one matmul and the next in its program. Three column-parallel matmuls with one
 * input (q, k, v) share an all-reduce: their input gradients are added before it.
 *
 * Then the feed-forward part by hand, on real ranks, column -> row beside row -> row. Row-parallel first leaves partial sums of the inner
 * tensor, which must be summed before GELU: with an inner width of k widths that is k b s d more for each b s d, so column -> row saves
 * k/(k+1) of the bytes. A bias that each rank adds before the sum counts T times. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { ROWS = 24, BY_HAND_WIDTH = 16, RANKS_MOST = 8, INNER_MOST = 16 };

static int is_exchange(const ls_instruction *l) { return l->exchange == LS_EXCHANGE_START; }
static int is_gemm(const ls_instruction *l) { return strncmp(l->op, "linear", 6) == 0 || strncmp(l->op, "attention", 9) == 0; }

/* Prints a block's instructions in a segment: matmuls by their weights' names, and the exchanges between them with their elements. */
static void print(const struct instructions *l, int segment, const char *title)
{
    lab_say("%s:\n", title);
    for (int k = 0; k < l->n; k++) {
        const ls_instruction *i = &l->at[k];
        char weight[64];

        if (i->segment != segment || strcmp(i->block, "h.0") != 0) continue;
        if (is_gemm(i) || strncmp(i->op, "unary", 5) == 0) lab_say("    %-16s %s\n", i->op, weight_of(i, weight, sizeof weight));
        if (is_exchange(i))
            lab_say("        %s over %s, %zu elements\n", i->op, i->axis == LS_AXIS_TP ? "tp" : "another axis", i->elements);
    }
}

/* Exchanges after the matmul `op` of weight `from` and before the next matmul that is not a weight gradient. */
static int column_row_after(const struct instructions *l, int segment, const char *op, const char *from)
{
    int found = 0, on = 0;

    for (int k = 0; k < l->n; k++) {
        const ls_instruction *i = &l->at[k];
        char weight[64];

        if (i->segment != segment || strcmp(i->block, "h.0") != 0) continue;
        if (is_gemm(i) && strcmp(i->op, "linear_dw") != 0) on = is_op(i, op) && strcmp(weight_of(i, weight, sizeof weight), from) == 0;
        found += on && is_exchange(i);
    }
    return found;
}

static int within(const struct instructions *l, int segment)
{
    int found = 0;

    for (int k = 0; k < l->n; k++)
        found += l->at[k].segment == segment && strcmp(l->at[k].block, "h.0") == 0 && is_exchange(&l->at[k]);
    return found;
}

/* ---- by hand ---- */

/* Results of a rank. sent: bytes of its all-reduces, or of the all-gather; apart: largest difference from one rank's output. */
struct by_hand { double column_row, row_row, gather, apart, gelu_first, bias; };

/* A matrix of numbers around zero, the same on every rank. */
static float *by_hand_matrix(size_t count, unsigned seed)
{
    float *m = malloc(count * sizeof *m);

    if (!m) exit(1);
    for (size_t i = 0; i < count; i++) m[i] = (float)(mixed(seed, (unsigned)i, 1) % 2001) / 1000 - 1;
    return m;
}

/* out[ROWS, to - from] = x[ROWS, ..] w[.., in]^T: outputs from .. to of w, and of its inputs those from in0 to in1. x has `across` columns,
 * of which the first that is read is x0. */
static void by_hand_linear(const float *x, size_t across, size_t x0, const float *w, size_t in, size_t in0, size_t in1, size_t from,
                           size_t to, float *out)
{
    for (size_t r = 0; r < ROWS; r++)
        for (size_t o = from; o < to; o++) {
            float sum = 0;

            for (size_t i = in0; i < in1; i++) sum += x[r * across + x0 + i - in0] * w[o * in + i];
            out[r * (to - from) + o - from] = sum;
        }
}

static void by_hand_gelu(float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}

static double by_hand_apart(const float *a, const float *b, size_t count)
{
    double most = 0, size = 0;

    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - b[i]));
        size = fmax(size, fabs((double)b[i]));
    }
    return most / size;
}

static void by_hand_sum(ls_comm *comm, float *x, size_t count) { TRY(ls_all_reduce(comm, x, x, count, LS_F32, LS_SUM, NULL)); }

/* y = gelu(x w1^T) w2^T on one rank, and both ways on `n`. The hidden tensor is the same [ROWS, inner] memory each time. */
static void by_hand_run(ls_comm *comm, int rank, int n, void *shared)
{
    struct by_hand *f = (struct by_hand *)shared + rank;
    size_t d = BY_HAND_WIDTH, inner = d * (size_t)lab_size("inner"), r = (size_t)rank, of = (size_t)n;
    size_t from = inner * r / of, to = inner * (r + 1) / of, in0 = d * r / of, in1 = d * (r + 1) / of, counts[RANKS_MOST];
    float *x = by_hand_matrix(ROWS * d, 1), *w1 = by_hand_matrix(inner * d, 2), *w2 = by_hand_matrix(d * inner, 3);
    float *h = by_hand_matrix(ROWS * inner, 4), *all = by_hand_matrix(ROWS * inner, 4), one[ROWS * BY_HAND_WIDTH], y[ROWS * BY_HAND_WIDTH];

    by_hand_linear(x, d, 0, w1, d, 0, d, 0, inner, h);
    by_hand_gelu(h, ROWS * inner);
    by_hand_linear(h, inner, 0, w2, inner, 0, inner, 0, d, one);

    by_hand_linear(x, d, 0, w1, d, 0, d, from, to, h);
    for (int k = 0; k < n; k++) counts[k] = ROWS * (inner * (size_t)(k + 1) / of - inner * (size_t)k / of);
    TRY(ls_all_gather_v(comm, h, all, counts, LS_F32, NULL));
    f->gather = (double)sent(comm, LS_COLLECTIVE_ALL_GATHER);
    by_hand_gelu(h, ROWS * (to - from));
    by_hand_linear(h, to - from, 0, w2, inner, from, to, 0, d, y);
    by_hand_sum(comm, y, ROWS * d);
    f->column_row = (double)sent(comm, LS_COLLECTIVE_ALL_REDUCE);
    f->apart = by_hand_apart(y, one, ROWS * d);
    double before = y[0];
    by_hand_linear(h, to - from, 0, w2, inner, from, to, 0, d, y);
    for (size_t i = 0; i < ROWS * d; i++) y[i] += 1;
    by_hand_sum(comm, y, ROWS * d);
    f->bias = y[0] - before;

    for (int early = 0; early < 2; early++) {
        before = (double)sent(comm, LS_COLLECTIVE_ALL_REDUCE);
        by_hand_linear(x, d, in0, w1, d, in0, in1, 0, inner, h);
        if (early) by_hand_gelu(h, ROWS * inner);
        by_hand_sum(comm, h, ROWS * inner);
        if (!early) by_hand_gelu(h, ROWS * inner);
        by_hand_linear(h, inner, from, w2, inner, from, to, 0, d, y);
        by_hand_sum(comm, y, ROWS * d);
        f->row_row = (double)sent(comm, LS_COLLECTIVE_ALL_REDUCE) - before;
        if (early)
            f->gelu_first = by_hand_apart(y, one, ROWS * d);
        else
            f->apart = fmax(f->apart, by_hand_apart(y, one, ROWS * d));
    }
    free(x);
    free(w1);
    free(w2);
    free(h);
    free(all);
}

static void by_hand(int n)
{
    struct by_hand *f = lab_shared(RANKS_MOST * sizeof *f), all = { 0 };
    double inner = (double)lab_size("inner"), bsd = 4.0 * ROWS * BY_HAND_WIDTH, ring = 2.0 * (n - 1) / n;

    lab_ranks(n, by_hand_run, f);
    for (int r = 0; r < n; r++) {
        all.column_row += f[r].column_row / n / bsd;
        all.row_row += f[r].row_row / n / bsd;
        all.gather += f[r].gather / n / (inner * bsd);
        all.apart = fmax(all.apart, f[r].apart);
        all.gelu_first = fmax(all.gelu_first, f[r].gelu_first);
        all.bias = fmax(all.bias, f[r].bias);
    }
    lab_check("feed-forward, column -> GELU -> row: sent by a rank, in b s d", ring, all.column_row, 1e-12);
    lab_check("feed-forward, row -> sum -> GELU -> row: sent by a rank, in b s d", ring * (inner + 1), all.row_row, 1e-12);
    lab_check("bytes that column -> row saves against row -> row [%]", 100 * inner / (inner + 1),
              100 * (1 - all.column_row / all.row_row), 1e-12);
    lab_check_below("both: apart from one rank's output, relative", 1e-5, all.apart);
    lab_check_above("GELU of the partial sums, without a sum before it: apart from one rank's output", 0.01, all.gelu_first);
    lab_check("column-parallel with gathered output: sent by a rank, in outputs", (n - 1.0) / n, all.gather, 1e-12);
    lab_check("row-parallel with the bias added before the sum: times that it counts", n, all.bias, 1e-4);
    lab_unshare(f, RANKS_MOST * sizeof *f);
}

LAB(t1_column_row, "column- and row-parallel matmuls", { "ranks", "ranks of tensor parallelism", 4, 2, RANKS_MOST },
    { "inner", "inner width of the feed-forward block, in widths", 4, 2, INNER_MOST })
{
    int tp = (int)lab_size("ranks");
    struct net n = net_gpt2(1, 8, 32);
    struct distributed s;

    n.shape.tp = tp;
    n.options.overlap = 0;
    distributed_plan(&n, 1, tp, &s);
    struct instructions l = instructions_of(s.program);
    print(&l, LS_FORWARD, "forward");
    print(&l, LS_BACKWARD, "backward");
    lab_say("\n");
    lab_open("T1");
    lab_equal("forward, all-reduces after the column-parallel mlp.fc", 0, column_row_after(&l, LS_FORWARD, "linear", "h.0.mlp.fc"), 0);
    lab_equal("        after the row-parallel mlp.proj", 1, column_row_after(&l, LS_FORWARD, "linear", "h.0.mlp.proj"), 0);
    lab_equal("        after q, k, v (column) and attention", 0,
              column_row_after(&l, LS_FORWARD, "linear", "h.0.attn.q") + column_row_after(&l, LS_FORWARD, "linear", "h.0.attn.k") +
                  column_row_after(&l, LS_FORWARD, "linear", "h.0.attn.v") + column_row_after(&l, LS_FORWARD, "attention", ""),
              0);
    lab_equal("        after attn.proj (row)", 1, column_row_after(&l, LS_FORWARD, "linear", "h.0.attn.proj"), 0);
    lab_equal("        in the block, of 6 linears", 2, within(&l, LS_FORWARD), 0);
    lab_equal("backward, after the row-parallel mlp.proj", 0, column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.mlp.proj"), 0);
    lab_equal("backward, after the column-parallel mlp.fc", 1, column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.mlp.fc"), 0);
    lab_equal("        after attn.proj (row)", 0, column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.proj"), 0);
    lab_equal("        after the last of q, k, v: one for the three", 1,
              column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.q") + column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.k") +
                  column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.v"), 0);
    lab_equal("        in the block", 2, within(&l, LS_BACKWARD), 0);
    free(l.at);
    distributed_close(&s);
    by_hand(tp);
    return lab_close();
}
