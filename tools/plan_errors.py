#!/usr/bin/env python3
"""plan_errors.py MACHINE TABLE.csv [COLUMN=TEXT ...] - compares `lockstep plan --machine` with published runs.

A row of the table is a run: layers, hidden, ffn_hidden, glu, heads, kv_heads, vocab, seq; gpus, tp, pp, cp, vpp, zero_stage,
sequence_parallel, recompute, micro_batch, global_batch; and iter_time_s, the seconds of a step as published. Only rows whose
columns contain the texts are taken, and of those the dense models in 16 bits. Where the micro-batch is not published, the
fastest of 1, 2, 4 and 8 is. Prints a line for each run, the parts of its prediction in per cent, and the errors.
"""
import csv
import json
import os
import statistics
import subprocess
import sys

LOCKSTEP = os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(__file__), "..", "build", "lockstep"))


NEEDED = ("gpus", "tp", "pp", "layers", "hidden", "ffn_hidden", "heads", "vocab", "seq", "global_batch")


def number(row, key, default=None):
    try:
        return float(row.get(key, ""))
    except ValueError:
        return default


def options(row, micro):
    """The run as options of the command; None if its batch is not divisible by dp and this micro-batch."""
    size = {k: int(number(row, k, 1) or 1) for k in ("cp", "vpp")} | {k: int(number(row, k)) for k in NEEDED}
    dp = size["gpus"] // (size["tp"] * size["pp"] * size["cp"])
    steps = size["global_batch"] // (dp * micro)
    if steps < 1 or steps * dp * micro != size["global_batch"]:
        return None
    gated = row["glu"] in ("1", "True")
    out = [f"--model.preset={'llama3-8b' if gated else 'gpt2-124m'}", f"--model.layers={size['layers']}",
           f"--model.width={size['hidden']}", f"--model.heads={size['heads']}", f"--model.ffn={size['ffn_hidden']}",
           f"--model.vocab={size['vocab']}", f"--model.max_positions={size['seq']}", f"--data.seq_len={size['seq']}",
           "--model.dropout=0", "--data.val_fraction=0", "--precision.compute=bf16", "-n", str(size["gpus"]),
           f"--parallel.tp={size['tp']}", f"--parallel.pp={size['pp']}", f"--parallel.cp={size['cp']}", f"--parallel.dp={dp}",
           f"--train.micro_batch={micro}", f"--train.accumulate={steps}", f"--train.global_batch={size['global_batch']}"]
    if gated:
        out += [f"--model.kv_heads={int(number(row, 'kv_heads', size['heads']))}", f"--model.head_size={size['hidden'] // size['heads']}"]
    if size["pp"] > 1 and size["vpp"] > 1:
        out.append(f"--parallel.vpp={size['vpp']}")
    if number(row, "zero_stage", 0) and dp * size["cp"] > 1:
        out.append(f"--parallel.zero={int(number(row, 'zero_stage'))}")
    if number(row, "sequence_parallel", 0) and size["tp"] > 1:
        out.append("--parallel.sp=true")
    mode = row["recompute"] if row["recompute"] in ("full", "selective") else "none"
    return out + [f"--recompute.mode={mode}"]


def predict(machine, row):
    """The fastest prediction and its micro-batch; or None and the reason."""
    given, best, why = number(row, "micro_batch"), None, "the batch is not divisible"
    for micro in [int(given)] if given else [1, 2, 4, 8]:
        words = options(row, micro)
        if words is None:
            continue
        run = subprocess.run([LOCKSTEP, "plan", "--json", "--rank", "0", "--run.memory_limit=100000GiB", "--machine", machine] + words,
                             capture_output=True, text=True)
        if run.returncode:
            why = run.stderr.strip()
            continue
        seconds = json.loads(run.stdout)["seconds"]
        if best is None or seconds["step"] < best[0]["step"]:
            best = (seconds, micro)
    return best, why


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    machine, table, wanted = sys.argv[1], sys.argv[2], [w.split("=", 1) for w in sys.argv[3:]]
    errors = []
    for row in csv.DictReader(open(table, encoding="utf-8")):
        seconds = number(row, "iter_time_s")
        if not seconds or row.get("status", "ok") != "ok" or "fp8" in row["precision"] or number(row, "ep", 1) > 1:
            continue
        if any(text not in row[column] for column, text in wanted):
            continue
        missing = [k for k in NEEDED if number(row, k) is None]
        if missing:
            print(f"{row['row_id']:48} {seconds:10.4g}  not priced: {', '.join(missing)} not published")
            continue
        best, why = predict(machine, row)
        if best is None:
            print(f"{row['row_id']:48} {seconds:10.4g}  not priced: {why}")
            continue
        s, error = best[0], best[0]["step"] / seconds - 1
        errors.append(error)
        parts = [(k, s[k]) for k in ("matmul", "attention", "memory_bound", "optimizer", "bubble")] + list(s["exposed"].items())
        print(f"{row['row_id']:48} {seconds:10.4g} {s['step']:10.4g} {100 * error:+7.1f}%  micro-batch {best[1]} ",
              " ".join(f"{k} {100 * v / s['step']:.0f}" for k, v in parts if v >= 0.005 * s["step"]))
    if errors:
        size = [abs(e) for e in errors]
        print(f"{len(errors)} runs: mean absolute error {100 * statistics.mean(size):.1f}%, largest {100 * max(size):.1f}%, "
              f"mean {100 * statistics.mean(errors):+.1f}%")


main()
