/* A2 - weights, gradients and Adam's state take 16 bytes a parameter in mixed precision: 3B are 48 GB, 7B 112 GB, 70B 1.1 TB, which 14 H100
 * of 80 GB hold.
 *
 * Models of these sizes are planned on one rank. Gradients are f32 here, so it is 18 bytes, as Z1 says: 16 are weights, masters and moments
 * with gradients of 2. Corrected: 14 GPUs hold exactly the state, and nothing is left for activations and buffers.
 *
 * --billions and --memory repeat this for other numbers of parameters and GPUs of other sizes. Activations grow with --batch, the state
 * does not. They are counted before the loss, whose scratch does not grow with the batch. */
#include "lab_program.h"
#include "lockstep/nn.h"
#include "lockstep/optim.h"

struct state {
    double parameters, bytes, gradients, kept; /* kept: activations in memory when all layers have been computed */
};

static double kept_before_loss(const ls_program *p)
{
    struct instructions l = instructions_of(p);
    double kept = 0;

    for (int k = 0; k < l.n; k++)
        if (l.at[k].segment == LS_FORWARD && !is_op(&l.at[k], "linear_xent")) kept = (double)l.at[k].live;
    free(l.at);
    return kept;
}

static struct state state_of(const char *preset, size_t layers, size_t batch)
{
    ls_store_options so = { "cpu", LS_BF16, 1, 1, 0 };
    ls_compile_options plan = { .every = 1, .plan_only = 1 };
    ls_optimizer adamw = LS_OPTIMIZER_DEFAULTS;
    ls_program *p;
    ls_store *s;
    ls_model m;

    TRY(ls_model_preset(preset, &m));
    if (layers) m.layers = layers;
    TRY(ls_store_new(&so, &s));
    TRY(ls_program_new(s, &p));
    ls_value x = ls_input(p, "x", LS_I32, SIZES(batch, 64)), y = ls_input(p, "y", LS_I32, SIZES(batch, 64));
    ls_backward(p, ls_model_loss(p, &m, x, y, LS_NONE, LS_NONE));
    TRY(ls_optimizer_append(p, &adamw));
    TRY(ls_program_compile(p, &plan));
    ls_cost c = ls_program_cost(p);
    struct state out = { (double)ls_store_elements(s), (double)(c.parameters + c.gradients + c.optimizer), (double)c.gradients,
                         kept_before_loss(p) };
    ls_program_release(&p);
    ls_store_release(&s);
    return out;
}

/* The state as if the model had so many parameters, with gradients of 2 bytes. */
static double gigabytes(struct state s, double parameters) { return (s.bytes - s.gradients / 2) / s.parameters * parameters / 1e9; }

static void a2_chosen(struct state s)
{
    int billions = (int)lab_size("billions"), memory = (int)lab_size("memory");
    double gb = gigabytes(s, billions * 1e9);
    char what[100];

    snprintf(what, sizeof what, "%dB parameters: state, 16 bytes each [GB]", billions);
    lab_equal(what, 16.0 * billions, gb, 1e-3);
    snprintf(what, sizeof what, "%dB parameters: GPUs of %d GB that hold the state", billions, memory);
    lab_equal(what, ceil(16.0 * billions / memory), ceil(gb / memory - 1e-9), 0);
    snprintf(what, sizeof what, "%dB parameters: left of one GPU of %d GB [GB]", billions, memory);
    lab_check(what, memory - 16.0 * billions, memory - gb, 1e-3);
    snprintf(what, sizeof what, "GPU of %d GB: parameters whose state fits, 16 bytes each [billion]", memory);
    lab_equal(what, memory / 16.0, memory / gb * billions, 1e-3);
    snprintf(what, sizeof what, "GPU of %d GB: parameters whose state fits, 18 bytes with f32 gradients [billion]", memory);
    lab_check(what, memory / 18.0, memory / s.bytes * s.parameters, 1e-3);
}

static void batches(int batch)
{
    struct state base = state_of("llama-tiny", 8, 16), more = state_of("llama-tiny", 8, (size_t)batch);
    char what[100];

    snprintf(what, sizeof what, "batch %d / batch 16: weights, gradients and optimizer state", batch);
    lab_check(what, 1, more.bytes / base.bytes, 0);
    snprintf(what, sizeof what, "batch %d / batch 16: activations", batch);
    lab_check(what, batch / 16.0, more.kept / base.kept, 2e-3);
}

LAB(a2_state, "3B, 7B and 70B parameters", { "billions", "parameters, in billions", 7, 1, 10000 },
    { "memory", "memory of a GPU, in GB", 80, 8, 1000 }, { "batch", "samples of a batch, beside 16", 32, 16, 256 })
{
    struct state three = state_of("llama3.2-1b", 44, 1), eight = state_of("llama3-8b", 0, 1), seventy = state_of("llama3-70b", 0, 1);

    lab_open("A2");
    lab_equal("3B parameters, gradients of 2 bytes [GB]", 48, gigabytes(three, 3e9), 1e-3);
    lab_equal("7B parameters [GB]", 112, gigabytes(eight, 7e9), 1e-3);
    lab_equal("70B parameters [TB]", 1.12, gigabytes(seventy, 70e9) / 1e3, 1e-3);
    lab_equal("70B parameters: H100 of 80 GB that hold them", 14, ceil(gigabytes(seventy, 70e9) / 80 - 1e-9), 0);
    lab_corrected("70B parameters on 14: room for activations and buffers on each [GB]", '>', 1, 0,
                  80 - gigabytes(seventy, 70e9) / 14, 1e-6, "why: 14 x 80 GB are 1.12 TB, the state alone");
    lab_corrected("Llama 3 70B as it is planned: bytes a parameter", '=', 16, 18, seventy.bytes / seventy.parameters, 1e-3,
                  "why: gradients are f32, which adds 2 bytes; and it has 70.55 billion parameters");
    a2_chosen(eight);
    batches((int)lab_size("batch"));
    return lab_close();
}
