#!/usr/bin/env python3
"""peer.py - GPT-2 training steps of lockstep and PyTorch on this CPU, in alternating runs.

    bench/peer.py --python V/bin/python [--lockstep build/lockstep] [--dtype fp32 bf16] [--rounds 2]
                  [--contenders lockstep selective full none malloc all compile]

V is an environment with torch (see pytorch_gpt2.py); this script itself needs only Python. Each round
runs every contender once, one after the other (A B A B), so that a slow phase of the machine affects
both; a round's number is the median step of its process, the table shows the median over the rounds
and the range. Model, batch, length, dtype and threads are equal. Peak memory is the process's largest
resident size as the kernel counted it (ru_maxrss from wait4, children included), for both alike.

Contenders: lockstep; lockstep with recomputation (selective, full); PyTorch as installed (none), with freed memory kept in the process
(malloc), in addition with MKL forced to use AVX-512 (all), and in addition with torch.compile (compile). pytorch_gpt2.py describes the
settings; the last two preload a library, which no manual recommends.
MFU is relative to the fastest matmul that each side measured in the same process.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {"lockstep": "lockstep", "selective": "lockstep, selective", "full": "lockstep, full recompute",
         "none": "PyTorch as installed", "malloc": "PyTorch, memory kept",
         "all": "PyTorch, and MKL tuned", "compile": "PyTorch, and compiled"}

OURS = {"lockstep": "none", "selective": "selective", "full": "full"}  # recompute.mode


def options():
    p = argparse.ArgumentParser(description="lockstep compared with PyTorch, in alternating runs")
    p.add_argument("--lockstep", default="build/lockstep", help="the command")
    p.add_argument("--python", default=sys.executable, help="a Python that has torch")
    p.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    p.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    p.add_argument("--preset", default="gpt2-124m")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--json", help="append every run's object to this file")
    return p.parse_args()


def command(o, who, dtype):
    if who in OURS:
        return [o.lockstep, "bench", "train", f"--model.preset={o.preset}", f"--data.seq_len={o.seq}",
                f"--train.micro_batch={o.batch}", f"--precision.compute={dtype}",
                f"--launch.threads={o.threads}", f"--recompute.mode={OURS[who]}", "--run.measure_peak=again", "--json"]
    line = [o.python, os.path.join(HERE, "pytorch_gpt2.py"), f"--preset={o.preset}", f"--seq={o.seq}",
            f"--batch={o.batch}", f"--dtype={dtype}", f"--threads={o.threads}"]
    return line + (["--tune=all", "--compile"] if who == "compile" else [f"--tune={who}"])


def run(argv):
    """The object that the command printed last, with peak_rss_bytes as the kernel counted it."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"peer.py: exit {child.returncode} from: {' '.join(argv)}")
    lines = [s for s in text.splitlines() if s.startswith("{")]
    if not lines:
        sys.exit(f"peer.py: no JSON object from: {' '.join(argv)}")
    result = json.loads(lines[-1])
    result["peak_rss_bytes"] = usage.ru_maxrss * 1024
    return result


def processor():
    with open("/proc/cpuinfo") as f:
        names = [s.split(":", 1)[1].strip() for s in f if s.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors"


def table(o, runs):
    """Rows per dtype; the ratios say how lockstep compares with that row."""
    print(f"{o.preset}, B={o.batch}, T={o.seq}, {o.threads} threads, {o.rounds} rounds; {processor()}")
    print(f"{'dtype':5s} {'':24s} {'tokens/s':>9s} {'range':>15s} {'MFU':>6s} {'GEMM peak':>11s} "
          f"{'peak memory':>12s} {'lockstep x':>10s} {'memory x':>8s}")
    for dtype in o.dtype:
        ours = runs.get((dtype, "lockstep"))
        for who in o.contenders:
            rs = runs[dtype, who]
            rate, memory = middle(rs, "tokens_per_second"), middle(rs, "peak_rss_bytes")
            low, high = (f(r["tokens_per_second"] for r in rs) for f in (min, max))
            line = (f"{dtype:5s} {NAMES[who]:24s} {rate:9.1f} {f'{low:.1f}-{high:.1f}':>15s} "
                    f"{100 * middle(rs, 'mfu'):5.1f}% {middle(rs, 'gemm_peak_flops') / 1e9:6.0f} GF/s "
                    f"{memory / 2 ** 30:8.2f} GiB")
            if ours and who not in OURS:
                line += (f" {middle(ours, 'tokens_per_second') / rate:10.2f}"
                         f" {middle(ours, 'peak_rss_bytes') / memory:8.2f}")
            print(line)


def middle(runs, key):
    return statistics.median(r[key] for r in runs)


def main():
    o = options()
    runs = {}
    if "lockstep" in o.contenders:
        print(subprocess.run([o.lockstep, "--version"], check=True, capture_output=True,
                             text=True).stdout.splitlines()[0])
    for _ in range(o.rounds):
        for dtype in o.dtype:
            for who in o.contenders:
                result = run(command(o, who, dtype))
                print(f"  {dtype} {NAMES[who]}: {result['tokens_per_second']:.1f} tokens/s", file=sys.stderr)
                runs.setdefault((dtype, who), []).append(result)
                if o.json:
                    with open(o.json, "a") as f:
                        f.write(json.dumps({"contender": who, **result}) + "\n")
    for who in o.contenders:
        if who not in OURS:
            print("PyTorch", runs[o.dtype[0], who][0]["version"])
            break
    table(o, runs)


if __name__ == "__main__":
    main()
