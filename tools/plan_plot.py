#!/usr/bin/env python3
"""plan_plot.py OUT.svg TABLE.csv[=NAME] ... - draws predicted against published seconds of a step, a color for each table.

Rows are those that plan_errors.py compares. Both axes are logarithmic; the lines are 25% to either side of equal.
"""
import csv
import math
import os
import subprocess
import sys
import tempfile

LOCKSTEP = os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(__file__), "..", "build", "lockstep"))
COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#e377c2", "#7f7f7f", "#bcbd22"]
SIZE, LEFT, TOP = 480, 60, 20


def points_of(table):
    rows = {row["row_id"]: row for row in csv.DictReader(open(table, encoding="utf-8"))}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "prices.csv")
        subprocess.run([LOCKSTEP, "plan", "--cases", table, "--out", out], check=True, stdout=subprocess.DEVNULL)
        prices = list(csv.DictReader(open(out, encoding="utf-8")))
    for price in prices:
        row = rows[price["row_id"]]
        if price["step_seconds"] and row.get("iter_time_s") and row.get("status", "ok") in ("ok", "") and row.get("quality") != "C":
            yield float(row["iter_time_s"]), float(price["step_seconds"])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tables = [(word.partition("=")[2] or os.path.basename(word.partition("=")[0]), list(points_of(word.partition("=")[0])))
              for word in sys.argv[2:]]
    low = math.floor(math.log10(min(min(p) for _, t in tables for p in t)))
    high = math.ceil(math.log10(max(max(p) for _, t in tables for p in t)))

    def x(seconds):
        return LEFT + SIZE * (math.log10(seconds) - low) / (high - low)

    def y(seconds):
        return TOP + SIZE - SIZE * (math.log10(seconds) - low) / (high - low)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + SIZE + 240} {TOP + SIZE + 50}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="#fff"/>',
           f'<rect x="{LEFT}" y="{TOP}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#888"/>']
    for power in range(low, high + 1):
        at = 10.0 ** power
        out.append(f'<text x="{x(at):.0f}" y="{TOP + SIZE + 16}" text-anchor="middle">{at:g}</text>'
                   f'<text x="{LEFT - 6}" y="{y(at) + 4:.0f}" text-anchor="end">{at:g}</text>')
    for factor, dash in ((1, ""), (1.25, "4"), (0.8, "4")):
        a, b = 10.0 ** low * max(1, 1 / factor), 10.0 ** high * min(1, 1 / factor)
        out.append(f'<path d="M{x(a):.1f} {y(a * factor):.1f}L{x(b):.1f} {y(b * factor):.1f}" stroke="#888" stroke-dasharray="{dash}"/>')
    for i, (name, points) in enumerate(tables):
        color = COLORS[i % len(COLORS)]
        dots = "".join(f"M{x(was):.1f} {y(is_):.1f}h0" for was, is_ in points)
        out.append(f'<path d="{dots}" stroke="{color}" stroke-width="4" stroke-linecap="round" stroke-opacity="0.6"/>')
        out.append(f'<text x="{LEFT + SIZE + 14}" y="{TOP + 14 + 18 * i}" fill="{color}">{name} ({len(points)})</text>')
    out.append(f'<text x="{LEFT + SIZE / 2}" y="{TOP + SIZE + 38}" text-anchor="middle">published seconds of a step</text>')
    out.append(f'<text x="14" y="{TOP + SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {TOP + SIZE / 2})">predicted</text></svg>')
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        f.write("\n".join(out) + "\n")


main()
