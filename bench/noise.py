#!/usr/bin/env python3
"""noise.py - how much busy neighbors slow a training step: alone, and with programs that never wait.

    bench/noise.py [--lockstep build/lockstep] [--loops 1] [--rounds 3] [--python V/bin/python] [--dtype fp32]
                   [-- --section.key=value ...]

Each round runs every contender alone and then with the loops, one after the other. "keeps" is the ratio of the two speeds, the median over
the rounds and their range. P threads and L loops on P processors are P + L programs, so a fair share is P / (P + L). The default model is
GPT-2 124M with one sample of 256 tokens per step; with --python (an environment with torch) PyTorch trains it as well. Options after --
apply to lockstep only.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys

from peer import HERE, processor


@contextlib.contextmanager
def busy_loops(count):
    """That many programs which never wait, until the block ends."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for b in loops:
            b.kill()
            b.wait()


def options():
    p = argparse.ArgumentParser(description="a training step alone and beside busy loops")
    p.add_argument("--lockstep", default="build/lockstep", help="the command")
    p.add_argument("--python", help="a Python that has torch")
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--loops", type=int, default=1)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("rest", nargs="*", metavar="--section.key=value")
    return p.parse_args()


def contenders(o):
    model = o.rest or ["--model.preset=gpt2-124m", "--data.seq_len=256", "--train.global_batch=1", "--train.micro_batch=1"]
    all_of_them = {"lockstep": [o.lockstep, "bench", "train", "--json", f"--precision.compute={o.dtype}", f"--launch.threads={o.threads}",
                                *model]}
    if o.python and not o.rest:
        torch = [o.python, os.path.join(HERE, "pytorch_gpt2.py"), "--seq=256", "--batch=1", f"--dtype={o.dtype}", f"--threads={o.threads}"]
        all_of_them["PyTorch as installed"] = torch + ["--tune=none"]
        all_of_them["PyTorch, allocator and MKL tuned"] = torch + ["--tune=all"]
    return all_of_them


def speed(argv, loops):
    with busy_loops(loops):
        out = subprocess.run(argv, capture_output=True, text=True)
    lines = [s for s in out.stdout.splitlines() if s.startswith("{")]
    if out.returncode != 0 or not lines:
        sys.exit(f"noise.py: exit {out.returncode} from: {' '.join(argv)}\n{out.stderr}")
    return json.loads(lines[-1])["tokens_per_second"]


def main():
    o = options()
    fair = o.threads / (o.threads + o.loops)
    print(f"{o.loops} busy loops, {o.threads} threads, {o.dtype}, {o.rounds} rounds; {processor()}; a fair share is {fair:.2f}")
    figures = {}
    for _ in range(o.rounds):
        for who, argv in contenders(o).items():
            figures.setdefault(who, []).append((speed(argv, 0), speed(argv, o.loops)))
    print(f"{'':34s} {'alone':>9s} {'busy':>9s} {'keeps':>6s}   range")
    for who, pairs in figures.items():
        keeps = [beside / alone for alone, beside in pairs]
        print(f"{who:34s} {statistics.median(p[0] for p in pairs):9.1f} {statistics.median(p[1] for p in pairs):9.1f} "
              f"{statistics.median(keeps):6.2f}   {min(keeps):.2f} - {max(keeps):.2f}")


if __name__ == "__main__":
    main()
