#!/usr/bin/env python3
"""plan_errors.py [--rows] [--choices] [--twins] [--scaling] TABLE.csv [COLUMN=TEXT ...] - compares `plan --cases` with published runs.

Each row of the table is a run, with the columns that src/cli/plan_cases.h lists and iter_time_s, the published seconds of a step. The
script uses the rows whose columns contain the texts and that ran, except those of quality C (proxies, warm-up, digitized). Prints the
errors of the seconds and of the memory; with --rows also a line for each run, the largest error first. For tables with runs that failed:
how many of them are predicted not to fit, and how many of those that ran. --choices: for each model and number of GPUs, Kendall's tau of
the ranking by predicted and by published seconds, and how much slower the layout that is predicted to be fastest is than the fastest (5
layouts at least). --twins: the same for layouts that were run with two ZeRO stages: how the runs with one stage rank those with the other,
and how the predictions rank either. --scaling: for each series of runs of a model (same source, precision and tokens per sample), how much
the tokens/s per GPU change from the smallest to the largest number of GPUs, at least twice as many, as published and as predicted; of
several runs on the same number of GPUs the fastest counts. Where both change by less than 0.5%, the sign counts as right.
"""
import csv
import itertools
import os
import statistics
import subprocess
import sys
import tempfile

LOCKSTEP = os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(__file__), "..", "build", "lockstep"))
OPTIONS = ("--rows", "--choices", "--twins", "--scaling")


def number(row, key):
    try:
        return float(row.get(key, ""))
    except ValueError:
        return None


def summary(what, errors):
    size = [abs(e) for e in errors]
    print(f"{what}: {len(errors)} runs, absolute error: mean {100 * statistics.mean(size):.1f}%, "
          f"median {100 * statistics.median(size):.1f}%, largest {100 * max(size):.1f}%; mean error {100 * statistics.mean(errors):+.1f}%")


def choices(cells, what="choices"):
    """cells: lists of seconds, as published and as predicted."""
    taus, slower = [], []
    for runs in cells:
        if len(runs) < 5:
            continue
        signs = [(a - c) * (b - d) for (a, b), (c, d) in itertools.combinations(runs, 2)]
        taus.append((sum(s > 0 for s in signs) - sum(s < 0 for s in signs)) / len(signs))
        slower.append(min(runs, key=lambda r: r[1])[0] / min(runs)[0] - 1)
    if not taus:
        sys.exit(f"{what}: no model with 5 layouts on a number of GPUs")
    print(f"{what}: {len(taus)} models and numbers of GPUs, Kendall's tau mean {statistics.mean(taus):.2f}, "
          f"median {statistics.median(taus):.2f}; the choice is within 5% of the fastest in {sum(s <= 0.05 for s in slower)}")


def compare_twins(twins):
    """twins: (model, GPUs, layout) -> ZeRO stage -> seconds, as published and as predicted; of two stages the lower ones are first."""
    cells = {}
    for (model, gpus, _), stages in twins.items():
        if len(stages) > 1:
            low, high = (stages[z] for z in sorted(stages)[:2])
            cells.setdefault((model, gpus), []).append((low, high))
    choices([[(high[0], low[0]) for low, high in runs] for runs in cells.values()], "twins, by the runs with the lower stage")
    choices([[low for low, _ in runs] for runs in cells.values()], "prices of the runs with the lower stage")
    choices([[high for _, high in runs] for runs in cells.values()], "prices of the runs with the higher stage")


def scaling(series):
    right = near = count = 0
    for name, runs in sorted(series.items()):
        few, many = min(runs)[0], max(runs)[0]
        if many < 2 * few:
            continue
        published_few, predicted_few = max(r[1:] for r in runs if r[0] == few)
        published_many, predicted_many = max(r[1:] for r in runs if r[0] == many)
        published, predicted = 100 * (published_many / published_few - 1), 100 * (predicted_many / predicted_few - 1)
        print(f"{' '.join(name[:2]):40} {few:5} -> {many:5} GPUs: published {published:+6.1f}%, predicted {predicted:+6.1f}%")
        count += 1
        right += (published < 0) == (predicted < 0) or max(abs(published), abs(predicted)) < 0.5
        near += abs(published - predicted) <= 2
    print(f"scaling: {count} series, the sign is right in {right}, the change within 2 points in {near}")


def main():
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    unknown = [w for w in sys.argv[1:] if w.startswith("--") and w not in OPTIONS]
    if not words or unknown:
        sys.exit("".join(f"plan_errors: {w}: not an option\n" for w in unknown) + __doc__)
    rows = {row["row_id"]: row for row in csv.DictReader(open(words[0], encoding="utf-8"))}
    columns = next(iter(rows.values()), {})
    for w in words[1:]:
        if w.partition("=")[0] not in columns or "=" not in w:
            sys.exit(f"plan_errors: {w}: expected COLUMN=TEXT with a column of {words[0]}; one table at a time")
    wanted = [w.split("=", 1) for w in words[1:]]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "prices.csv")
        subprocess.run([LOCKSTEP, "plan", "--cases", words[0], "--out", out], check=True, stdout=subprocess.DEVNULL)
        prices = list(csv.DictReader(open(out, encoding="utf-8")))
    seconds, memory, unpriced, cells, series, fit = [], [], 0, {}, {}, {True: [0, 0], False: [0, 0]}
    twins = {}
    for price in prices:
        row = rows[price["row_id"]]
        ran = row.get("status", "ok") in ("ok", "")
        if row.get("quality") == "C" or any(text not in row[column] for column, text in wanted):
            continue
        if price["fits"]:
            fit[ran][int(price["fits"])] += 1
        if not ran:
            continue
        published, held = number(row, "iter_time_s"), number(row, "mem_gb_per_gpu")
        if not price["step_seconds"]:
            unpriced += 1
            continue
        if published:
            cells.setdefault((row.get("model"), row.get("gpus")), []).append((published, float(price["step_seconds"])))
            layout = tuple(row.get(k, "") for k in ("tp", "pp", "dp", "micro_batch", "grad_acc", "global_batch", "seq"))
            twin = twins.setdefault((row.get("model"), row.get("gpus"), layout), {})
            twin.setdefault(row.get("zero_stage"), (published, float(price["step_seconds"])))
            key = tuple(row.get(k, "") for k in ("model", "precision", "seq", "source", "source_loc"))
            tokens = float(row["global_batch"]) * float(row["seq"]) / float(row["gpus"])
            series.setdefault(key, []).append((int(row["gpus"]), tokens / published, tokens / float(price["step_seconds"])))
            seconds.append((float(price["step_seconds"]) / published - 1, published, price))
        if held:
            memory.append(float(price["memory_gb"]) / held - 1)
    if "--rows" in sys.argv:
        for error, published, price in sorted(seconds, key=lambda x: -abs(x[0])):
            print(f"{price['row_id']:60} {published:10.4g} {float(price['step_seconds']):10.4g} {100 * error:+7.1f}%  {price['assumed']}")
    if seconds:
        summary("seconds", [e[0] for e in seconds])
    if memory:
        summary("memory", memory)
    if sum(fit[False]):
        print(f"failed: {sum(fit[False])} runs, {100 * fit[False][0] / sum(fit[False]):.1f}% of them are predicted not to fit, "
              f"and {100 * fit[True][0] / sum(fit[True]):.1f}% of those that ran")
    if "--choices" in sys.argv:
        choices(cells.values())
    if "--twins" in sys.argv:
        compare_twins(twins)
    if "--scaling" in sys.argv:
        scaling(series)
    if unpriced:
        print(f"not priced: {unpriced} runs")


main()
