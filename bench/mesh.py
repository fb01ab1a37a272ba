#!/usr/bin/env python3
"""mesh.py - performance of a mesh of ranks: tensor parallelism compared with threads, pipelines compared with their bound, memory
of long sequences, overhead.

    bench/mesh.py [--lockstep build/lockstep] [--parts tp pp cp overhead] [--compute fp32 bf16] [--rounds 1] [--steps 2]
                  [-- --section.key=value ...]

Two cores, ranks of one thread each. All four parts take 6 minutes on an idle machine. Reference runs alternate with the runs that are
compared with them, so that a slow phase affects both. A ratio is tokens/s over the mean of the references before and after it; the table
has medians over the rounds.

tp        GPT-2 124M, T=1024, B=2: two ranks compared with one rank of two threads. "split n": parallel.tp_chunks=n.
pp        2 stages, 8 micro-batches, GPT-2 of 7 layers whose output projection costs as much as a layer. The bound of a schedule is twice
          the speed of one rank of one thread with the same micro-batches, less the idle share of equal stages: M/(M+P-1) = 8/9 of it for
          1f1b and gpipe, vM/(vM+P-1) for interleaved; for zb-h1, forward, input gradients and weight gradients count as equally long.
          "idle": measured share of ranks x time without work; "simulated": the same in the simulated schedule, with the measured mean time
          of each stage's actions and messages that take no time.
cp        memory per rank by the ledger for one sequence of 8192 tokens over 1, 2, 4 ranks. "x ranks": memory x ranks over the memory
          of one rank; 1 means that memory falls as 1/cp. Four ranks share the two cores.
overhead  share of a step that is neither kernels nor communication: walking the program, bookkeeping, losses, zeroing gradients.
"""
import argparse
import json
import os
import statistics
import subprocess

GPT2 = ["--model.preset=gpt2-124m", "--data.seq_len=1024", "--train.micro_batch=2", "--train.accumulate=1"]
STAGED = ["--model.preset=gpt2-124m", "--model.layers=7", "--model.vocab=9216", "--data.seq_len=512", "--train.micro_batch=1",
          "--train.accumulate=8"]
LONG = ["--model.preset=llama-demo", "--model.layers=4", "--model.max_positions=8192", "--data.seq_len=8192", "--train.micro_batch=1",
        "--train.accumulate=1"]
SMALL = ["--model.preset=llama-demo", "--data.seq_len=256", "--train.micro_batch=4", "--train.accumulate=1"]
TENSOR = {"tp=2": [], "tp=2 split 2": ["--parallel.tp_chunks=2"], "tp=2 sp": ["--parallel.sp=true"]}
STAGES = {"1f1b": [], "gpipe": [], "interleaved": ["--parallel.vpp=2"], "zb-h1": []}
LEAST_TENSOR, LEAST_1F1B, MOST_MEMORY, MOST_OVERHEAD = 0.85, 0.9, 1.1, "2%"


