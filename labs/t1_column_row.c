/* T1 - column-parallel linear: each rank has some of the output columns, with no communication in forward; the gradient of its input is
 * a sum over the ranks, one all-reduce in backward. Row-parallel: each rank has the rows that read its columns, one all-reduce in
 * forward and none in backward. Column -> GeLU -> row: nothing in between, so one all-reduce for two linears, in each direction.
 *
 * A block of GPT-2 over tp 4: the collectives between one matmul and the next in its program. Three column-parallel matmuls with one
 * input (q, k, v) share an all-reduce: their input gradients are added before it. */
#include "lab_program.h"
#include "lab_mesh.h"

enum { TP = 4 };

static int is_exchange(const ls_instruction *l) { return l->exchange == LS_EXCHANGE_START; }
static int is_gemm(const ls_instruction *l) { return strncmp(l->op, "linear", 6) == 0 || strncmp(l->op, "attention", 9) == 0; }

/* All of a block in a segment: matmuls by their weights' names, what is between them, exchanges with their elements. */
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

/* Exchanges after the product `op` of weight `from` and before the next product that is no weight gradient. */
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

LAB(t1_column_row, "column- and row-parallel matmuls")
{
    struct net n = net_gpt2(1, 8, 32);
    struct distributed s;
    struct instructions l;

    n.shape.tp = TP;
    n.options.overlap = 0;
    distributed_plan(&n, 1, TP, &s);
    l = instructions_of(s.program);
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
    lab_equal("        after the column-parallel mlp.fc", 1, column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.mlp.fc"), 0);
    lab_equal("        after attn.proj (row)", 0, column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.proj"), 0);
    lab_equal("        after the last of q, k, v: one for the three", 1,
              column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.q") + column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.k") +
                  column_row_after(&l, LS_BACKWARD, "linear_dx", "h.0.attn.v"), 0);
    lab_equal("        in the block", 2, within(&l, LS_BACKWARD), 0);
    free(l.at);
    distributed_close(&s);
    return lab_close();
}
