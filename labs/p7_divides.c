/* P7 - a pipeline of P stages divides weights, gradients, optimizer state and activations by P.
 *
 * Corrected: it divides what belongs to layers, and not the activations of the first stage. Under 1F1B that stage has P micro-batches in
 * flight, each with 1/P of the layers: as much as one rank keeps of one micro-batch with the whole model. Stage i keeps (P-i)/P of that;
 * under GPipe every stage keeps M/P.
 *
 * `lockstep plan` says what each rank holds: a GPT-2 of width 512 and a small vocabulary, in stages of equally many layers. Between steps a
 * middle stage holds exactly 1/P of the layers' bytes. The last part divides 7 billion parameters. */
#include "lab.h"

static int P, L, M;

/* Bytes of a rank of the pipeline; stages 1: of the complete model on one rank. */
static double divides_plan(const char *key, const char *schedule, int stages, int rank)
{
    char pipeline[256] = "";
    int n = 0;

    if (stages > 1) n = snprintf(pipeline, sizeof pipeline, "--parallel.schedule=%s --parallel.stages=", schedule);
    for (int k = 0; k < stages && stages > 1; k++) n += snprintf(pipeline + n, sizeof pipeline - (size_t)n, k ? ",%d" : "%d", L / stages);
    return lab_plan(key,
                    "-n %d --rank %d --parallel.pp=%d %s --model.preset=gpt2-124m --model.width=512 --model.heads=8 --model.ffn=2048 "
                    "--model.layers=%d --model.vocab=256 --model.tied=false --data.seq_len=256 --train.micro_batch=1 --train.accumulate=%d "
                    "--precision.compute=bf16 --run.memory_limit=1000GB",
                    stages, rank, stages, pipeline, L, M);
}

static double divides_state(int stages, int rank)
{
    return divides_plan("memory.parameters", "1f1b", stages, rank) + divides_plan("memory.gradients", "1f1b", stages, rank) +
           divides_plan("memory.optimizer", "1f1b", stages, rank);
}

static double divides_kept(const char *schedule, int rank)
{
    return divides_plan("memory.activations", schedule, P, rank) / divides_plan("memory.activations", "1f1b", 1, 0);
}

static void divides_print(double layers)
{
    lab_say("%d layers over %d stages, %d micro-batches; MB\n%-12s %14s %14s %14s %14s\n", L, P, M, "", "weights", "all state",
            "kept, 1f1b", "kept, gpipe");
    lab_say("%-12s %14.2f %14.2f %14.2f\n", "one rank", divides_plan("memory.parameters", "1f1b", 1, 0) / 1e6, divides_state(1, 0) / 1e6,
            divides_plan("memory.activations", "1f1b", 1, 0) / 1e6);
    for (int r = 0; r < P; r++)
        lab_say("stage %-6d %14.2f %14.2f %14.2f %14.2f\n", r, divides_plan("memory.parameters", "1f1b", P, r) / 1e6,
                divides_state(P, r) / 1e6, divides_plan("memory.activations", "1f1b", P, r) / 1e6,
                divides_plan("memory.activations", "gpipe", P, r) / 1e6);
    lab_say("bytes of state per layer: %.0f\n\n", layers / L);
}

/* The bytes that layers have between steps: d x d weights 12 times, norms and biases, of 18 bytes each with f32 gradients (Z1). */
static double divides_layers(void) { return 18.0 * L * (12.0 * 512 * 512 + 13.0 * 512); }

/* Bytes of state with gradients of 2 bytes, of the ranks together, as if there were 7 billion parameters. */
static double seven_billion(int stages)
{
    static const char o[] = "-n %d --rank %d --parallel.pp=%d --model.preset=llama3-8b --model.vocab=32000 --data.seq_len=256 "
                            "--train.micro_batch=1 --train.accumulate=%d --precision.compute=bf16 --run.memory_limit=1000GB";
    double bytes = 0, n = lab_plan("parameters", o, stages, 0, stages, M);

    for (int r = 0; r < stages; r++)
        bytes += lab_plan("memory.parameters", o, stages, r, stages, M) + lab_plan("memory.gradients", o, stages, r, stages, M) / 2 +
                 lab_plan("memory.optimizer", o, stages, r, stages, M);
    return bytes * 7e9 / n;
}

static void divides_rows(double layers)
{
    int middle = P > 2 ? 1 : -1;
    double first = divides_kept("1f1b", 0);
    char what[80];

    /* The first stage has the embedding too: 256 tokens and 1024 positions; stages between the ends have nothing else. */
    double held = middle > 0 ? divides_state(P, middle) : divides_state(P, 0) - 18.0 * (256 + 1024) * 512;

    snprintf(what, sizeof what, "P = %d, L = %d: blocks of a stage", P, L);
    lab_equal(what, (double)L / P, held / (layers / L), 1e-9);
    lab_equal("       weights, gradients and optimizer state of a stage's layers / of all", 1.0 / P, held / layers, 1e-9);
    snprintf(what, sizeof what, "P = %d, M = %d, 1f1b: activations of the first stage / one rank's", P, M);
    lab_corrected(what, '=', 1.0 / P, 1, first, 0.15, "why: it has P micro-batches in flight, each with 1/P of the layers");
    lab_check("       first stage's less the last one's / one rank's: it has P-1 micro-batches more in flight", 1 - 1.0 / P,
              first - divides_kept("1f1b", P - 1), 0.15);
    snprintf(what, sizeof what, "P = %d, M = %d, gpipe: activations of the first stage / one rank's", P, M);
    lab_corrected(what, '=', 1.0 / P, (double)M / P, divides_kept("gpipe", 0), 0.15,
                  "why: it has all M micro-batches in flight, each with 1/P of the layers");
    snprintf(what, sizeof what, "7B, P = %d: state of a rank, mean, gradients of 2 bytes [GB]", P);
    lab_equal(what, 16.0 * 7 / P, seven_billion(P) / P / 1e9, 1e-3);
}

LAB(p7_divides, "what a pipeline divides", { "stages", "stages of the pipeline", 4, 2, 8 },
    { "layers", "layers of the model, a multiple of the stages", 32, 16, 128 },
    { "micro-batches", "micro-batches of a step, at least the stages", 16, 8, 128 })
{
    P = (int)lab_size("stages");
    L = (int)lab_size("layers");
    M = (int)lab_size("micro-batches");
    if (L % P || M < P) {
        fprintf(stderr, "lab p7_divides: %d layers and %d micro-batches do not suit %d stages\n", L, M, P);
        exit(1);
    }
    double layers = divides_layers();
    divides_print(layers);
    lab_open("P7");
    divides_rows(layers);
    return lab_close();
}
