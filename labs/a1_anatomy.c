/* A1 - what a layer keeps for the backward. "About ten tensors of b s d elements": a model of 24 layers of width 2048 ("1B"), 8 samples of
 * 4096 tokens in bf16 would keep 1.34 GB a layer and 32 GB in all.
 *
 * Corrected: ten are too few. A GPT-2 layer keeps the outputs of both norms, queries, keys and values, the attention's output, the residual
 * stream and both sides of the activation, of which those in the inner width are four times as wide; without stored scores Korthikanti et
 * al. (2022) count 34 b s d bytes, 17 tensors. Here dropout keeps no masks (2 of the 34), and what the program keeps is listed by op:
 * without recomputation, with the selective kind, which drops what cheap ops compute, and with the full kind, which keeps the input. */
#include "lab_program.h"
#include "lockstep/nn.h"

struct anatomy {
    ls_program *program;
    ls_store *store;
    ls_cost cost;
};

static ls_model one_billion(void)
{
    ls_model m;

    TRY(ls_model_preset("gpt2-1.5b", &m));
    m.layers = (size_t)lab_size("layers");
    m.width = (size_t)lab_size("width");
    m.heads = m.kv_heads = (size_t)lab_size("heads");
    m.head_size = m.width / m.heads;
    m.ffn = 4 * m.width;
    m.max_positions = (size_t)lab_size("seq-len");
    TRY(ls_model_check(&m));
    return m;
}

static struct anatomy anatomy_of(size_t layers, ls_recompute mode, int every)
{
    ls_store_options so = { "cpu", LS_BF16, 1, 1, 0 };
    ls_compile_options plan = { .recompute = mode, .every = every, .plan_only = 1 };
    size_t size[] = { (size_t)lab_size("batch"), (size_t)lab_size("seq-len") };
    ls_model m = one_billion();
    struct anatomy a;

