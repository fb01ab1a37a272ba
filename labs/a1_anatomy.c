/* A1 - what a layer keeps for the backward. "About ten tensors of b s d elements": a model of 24 layers of width 2048 ("1B"), 8 samples of
 * 4096 tokens in bf16 would keep 1.34 GB a layer and 32 GB in all.
 *
 * Corrected: ten are too few. A GPT-2 layer keeps the outputs of both norms, queries, keys and values, the attention's output, the residual
 * stream and both sides of the activation, of which those in the inner width are four times as wide; without stored scores Korthikanti et
 * al. (2022) count 34 b s d bytes, 17 tensors. Here dropout keeps no masks (2 of the 34), and what the program keeps is listed by op. */
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
    ls_store_options so = { "cpu", LS_BF16, 1, 1 };
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

/* What one more layer adds to the activations at their peak. */
static double a_layer(ls_recompute mode)
{
    size_t layers = (size_t)lab_size("layers");
    struct anatomy more = anatomy_of(layers, mode, 1), less = anatomy_of(layers - 1, mode, 1);
    double bytes = (double)more.cost.activations - (double)less.cost.activations;

    anatomy_close(&more);
    anatomy_close(&less);
    return bytes;
}

static int is_read_backward(const struct instructions *l, int id)
{
    for (int k = 0; k < l->n; k++) {
        if (l->at[k].segment != LS_BACKWARD || l->at[k].phase == LS_PHASE_RECOMPUTE) continue;
        for (int i = 0; i < l->at[k].nin; i++)
            if (l->at[k].in[i].value.id == id) return 1;
    }
    return 0;
}

/* The values that block h.1 computes and its backward reads. */
static void list_kept(double tensor)
{
    struct anatomy a = anatomy_of(3, LS_RECOMPUTE_NONE, 1);
    struct instructions l = instructions_of(a.program);

    lab_say("kept by a layer, as its backward reads it%*s\n", 30, "tensors of b s d");
    for (int k = 0; k < l.n; k++) {
        if (l.at[k].segment != LS_FORWARD || strcmp(l.at[k].block, "h.1") != 0) continue;
        for (int o = 0; o < l.at[k].nout; o++)
            if (l.at[k].out[o].value.id && is_read_backward(&l, l.at[k].out[o].value.id))
                lab_say("  %-40s %26.3f\n", l.at[k].op, (double)l.at[k].out[o].bytes / tensor);
    }
    lab_say("\n");
    free(l.at);
    anatomy_close(&a);
}

LAB(a1_anatomy, "what a layer keeps", { "layers", "layers of the model", 24, 3, 200 }, { "width", "width of the model", 2048, 64, 65536 },
    { "heads", "attention heads", 16, 1, 256 }, { "batch", "samples of a micro-batch", 8, 1, 1024 },
    { "seq-len", "tokens of a sample", 4096, 16, 1 << 20 })
{
    double tensor = 2.0 * (double)lab_size("batch") * (double)lab_size("seq-len") * (double)lab_size("width");
    double none = a_layer(LS_RECOMPUTE_NONE), selective = a_layer(LS_RECOMPUTE_SELECTIVE), full = a_layer(LS_RECOMPUTE_FULL);

    list_kept(tensor);
    lab_open("A1");
    lab_corrected("activations of a layer [GB]", '=', 10 * tensor / 1e9, 16 * tensor / 1e9, none / 1e9, 0.01,
                  "why: ten tensors are too few: inner width and both norms count; 34 b s d bytes with dropout's masks, 32 without");
    lab_check("selective recomputation, which repeats norms and the activation: tensors of b s d", 10, selective / tensor, 0.01);
    lab_equal("full recomputation: its input alone, one tensor [GB]", tensor / 1e9, full / 1e9, 0.01);
    return lab_close();
}
