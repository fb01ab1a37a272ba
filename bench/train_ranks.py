#!/usr/bin/env python3
"""train_ranks.py - N ranks of one thread compared with one rank of N threads, in alternating runs.

    bench/train_ranks.py [--lockstep build/lockstep] [--ranks 2] [--zero 0 1 2 3] [--compute fp32 bf16] [--rounds 3]
                         [-- --section.key=value ...]

The same model and the same global batch. Each round runs the single rank first and again after each layout, so that a slow phase of
the machine affects both. A ratio is tokens/s of the layout over the mean of the single rank before and after it; the table has
the median over the rounds. "exposed" is the time per step that a rank waits for communication, "wire" the bytes that a rank sends per
step by the formula: N parameters of 4 bytes (gathers of bf16 weights: 2), all-reduce 2(n-1)/n, others (n-1)/n of them.
"""
import argparse
import json
import os
import statistics
import subprocess

SHAPE = ["--model.preset=gpt2-124m", "--model.layers=6", "--data.seq_len=512", "--train.global_batch=8", "--train.accumulate=1",
         "--train.micro_batch=-1", "--bench.warmup=1"]
WANTED = {0: 0.95, 1: 0.95, 2: 0.95, 3: 0.90}


def options():
    p = argparse.ArgumentParser(description="N ranks of one thread compared with one rank of N threads")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--zero", type=int, nargs="+", choices=WANTED, default=list(WANTED))
    p.add_argument("--compute", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    p.add_argument("--steps", type=int, default=4, help="timed steps of a run")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("more", nargs="*", help="options of lockstep, after --")
    return p.parse_args()


def run(o, ranks, compute, extra):
    argv = [o.lockstep, "bench", "train", "--json", "--run.device=cpu", *SHAPE, f"--precision.compute={compute}",
            f"--bench.steps={o.steps}", f"--launch.threads={o.ranks // ranks}", *extra, *o.more]
    out = subprocess.run(argv + (["-n", str(ranks)] if ranks > 1 else []), check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def wire_bytes(o, zero, compute, parameters):
    share, weight = (o.ranks - 1) / o.ranks, 2 if compute == "bf16" else 4
    gathers = {0: 0, 1: weight, 2: weight, 3: 2 * weight}[zero]
    return parameters * share * ((8 if zero == 0 else 4) + gathers)


def measure(o, compute):
    found = {z: [] for z in o.zero}
    for _ in range(o.rounds):
        before = run(o, 1, compute, [])
        for z in o.zero:
            ours = run(o, o.ranks, compute, [f"--parallel.zero={z}"])
            after = run(o, 1, compute, [])
            alone = (before["tokens_per_second"] + after["tokens_per_second"]) / 2
            found[z].append((ours["tokens_per_second"] / alone, ours, alone))
            before = after
    return found


def table(o, compute, found):
    print(f"\n{compute}: {'layout':>16} {'tokens/s':>9} {'one rank':>9} {'ratio':>6} {'lowest':>7} {'target':>7} "
          f"{'step s':>7} {'exposed s':>9} {'wire MB':>8}")
    for z, rows in found.items():
        middle = lambda pick: statistics.median(pick(r) for r in rows)
        print(f"{'':>{len(compute)}}  {f'{o.ranks} ranks zero {z}':>16} {middle(lambda r: r[1]['tokens_per_second']):>9.0f} "
              f"{middle(lambda r: r[2]):>9.0f} {middle(lambda r: r[0]):>6.3f} {min(r[0] for r in rows):>7.3f} {WANTED[z]:>7.2f} "
              f"{middle(lambda r: r[1]['step_seconds']):>7.3f} {middle(lambda r: r[1]['exposed_seconds']):>9.3f} "
              f"{wire_bytes(o, z, compute, rows[0][1]['parameters']) / 1e6:>8.0f}", flush=True)


def main():
    o = options()
    print(f"# {o.ranks} ranks of 1 thread beside 1 rank of {o.ranks}, "
          f"{o.rounds} rounds of {o.steps} steps, load {os.getloadavg()[0]:.1f}")
    for compute in o.compute:
        table(o, compute, measure(o, compute))


if __name__ == "__main__":
    main()
