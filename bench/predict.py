#!/usr/bin/env python3
"""predict.py [--lockstep build/lockstep] [--ranks 1 2] [--models gpt2 llama mixtral]

Planned steps of this machine compared with the same steps run on it: `lockstep bench machine` for each model and number of
ranks, then `lockstep bench train --predict` for every layout. Ranks of one thread each; fp32. Prints seconds, errors, whether bytes are
equal, and the median and the largest error of each model. 1 and 2 ranks of all models take 5 minutes on 2 cores.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "gpt2": "--model.preset=gpt2-124m --model.layers=4 --model.vocab=8192 --data.seq_len=256 --train.micro_batch=1",
    "llama": "--model.preset=llama-demo --data.seq_len=256 --train.micro_batch=2",
    "mixtral": "--model.preset=mixtral-tiny --model.width=256 --model.heads=4 --model.kv_heads=2 --model.head_size=64 "
               "--model.expert_ffn=512 --model.experts=8 --model.layers=4 --model.max_positions=256 --data.seq_len=256 "
               "--train.micro_batch=2",
}
ALL = ["", "--parallel.zero=1", "--parallel.zero=2", "--parallel.zero=3", "--parallel.tp={n}", "--parallel.tp={n} --parallel.sp",
       "--parallel.pp={n} --train.accumulate=4", "--parallel.pp={n} --train.accumulate=4 --parallel.schedule=gpipe",
       "--parallel.pp={n} --train.accumulate=4 --parallel.vpp=2", "--parallel.pp={n} --train.accumulate=4 --parallel.schedule=zb-h1",
       "--parallel.pp={n} --train.accumulate=4 --parallel.schedule=zb-v"]
DENSE = ["--parallel.cp={n}", "--parallel.cp={n} --parallel.cp_method=all_to_all"]
EXPERTS = ["--parallel.ep={n}", "--parallel.ep={n} --parallel.zero=1"]
ONE = ["", "--train.accumulate=4", "--recompute.mode=full", "--recompute.mode=selective"]
COMMON = ["--launch.threads=1", "--bench.warmup=1", "--bench.steps=3", "--precision.compute=fp32"]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"predict.py: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    p.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    a = p.parse_args()
    every = []
    for ranks in a.ranks:
        for model in a.models:
            options = MODELS[model].split() + COMMON
            layouts = ONE if ranks == 1 else ALL + (EXPERTS if model == "mixtral" else DENSE)
            errors = []
            with tempfile.NamedTemporaryFile(suffix=".yaml") as f:
                run([a.lockstep, "bench", "machine", "-n", str(ranks), "--out", f.name] + options[:-1])
                for layout in layouts:
                    layout = layout.format(n=ranks)
                    out = run([a.lockstep, "bench", "train", "-n", str(ranks), "--predict", f.name, "--json"] + options + layout.split())
                    x = json.loads(out.strip().split("\n")[-1])
                    error = x["predicted_seconds"] / x["measured_seconds"] - 1
                    errors.append(error)
                    equal = "equal" if x["predicted_bytes"] == x["measured_bytes"] else "differ"
                    print(f"{model:8} {ranks} {layout:68} {x['predicted_seconds']:9.4f} s {x['measured_seconds']:9.4f} s "
                          f"{100 * error:+6.1f}%  bytes {equal}", flush=True)
            size = [abs(e) for e in errors]
            every += size
            print(f"{model:8} {ranks} {len(size)} layouts: median {100 * statistics.median(size):.1f}%, "
                  f"largest {100 * max(size):.1f}%\n")
    print(f"all {len(every)}: median {100 * statistics.median(every):.1f}%, largest {100 * max(every):.1f}%")


if __name__ == "__main__":
    main()
