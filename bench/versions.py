#!/usr/bin/env python3
"""versions.py - two builds of lockstep compared in alternating runs: steps, collectives, matmuls, generation, checkpoints.

    bench/versions.py --before OLD/build/lockstep --after build/lockstep [--parts train ranks comm gemm run] [--rounds 3] [--seconds 4]

For a change that must not make anything slower. Two cores. Each round runs every case with both builds, in turns of order, so that a slow
phase of the machine affects both. "speed" is after / before: the median over the rounds of the ratio within a round, and its range; above 1
the later build is faster. "memory" is the ratio of the peaks that the ledgers of both report. Cases whose options a build does not know
are left out, with its message.

train  training steps of one rank with two threads, tokens/s
ranks  training steps of two and four ranks in all kinds of layouts, tokens/s
comm   collectives of two ranks, out of place and in place, calls/s
gemm   matmuls with lockstep's own kernels, FLOP/s
run    seconds of complete commands: a run of a few steps that saves, the same continued, a text generated from it, an export
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from peer import processor

GPT2 = ["--model.preset=gpt2-124m", "--data.seq_len=256", "--train.micro_batch=4", "--train.accumulate=1"]
DEMO = ["--model.preset=llama-demo", "--data.seq_len=256", "--train.micro_batch=4", "--train.accumulate=1"]
EXPERTS = ["--model.preset=mixtral-tiny", "--model.width=256", "--model.layers=4", "--data.seq_len=128", "--train.micro_batch=8",
           "--train.accumulate=1"]
TRAIN = {
    "GPT-2 124M, fp32": GPT2 + ["--precision.compute=fp32"],
    "GPT-2 124M, bf16": GPT2 + ["--precision.compute=bf16"],
    "GPT-2 124M, fp32, selective recomputation": GPT2 + ["--precision.compute=fp32", "--recompute.mode=selective"],
    "llama-demo, fp32": DEMO + ["--precision.compute=fp32"],
    "llama-demo, bf16": DEMO + ["--precision.compute=bf16"],
    "Mixtral of width 256, fp32": EXPERTS + ["--precision.compute=fp32"],
}
RANKS = {
    "zero=0": (2, DEMO + ["--parallel.zero=0"]),
    "zero=1": (2, DEMO + ["--parallel.zero=1"]),
    "zero=2": (2, DEMO + ["--parallel.zero=2"]),
    "zero=3": (2, DEMO + ["--parallel.zero=3"]),
    "tp=2": (2, DEMO + ["--parallel.tp=2"]),
    "tp=2 sp": (2, DEMO + ["--parallel.tp=2", "--parallel.sp=true"]),
    "cp=2": (2, DEMO + ["--parallel.cp=2"]),
    "pp=2": (2, DEMO + ["--parallel.pp=2", "--train.micro_batch=1", "--train.accumulate=8"]),
    "pp=2 zb-h1": (2, DEMO + ["--parallel.pp=2", "--parallel.schedule=zb-h1", "--train.micro_batch=1", "--train.accumulate=8"]),
    "ep=2": (2, EXPERTS + ["--parallel.ep=2"]),
    "pp=2 tp=2": (4, DEMO + ["--parallel.pp=2", "--parallel.tp=2", "--train.micro_batch=1", "--train.accumulate=4"]),
}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
SIZES = ("1KiB", "64KiB", "1MiB", "16MiB")
MATMULS = ((1024, 1024, 1024), (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072))


def options():
    p = argparse.ArgumentParser(description="two builds of lockstep in alternating runs")
    p.add_argument("--before", required=True, help="the earlier build's command")
    p.add_argument("--after", default="build/lockstep", help="the later build's command")
    p.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=4, help="timed seconds of a training case, about")
    return p.parse_args()


def run(argv, parse=True):
    out = subprocess.run([str(a) for a in argv], capture_output=True, text=True)
    if out.returncode:
        raise RuntimeError(" ".join((out.stderr.strip() or out.stdout.strip()).split("\n")[:1]))
    return json.loads(out.stdout) if parse else None


def steps_of(o, case):
    """Steps that take the earlier build about o.seconds."""
    if case not in steps_of.known:
        found = run([o.before, "bench", "train", "--json", *case, "--bench.warmup=1", "--bench.steps=1"])
        steps_of.known[case] = max(2, min(200, round(o.seconds / found["step_seconds"])))
    return steps_of.known[case]


steps_of.known = {}


def train(o, command, case):
    found = run([command, "bench", "train", "--json", *case, "--bench.warmup=1", f"--bench.steps={steps_of(o, case)}"])
    return {"": (found["tokens_per_second"], found["memory"]["peak"])}


def collective(o, command, case):
    op, size = case
    found = run([command, "bench", "comm", "--json", "-n", 2, "--op", op, "--min", size, "--max", size, "--iterations",
                 {"1KiB": 20000, "64KiB": 4000, "1MiB": 600, "16MiB": 40}[size]])[0]
    return {form: (1 / found[form.replace(" ", "_")]["seconds"], None)
            for form in ("out of place", "in place") if (found.get(form.replace(" ", "_")) or {}).get("seconds")}


def matmul(o, command, case):
    m, n, k = case
    found = run([command, "bench", "gemm", "--json", "--m", m, "--n", n, "--k", k])
    return {f["type"]: (f["gflops"], None) for f in found if f["kernel"] == "tiles"}


def commands(o, command, case):
    """A run of 8 steps with one rank, another that continues it with two, generation, export; a folder for each."""
    folder = tempfile.mkdtemp(prefix="versions-")
    try:
        text, where = os.path.join(folder, "text.txt"), os.path.join(folder, "run")
        with open(text, "w", encoding="ascii") as f:
            f.write("".join(f"{i} and {i * i % 97} make {i + i * i % 97}.\n" for i in range(20000)))
        shape = ["--data.seq_len=128", f"--data.text={text}", f"--run.dir={where}", "--train.global_batch=8", "--optim.lr=1e-3"]
        found = {}
        for name, argv in (("train 8 steps and save", ["train", *shape, "--train.steps=8"]),
                           ("continue to step 16", ["train", *shape, "--train.steps=16", "-n", "2"]),
                           ("generate 64 tokens", ["generate", where, "--prompt", "12 and", "--tokens", "64"]),
                           ("export", ["ckpt", "export", where, "--to", os.path.join(folder, "hf")])):
            began = time.perf_counter()
            run([command, *argv], parse=False)
            found[name] = (1 / (time.perf_counter() - began), None)
        return found
    finally:
        shutil.rmtree(folder)


PARTS = {
    "train": (train, {name: tuple(case) for name, case in TRAIN.items()}),
    "ranks": (train, {f"{'Mixtral of width 256' if name == 'ep=2' else 'llama-demo'}, {n} ranks, {name}":
                      tuple(case) + ("--precision.compute=fp32", "--launch.threads=1", "-n", n) for name, (n, case) in RANKS.items()}),
    "comm": (collective, {f"{op} {size}": (op, size) for op in COLLECTIVES for size in SIZES}),
    "gemm": (matmul, {f"matmul {m} x {n} x {k}": (m, n, k) for m, n, k in MATMULS}),
    "run": (commands, {"command": ()}),
}


def measure(o, part):
    """Rows: name, ratios of speeds by round, ratio of memory or None."""
    fn, cases = PARTS[part]
    ratios, memory = {}, {}
    for turn in range(o.rounds):
        for name, case in cases.items():
            order = ("before", "after") if turn % 2 == 0 else ("after", "before")
            try:
                found = {which: fn(o, getattr(o, which), case) for which in order}
            except RuntimeError as e:
                if turn == 0:
                    print(f"{name}: left out: {e}", file=sys.stderr)
                continue
            for form in found["before"].keys() & found["after"].keys():
                key = f"{name}, {form}" if form else name
                (speed_before, memory_before), (speed_after, memory_after) = found["before"][form], found["after"][form]
                ratios.setdefault(key, []).append(speed_after / speed_before)
                if memory_before and memory_after:
                    memory[key] = memory_after / memory_before
    return [(key, r, memory.get(key)) for key, r in ratios.items()]


def main():
    o = options()
    print(f"{processor()}; {o.rounds} rounds; speed and memory are after / before")
    print("\n| case | speed (range) | memory |\n|---|---|---|")
    everything = []
    for part in o.parts:
        for key, r, m in measure(o, part):
            everything.append(statistics.median(r))
            print(f"| {key} | {statistics.median(r):.2f} ({min(r):.2f}-{max(r):.2f}) | {'' if m is None else f'{m:.2f}'} |", flush=True)
    if everything:
        print(f"\nmedian of all cases: {statistics.median(everything):.2f}; least: {min(everything):.2f}")
    return 0 if everything else 1


if __name__ == "__main__":
    sys.exit(main())