    m.layers = layers;
    TRY(ls_store_new(&so, &a.store));
    TRY(ls_program_new(a.store, &a.program));
    ls_value x = ls_input(a.program, "x", LS_I32, 2, size), y = ls_input(a.program, "y", LS_I32, 2, size);
    ls_backward(a.program, ls_model_loss(a.program, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_program_compile(a.program, &plan));
    a.cost = ls_program_cost(a.program);
    return a;
}

static void anatomy_close(struct anatomy *a)
{
    ls_program_release(&a->program);
    ls_store_release(&a->store);
}

/* Bytes that one more layer adds to the activations at their peak. */
static double a_layer(ls_recompute mode)
{
    size_t layers = (size_t)lab_size("layers");
    struct anatomy more = anatomy_of(layers, mode, 1), less = anatomy_of(layers - 1, mode, 1);
    double bytes = (double)more.cost.activations - (double)less.cost.activations;

    anatomy_close(&more);
    anatomy_close(&less);
    return bytes;
}

/* Recomputation reads too. */
static int is_read_backward(const struct instructions *l, int id)
{
    for (int k = 0; k < l->n; k++) {
        if (l->at[k].segment != LS_BACKWARD) continue;
        for (int i = 0; i < l->at[k].nin; i++)
            if (l->at[k].in[i].value.id == id) return 1;
    }
    return 0;
}

enum { MODES = 3 };
static const ls_recompute modes[MODES] = { LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL };

/* An output of block h.1's forward; each program has them in the same order. kept: in tensors of b s d; 0: nothing in backward reads it,
 * or it is a view of bytes that are listed already. */
struct output { const char *op; double kept; };
enum { OUTPUTS_MOST = 64 };

static int is_listed(const struct instructions *l, const ls_instruction *i)
{
    return is_op(i, "view") && is_read_backward(l, i->in[0].value.id);
}

static int outputs_of(const struct instructions *l, double tensor, struct output out[OUTPUTS_MOST])
{
    int n = 0;

    for (int k = 0; k < l->n; k++) {
        const ls_instruction *i = &l->at[k];

        if (i->segment != LS_FORWARD || strcmp(i->block, "h.1") != 0) continue;
        for (int o = 0; o < i->nout && n < OUTPUTS_MOST; o++)
            if (i->out[o].value.id) {
                int kept = is_read_backward(l, i->out[o].value.id) && !is_listed(l, i);

                out[n++] = (struct output){ i->op, kept ? (double)i->out[o].bytes / tensor : 0 };
            }
    }
    return n;
}

/* Prints what a layer in the middle keeps under each mode, and returns the sums. */
static void list_kept(double tensor, double sum[MODES])
{
    struct output kept[MODES][OUTPUTS_MOST];
    struct instructions l[MODES];
    struct anatomy a[MODES];
    int n = 0;

    for (int m = 0; m < MODES; m++) {
        a[m] = anatomy_of(3, modes[m], 1);
        l[m] = instructions_of(a[m].program);
        n = outputs_of(&l[m], tensor, kept[m]);
    }
    lab_say("kept by a layer for its backward, in tensors of b s d\n  %-28s %12s %12s %12s\n", "recomputation:", "none", "selective",
            "full");
    for (int i = 0; i < n; i++) {
        for (int m = 0; m < MODES; m++) sum[m] += kept[m][i].kept;
        if (kept[0][i].kept + kept[1][i].kept + kept[2][i].kept > 0)
            lab_say("  %-28s %12.3f %12.3f %12.3f\n", kept[0][i].op, kept[0][i].kept, kept[1][i].kept, kept[2][i].kept);
    }
    lab_say("  %-28s %12.3f %12.3f %12.3f\n\n", "sum", sum[0], sum[1], sum[2]);
    for (int m = 0; m < MODES; m++) {
        free(l[m].at);
        anatomy_close(&a[m]);
    }
}

/* The activations of the whole model with full recomputation, as a share of those without. */
static double share_full(void)
{
    struct anatomy none = anatomy_of((size_t)lab_size("layers"), LS_RECOMPUTE_NONE, 1);
    struct anatomy full = anatomy_of((size_t)lab_size("layers"), LS_RECOMPUTE_FULL, 1);
    double share = (double)full.cost.live_peak / (double)none.cost.live_peak;

    anatomy_close(&none);
    anatomy_close(&full);
    return share;
}

LAB(a1_anatomy, "what a layer keeps", { "layers", "layers of the model", 24, 8, 200 }, { "width", "width of the model", 2048, 64, 65536 },
    { "heads", "attention heads", 16, 1, 256 }, { "batch", "samples of a micro-batch", 8, 1, 1024 },
    { "seq-len", "tokens of a sample", 4096, 16, 1 << 20 })
{
    double tensor = 2.0 * (double)lab_size("batch") * (double)lab_size("seq-len") * (double)lab_size("width");
    double layers = (double)lab_size("layers"), sum[MODES] = { 0 };
    double none = a_layer(LS_RECOMPUTE_NONE), selective = a_layer(LS_RECOMPUTE_SELECTIVE), full = a_layer(LS_RECOMPUTE_FULL);

    list_kept(tensor, sum);
    lab_open("A1");
    lab_corrected("activations of a layer [GB]", '=', 10 * tensor / 1e9, 16 * tensor / 1e9, none / 1e9, 0.01,
                  "why: ten tensors are too few: inner width and both norms count; 34 b s d bytes with dropout's masks, 32 without");
    lab_check("selective recomputation, which repeats norms and the activation: tensors of b s d", 10, selective / tensor, 0.01);
    lab_equal("full recomputation: its input alone, one tensor [GB]", tensor / 1e9, full / 1e9, 0.01);
    lab_check("the list: tensors of b s d without recomputation", 16, sum[0], 0.01);
    lab_check("        with selective recomputation", 10, sum[1], 0.01);
    lab_check("        with full recomputation", 1, sum[2], 0.01);
    lab_corrected("full recomputation: activations of the model saved [%]", '=', 70, 100 * (1 - (layers + 16) / (16 * layers)),
                  100 * (1 - share_full()), 0.05,
                  "why: L inputs and one layer's inner tensors stay; 70% is what selective recomputation saves where scores are stored");
    return lab_close();
}