def options():
    p = argparse.ArgumentParser(description="what a mesh of ranks reaches")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--parts", nargs="+", choices=("tp", "pp", "cp", "overhead"), default=["tp", "pp", "cp", "overhead"])
    p.add_argument("--compute", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"], help="for tp; the others use the first")
    p.add_argument("--steps", type=int, default=2, help="timed steps of a run")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("more", nargs="*", help="options of lockstep, after --")
    return p.parse_args()


def run(o, shape, compute, ranks=1, threads=1, extra=()):
    argv = [o.lockstep, "bench", "train", "--json", "--run.device=cpu", *shape, f"--precision.compute={compute}",
            f"--bench.steps={o.steps}", "--bench.warmup=1",
            f"--launch.threads={threads}", *extra, *o.more]
    out = subprocess.run(argv + (["-n", str(ranks)] if ranks > 1 else []), check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def rate(*rows):
    return sum(r["tokens_per_second"] for r in rows) / len(rows)


def middle(rows, pick):
    return statistics.median(pick(r) for r in rows)


# ---- tensor parallelism ----

def measure_tensor(o, compute):
    found = {name: [] for name in TENSOR}
    for _ in range(o.rounds):
        before = run(o, GPT2, compute, threads=2)
        for name, extra in TENSOR.items():
            ours = run(o, GPT2, compute, ranks=2, extra=["--parallel.tp=2", *extra])
            after = run(o, GPT2, compute, threads=2)
            found[name].append((ours, rate(before, after), after))
            before = after
    return found


def show_tensor(o):
    for compute in o.compute:
        print(f"\ntp {compute:<12} {'tokens/s':>8} {'2 threads':>9} {'ratio':>6} {'lowest':>6} {'target':>6} "
              f"{'step s':>7} {'exposed s':>9} "
              f"{'memory MiB':>10} {'2 threads':>9}")
        for name, rows in measure_tensor(o, compute).items():
            ratio = lambda r: rate(r[0]) / r[1]
            print(f"{name:<15} {middle(rows, lambda r: rate(r[0])):>8.0f} {middle(rows, lambda r: r[1]):>9.0f} {middle(rows, ratio):>6.3f} "
                  f"{min(map(ratio, rows)):>6.3f} {LEAST_TENSOR:>6.2f} {middle(rows, lambda r: r[0]['step_seconds']):>7.3f} "
                  f"{middle(rows, lambda r: r[0]['exposed_seconds']):>9.3f} {rows[0][0]['memory']['peak'] / 2**20:>10.0f} "
                  f"{rows[0][2]['memory']['peak'] / 2**20:>9.0f}", flush=True)


# ---- pipelines ----

def measure_stages(o, compute):
    found = {name: [] for name in STAGES}
    for _ in range(o.rounds):
        threads = [run(o, STAGED, compute)]
        ours = {name: run(o, STAGED, compute, ranks=2, extra=["--parallel.pp=2", f"--parallel.schedule={name}", *extra])
                for name, extra in STAGES.items()}
        threads += [run(o, STAGED, compute, threads=2), run(o, STAGED, compute)]
        for name, row in ours.items():
            found[name].append((row, rate(threads[0], threads[2]), rate(threads[1])))
    return found


def show_stages(o):
    print(f"\npp {o.compute[0]:<9} {'layers':>8} {'tokens/s':>8} {'1 thread':>8} {'bound':>18} {'of it':>6} {'target':>6} "
          f"{'2 threads':>9} {'of them':>7} {'idle':>6} {'simulated':>6} {'equal':>6}")
    for name, rows in measure_stages(o, o.compute[0]).items():
        first = rows[0][0]
        share = 1 - first["bubble_equal"]
        alone = middle(rows, lambda r: r[1])
        print(f"{name:<12} {','.join(map(str, first['stages'])):>8} {middle(rows, lambda r: rate(r[0])):>8.0f} {alone:>8.0f} "
              f"{f'2 x {share:.3f} = {2 * share * alone:.0f}':>18} {middle(rows, lambda r: rate(r[0]) / (2 * share * r[1])):>6.3f} "
              f"{LEAST_1F1B if name == '1f1b' else '':>6} {middle(rows, lambda r: r[2]):>9.0f} "
              f"{middle(rows, lambda r: rate(r[0]) / r[2]):>7.3f} "
              f"{middle(rows, lambda r: r[0]['bubble']):>6.1%} {middle(rows, lambda r: r[0]['bubble_played']):>6.1%} "
              f"{first['bubble_equal']:>6.1%}",
              flush=True)


# ---- context parallelism ----

def show_context(o):
    held = lambda r: r["memory"]["activations"] + r["memory"]["communication"]
    print(f"\ncp {o.compute[0]:<15} {'activations MiB':>15} {'in exchange':>11} {'x ranks':>8} {'target':>6} {'tokens/s':>8}")
    alone = run(o, LONG, o.compute[0], extra=["--bench.steps=1"])
    rows = {"1": (1, alone)}
    for cp in (2, 4):
        for context in ("ring", "all_to_all"):
            rows[f"{cp} {context}"] = (cp, run(o, LONG, o.compute[0], ranks=cp, extra=["--bench.steps=1", f"--parallel.cp={cp}",
                                                                                f"--parallel.cp_method={context}"]))
    for name, (cp, r) in rows.items():
        print(f"{name:<18} {r['memory']['activations'] / 2**20:>15.1f} {r['memory']['communication'] / 2**20:>11.1f} "
              f"{cp * held(r) / held(alone):>8.3f} {MOST_MEMORY if 'ring' in name else '':>6} {rate(r):>8.0f}", flush=True)


# ---- overhead ----

def show_overhead(o):
    shapes = {"gpt2-124m": (GPT2, 1, []), "gpt2-124m tp=2": (GPT2, 2, ["--parallel.tp=2"]), "llama-demo": (SMALL, 1, []),
              "llama-demo tp=2": (SMALL, 2, ["--parallel.tp=2"])}
    print(f"\noverhead {o.compute[0]:<9} {'step s':>8} {'share':>7} {'target':>7}")
    for name, (shape, ranks, extra) in shapes.items():
        r = run(o, shape, o.compute[0], ranks, 2 // ranks, extra)
        print(f"{name:<18} {r['step_seconds']:>8.4f} {r['overhead']:>7.2%} {MOST_OVERHEAD if shape is GPT2 else '':>7}", flush=True)


def main():
    o = options()
    print(f"# ranks of 1 thread on 2 cores, {o.rounds} rounds of {o.steps} steps, load {os.getloadavg()[0]:.1f}")
    show = {"tp": show_tensor, "pp": show_stages, "cp": show_context, "overhead": show_overhead}
    for part in o.parts:
        show[part](o)


if __name__ == "__main__":
    main()
