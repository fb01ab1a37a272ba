/* F6 - restart on another topology: a checkpoint that is saved under one layout is loaded under any other, because it holds shards of
 * global tensors. `lockstep parity --checkpoint` compares every loaded parameter and moment with the saved one, bit by bit, and then the
 * steps that follow.
 *
 * Every ordered pair of a few layouts: one rank, data parallel with ZeRO-3, tensor, pipeline and context parallel. The global batch stays
 * the same, and so do the samples of a step. Then a pair of layouts with the moments left out, a fault that must be found. */
#include "lab_command.h"

enum { LAYOUTS_MOST = 5 };

static const char *const resume_options =
    "--model.preset=gpt2-tiny --data.seq_len=20 --train.global_batch=8 --launch.threads=1 --precision.compute=fp32 --train.accumulate=2";

struct resumed {
    int code, equal;
    double tensors, states, same_bits;
};

/* A layout's options are separated by + here: they are one word for parity. */
static struct resumed resume(const char *folder, const char *a, const char *b)
{
    struct resumed r;
    struct command_run c = command_start(folder, "parity --checkpoint --json --a %s --b %s %s", a, b, resume_options);

    r.code = command_wait(&c);
    const char *json = command_said(&c, "out.txt");
    r.equal = lab_json(json, "equal") == 1;
    r.tensors = lab_json(json, "tensors");
    r.states = lab_json(json, "states");
    r.same_bits = lab_json(json, "same_bits");
    if (!r.equal) lab_say("    %s", command_said(&c, "err.txt"));
    return r;
}

LAB(f6_reshard, "a checkpoint under other layouts", { "ranks", "ranks of the data-parallel layouts", 3, 2, 4 })
{
    char layout[LAYOUTS_MOST][80], folder[COMMAND_PATH], faulty[120];
    int n = (int)lab_size("ranks"), pairs = 0, equal = 0, complete = 0;
    struct resumed r = { 0 };

    snprintf(layout[0], 80, "parallel.dp=1");
    snprintf(layout[1], 80, "parallel.dp=%d+parallel.zero=3", n);
    snprintf(layout[2], 80, "parallel.tp=2+parallel.sp=true");
    snprintf(layout[3], 80, "parallel.pp=2+parallel.dp=2+parallel.zero=1");
    snprintf(layout[4], 80, "parallel.cp=2");
    folder_new(folder);
    for (int a = 0; a < LAYOUTS_MOST; a++)
        for (int b = 0; b < LAYOUTS_MOST; b++) {
            if (a == b) continue;
            r = resume(folder, layout[a], layout[b]);
            pairs++;
            equal += r.code == 0 && r.equal;
            complete += r.states == 3 * r.tensors;
            lab_say("%-46s -> %-46s %s\n", layout[a], layout[b], r.equal ? "equal" : "differs");
        }
    snprintf(faulty, sizeof faulty, "%s+debug.fault=moments", layout[1]);
    struct resumed bad = resume(folder, layout[0], faulty);
    folder_remove(folder);
    lab_say("\n");
    lab_open("F6");
    lab_check("ordered pairs of layouts", LAYOUTS_MOST * (LAYOUTS_MOST - 1), pairs, 0);
    lab_equal("pairs that continue with the saved bits and equal steps", pairs, equal, 0);
    lab_equal("pairs of which not every weight and both moments were compared", 0, pairs - complete, 0);
    lab_check("tensors of the model", 36, r.tensors, 0);
    lab_check("states compared for each tensor: the weight and two moments", 3, r.states / r.tensors, 0);
    lab_check("a load that forgets the moments is found: exit code", 1, bad.code, 0);
    return lab_close();
}
