/* R8 - before any parallelism: bf16, recomputation, accumulation. What each of them buys on one GPU of 80 GiB, by plans of a step of
 * GPT-2 1.5B with 1,024 tokens a sample: each alone, then all three.
 *
 * Corrected: bf16 halves the activations and the bytes that matmuls read, but not the state: with f32 masters, moments and gradients it is
 * 18 bytes per parameter against 16 in fp32. Recomputation is paid in FLOPs, accumulation in smaller matmuls, bf16 in digits. */
#include "lab.h"

static const char *const step_options = "--model.preset=gpt2-1.5b --data.seq_len=1024 --run.memory_limit=80GiB --train.global_batch=%d "
                                        "--precision.compute=%s --recompute.mode=%s --train.micro_batch=%d";

struct step_plan {
    double state, activations, total, model, executed, fits;
};

static struct step_plan step_plan_of(int batch, const char *type, const char *recompute, int micro_batch)
{
    char options[256];
    struct step_plan p;

    snprintf(options, sizeof options, step_options, batch, type, recompute, micro_batch);
    p.state = lab_plan("memory.parameters", "%s", options) + lab_plan("memory.gradients", "%s", options)
              + lab_plan("memory.optimizer", "%s", options);
    p.state /= lab_plan("parameters", "%s", options);
    p.activations = lab_plan("memory.activations", "%s", options);
    p.total = lab_plan("memory.total", "%s", options);
    p.model = lab_plan("model_flops_per_step", "%s", options);
    p.executed = lab_plan("executed_flops_per_step", "%s", options);
    p.fits = lab_plan("fits", "%s", options);
    lab_say("  %-5s %-10s %3d x %-3d %10.1f %10.1f %10.1f   %s\n", type, recompute, micro_batch, batch / micro_batch, p.activations / 1e9,
            p.total / 1e9, p.executed / 1e12, p.fits ? "fits" : "does not fit");
    return p;
}

LAB(r8_before_parallelism, "one GPU before many", { "batch", "samples of a step", 16, 4, 256 })
{
    int batch = (int)lab_size("batch");

    lab_say("GPT-2 1.5B, a step of %d samples\n  %-5s %-10s %-9s %10s %10s %10s\n  %-26s %10s %10s\n", batch, "type", "recompute",
            "batch", "activations", "all memory", "TFLOP", "", "[GB]", "[GB]");
    struct step_plan plain = step_plan_of(batch, "fp32", "none", batch);
    struct step_plan half = step_plan_of(batch, "bf16", "none", batch);
    struct step_plan selective = step_plan_of(batch, "fp32", "selective", batch);
    struct step_plan full = step_plan_of(batch, "fp32", "full", batch);
    struct step_plan small = step_plan_of(batch, "fp32", "none", 1);
    struct step_plan all = step_plan_of(batch, "bf16", "full", 1);
    lab_say("\n");
    lab_open("R8");
    lab_equal("bf16: activations / fp32's", 0.5, half.activations / plain.activations, 0.05);
    lab_corrected("bf16: state / fp32's", '=', 0.5, 18.0 / 16, half.state / plain.state, 1e-3,
                  "why: 2 weights + 4 gradients + 4 master + 8 Adam against 4 + 4 + 8 bytes per parameter");
    lab_below("full recomputation: activations / without", 0.2, full.activations / plain.activations);
    lab_below("full recomputation: executed FLOPs / without", 4.0 / 3, full.executed / plain.executed);
    lab_check_below("selective recomputation: activations / without", 0.75, selective.activations / plain.activations);
    lab_check("selective recomputation: executed FLOPs / without", 1, selective.executed / plain.executed, 0.01);
    lab_equal("micro-batches of 1: activations, without / with, per sample of the batch", 1, plain.activations / small.activations / batch,
              0.1);
    lab_equal("micro-batches of 1: executed FLOPs / without", 1, small.executed / plain.executed, 0);
    lab_check("micro-batches of 1: state / without", 1, small.state / plain.state, 0);
    lab_check_above("all three: activations, without / with", batch, plain.activations / all.activations);
    lab_check("all three: it fits into 80 GiB (1)", 1, all.fits, 0);
    lab_say("memory of all: %.1f GB, of which state %.1f\n", all.total / 1e9, all.state * 1557611200 / 1e9);
    return lab_close();
}
