#!/usr/bin/env python3
"""plan_fit.py MACHINE.yaml TABLE.csv[:COLUMN=VALUE] ... [--leave-out COLUMN] - fits the efficiencies of a processor to published runs.

Fits the constants of GRID of a machine file to the runs of the tables on its processor, or to those of them with a value in a column: one
constant after the other takes the value of a grid with the least mean absolute error, until none changes. All tables have equal weight.
Half of the runs of each table (every second one) are fitted, the other half is held out. Prints the constants, and the errors of both
halves by table, with the constants of the file and with the fitted ones. Rows of quality C (proxies, warm-up, digitized) are left out.

--leave-out COLUMN: fits as often as the column has values (of all runs), each time without the runs of one value, and prints the errors on
those: how wrong a prediction is for a model, or a cluster, that was not part of the fit. "table" is a column, too.
"""
import argparse
import csv
import os
import re
import statistics
import subprocess
import tempfile

LOCKSTEP = os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(__file__), "..", "build", "lockstep"))
GRID = {
    "matmul": [x / 100 for x in range(43, 90, 3)],
    "attention": [x / 100 for x in range(10, 51, 5)],
    "attention_query": [x * 250 for x in range(0, 11)],
    "memory_bound": [x / 10 for x in range(3, 10)],
    "eager": [x / 10 for x in range(10, 19)],
}


class Fit:
    def __init__(self, machine, tables):
        self.machine = open(machine, encoding="utf-8").read()
        processor = re.search(r"^processor:\n(?:\s*#.*\n)*\s*name: *\"?(\S+)", self.machine, re.M).group(1)
        find = {k: re.search(rf"^  {k}: *([0-9.e-]+)", self.machine, re.M) for k in GRID}
        self.file = {k: float(found.group(1)) for k, found in find.items() if found}
        self.grid = {k: GRID[k] for k in self.file}
        self.rows = []
        for table in tables:
            table, _, only = table.partition(":")
            column, _, value = only.partition("=")
            for row in csv.DictReader(open(table, encoding="utf-8")):
                if only and row[column] != value or row.get("quality") == "C" or row.get("status", "ok") not in ("ok", ""):
                    continue
                if processor[:4] in row.get("gpu_type", "") and row.get("iter_time_s"):
                    self.rows.append(dict(row, table=os.path.basename(table)))
        self.known = {}

    def errors(self, constants):
        """The relative error of each row that can be predicted; by row_id and table."""
        key = tuple(constants[k] for k in self.grid)
        if key in self.known:
            return self.known[key]
        text = self.machine
        for name, value in constants.items():
            text = re.sub(rf"^  {name}: *[0-9.e-]+", f"  {name}: {value}", text, count=1, flags=re.M)
        out = {}
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/machine.yaml", "w", encoding="utf-8") as f:
                f.write(text)
            columns = sorted({c for row in self.rows for c in row})
            with open(f"{folder}/runs.csv", "w", encoding="utf-8", newline="") as f:
                w = csv.DictWriter(f, columns, restval="")
                w.writeheader()
                w.writerows(dict(row, row_id=str(i)) for i, row in enumerate(self.rows))
            subprocess.run([LOCKSTEP, "plan", "--machine", f"{folder}/machine.yaml", "--cases", f"{folder}/runs.csv", "--out",
                            f"{folder}/out.csv"], check=True, stdout=subprocess.DEVNULL)
            for price in csv.DictReader(open(f"{folder}/out.csv", encoding="utf-8")):
                i = int(price["row_id"])
                if price["step_seconds"]:
                    out[i] = float(price["step_seconds"]) / float(self.rows[i]["iter_time_s"]) - 1
        self.known[key] = out
        return out

    def error(self, constants, rows):
        errors = self.errors(constants)
        return statistics.mean(abs(errors[i]) for i in rows if i in errors)

    def fit(self, rows):
        """All tables have equal weight, however many runs they have."""
        tables = {}
        for i in rows:
            tables.setdefault(self.rows[i]["table"], []).append(i)
        best = dict(self.file)

        def loss(constants):
            errors = self.errors(constants)
            return statistics.mean(statistics.mean(abs(errors[i]) for i in t) for t in tables.values())

        while True:
            before = dict(best)
            for name, grid in self.grid.items():
                best[name] = min(grid + [best[name]], key=lambda x, n=name: (loss({**best, n: x}), x))
            if best == before:
                return best


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("machine")
    p.add_argument("tables", nargs="+")
    p.add_argument("--leave-out", metavar="COLUMN")
    a = p.parse_args()
    fit = Fit(a.machine, a.tables)
    priced = sorted(fit.errors(fit.file))
    seen, half = {}, {}
    for i in priced:
        table = fit.rows[i]["table"]
        seen[table] = seen.get(table, 0) + 1
        half[i] = seen[table] % 2
    fitted = fit.fit([i for i in priced if half[i]])
    print("constants   " + ", ".join(f"{k} {fit.file[k]:g} -> {fitted[k]:g}" for k in fit.grid))
    print(f"{'mean absolute error':44} {'runs':>5} {'file':>8} {'fitted':>8} {'file, other half':>18} {'fitted, other half':>20}")
    for table in seen:
        one = [i for i in priced if fit.rows[i]["table"] == table and half[i]]
        other = [i for i in priced if fit.rows[i]["table"] == table and not half[i]]
        cells = [f"{100 * fit.error(c, rows):.1f}%" if rows else "-" for rows in (one, other) for c in (fit.file, fitted)]
        print(f"{table:44} {seen[table]:5} {cells[0]:>8} {cells[1]:>8} {cells[2]:>18} {cells[3]:>20}")
    for value in sorted({fit.rows[i].get(a.leave_out, "") for i in priced}) if a.leave_out else []:
        left = [i for i in priced if fit.rows[i].get(a.leave_out, "") == value]
        rest = [i for i in priced if i not in set(left)]
        if rest:
            constants = fit.fit(rest)
            print(f"without {a.leave_out} {value[:48]:48} {len(left):4} runs {100 * fit.error(constants, left):6.1f}%  "
                  + ", ".join(f"{k} {constants[k]:g}" for k in fit.grid))


if __name__ == "__main__":
    main()
