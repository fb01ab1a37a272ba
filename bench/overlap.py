#!/usr/bin/env python3
"""overlap.py - how much communication overlaps with compute on a slow link, and how that depends on the bucket size.

    bench/overlap.py [--lockstep build/lockstep] [--rate 1gbit] [--delay 2ms] [--zero 0 2 3]
                     [--buckets 512KiB 2MiB 6MiB 25MiB 200MiB] [--shared 0 512] [--rounds 2] [-- --section.key=value ...]

Two ranks of one thread on two "machines" of one core each (netns.sh: network namespaces, a veth pair limited to RATE, Open MPI over
TCP; needs root). First table: each ZeRO stage without and with overlap, alternating; hidden = 1 - exposed(with) / exposed(without),
medians over the rounds. Second table: zero 0 by bucket size, with overlap. Backward takes about twice as long as sending the gradients at
1gbit; a slower link needs a larger --train.global_batch. With zero 1 and 2 the gathers of updated parameters overlap with the next
forward, so a timed step contains those of the previous step.
Third table: exchanges of routed rows (ep 2) of a model with experts by the inner width of its shared expert, without and with overlap:
seconds of a step that a rank waits for them (`axis.ep` of metrics.jsonl, on the rank that waited longest), medians over steps and rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = ["--model.preset=gpt2-124m", "--model.layers=8", "--model.width=512", "--model.heads=8", "--model.vocab=1024",
         "--data.seq_len=256", "--train.global_batch=32", "--train.micro_batch=-1", "--train.accumulate=1",
         "--precision.compute=fp32", "--launch.threads=1", "--bench.warmup=1"]
EXPERTS = ["--model.preset=qwen3-moe-tiny", "--model.layers=4", "--model.width=256", "--model.expert_ffn=256", "--model.experts=8",
           "--data.seq_len=128", "--train.global_batch=16", "--train.accumulate=1", "--train.eval_batches=0", "--run.measure_peak=off",
           "--precision.compute=fp32", "--launch.threads=1", "--parallel.ep=2"]
SKIPPED = 77


def options():
    p = argparse.ArgumentParser(description="overlap of communication and compute on a slow link")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--rate", default="1gbit", help="rate of each direction, in tc's syntax")
    p.add_argument("--delay", help="delay of each direction, in tc's syntax: 2ms")
    p.add_argument("--zero", type=int, nargs="*", default=[0, 2, 3])
    p.add_argument("--buckets", nargs="*", default=["512KiB", "2MiB", "6MiB", "25MiB", "200MiB"])
    p.add_argument("--shared", nargs="*", type=int, default=[0, 512], help="inner widths of the shared expert in the third table")
    p.add_argument("--bucket", default="6MiB", help="bucket size of the first table, zero 0 to 2")
    p.add_argument("--steps", type=int, default=3, help="timed steps of a run")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("more", nargs="*", help="options of lockstep, after --")
    return p.parse_args()


def run(o, zero, overlap, bucket):
    argv = [*link(o), o.lockstep, "bench", "train", "--json", "--run.device=cpu", *SHAPE, f"--bench.steps={o.steps}",
            f"--parallel.zero={zero}", f"--parallel.overlap={'true' if overlap else 'false'}", *o.more]
    out = subprocess.run(argv + ([f"--parallel.bucket={bucket}"] if zero < 3 else []), capture_output=True, text=True)
    if out.returncode:
        print(out.stdout + out.stderr, file=sys.stderr)
        sys.exit(SKIPPED if out.returncode == SKIPPED else 1)
    return json.loads(next(line for line in out.stdout.splitlines() if line.startswith("{")))


def link(o):
    return [os.path.join(HERE, "netns.sh"), "--rate", o.rate, *(["--delay", o.delay] if o.delay else []), "--pin", "--"]


def run_experts(o, shared, overlap):
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as f:
            f.write(" ".join(str(k * k % 9973) for k in range(30000)))
        argv = link(o) + [os.path.abspath(o.lockstep), "train", "-q", f"--data.text={text}", f"--run.dir={folder}/run",
                          f"--train.steps={o.steps + 1}", f"--model.shared_ffn={shared}",
                          f"--parallel.overlap={'true' if overlap else 'false'}", *EXPERTS, *o.more]
        out = subprocess.run(argv, capture_output=True, text=True)
        if out.returncode:
            print(out.stdout + out.stderr, file=sys.stderr)
            sys.exit(SKIPPED if out.returncode == SKIPPED else 1)
        with open(f"{folder}/run/metrics.jsonl") as f:
            steps = [json.loads(line) for line in f][1:]
    return [{"step": s["step_seconds"], "ep": s["axis"]["ep"]} for s in steps]


def middle(rows, key):
    return statistics.median(r[key] for r in rows)


def show_hidden(o):
    print(f"\n{'zero':>4} {'step s':>8} {'with':>8} {'exposed s':>10} {'with':>8} {'hidden':>7}")
    for zero in o.zero:
        rows = {False: [], True: []}
        for _ in range(o.rounds):
            for overlap in rows:
                rows[overlap].append(run(o, zero, overlap, o.bucket))
        without, with_ = (middle(rows[x], "exposed_seconds") for x in (False, True))
        print(f"{zero:>4} {middle(rows[False], 'step_seconds'):>8.3f} {middle(rows[True], 'step_seconds'):>8.3f} "
              f"{without:>10.3f} {with_:>8.3f} {1 - with_ / without:>7.1%}", flush=True)


def show_buckets(o):
    rows = {b: [] for b in o.buckets}
    for _ in range(o.rounds):
        for b in rows:
            rows[b].append(run(o, 0, True, b))
    print(f"\n{'bucket':>8} {'step s':>8} {'exposed s':>10}")
    for b, found in rows.items():
        print(f"{b:>8} {middle(found, 'step_seconds'):>8.3f} {middle(found, 'exposed_seconds'):>10.3f}", flush=True)


def show_experts(o):
    print(f"\n{'shared':>8} {'step s':>8} {'with':>8} {'exposed s':>10} {'with':>8} {'hidden':>7}")
    for shared in o.shared:
        rows = {False: [], True: []}
        for _ in range(o.rounds):
            for overlap in rows:
                rows[overlap] += run_experts(o, shared, overlap)
        without, with_ = (middle(rows[x], "ep") for x in (False, True))
        print(f"{shared:>8} {middle(rows[False], 'step'):>8.3f} {middle(rows[True], 'step'):>8.3f} {without:>10.3f} {with_:>8.3f} "
              f"{1 - with_ / without:>7.1%}", flush=True)


def main():
    o = options()
    print(f"# 2 ranks of 1 thread, Open MPI over {o.rate}{', ' + o.delay if o.delay else ''}; buckets of {o.bucket} in the first table; "
          f"{o.rounds} rounds of {o.steps} steps, "
          f"load {os.getloadavg()[0]:.1f}")
    if o.zero:
        show_hidden(o)
    if o.buckets:
        show_buckets(o)
    if o.shared:
        show_experts(o)


if __name__ == "__main__":
    main()
