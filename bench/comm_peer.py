#!/usr/bin/env python3
"""comm_peer.py - lockstep's shared-memory collectives compared with those of Open MPI, MPICH and gloo, in alternating runs.

    bench/comm_peer.py [--lockstep build/lockstep] [--python V/bin/python] [--ranks 2 4] [--rounds 3] [--ops all_reduce ...]
                       [--sizes 1KiB 256KiB ...] [--contenders lockstep plain openmpi mpich gloo] [--loops 0]
                       [--iterations N] [--save FILE]
    bench/comm_peer.py --table FILE... [--markdown]

V is an environment with torch, for gloo; mpicc.openmpi and mpicc.mpich compile bench/comm_mpi.c. Each round runs every contender once per
operation and number of ranks, one after the other, so that a slow phase of the machine affects all. A cell is the median over the rounds of
the median time of a call, in microseconds, with the smallest and largest of the rounds' medians. "lockstep" uses memory of ls_comm_alloc,
as training does; "plain" is lockstep on ordinary memory, as the peers'. The last columns are the time of the best peer divided by that
of lockstep, and by that of plain. All contenders' ranks are bound to cores if there are as many cores and no busy loops (--loops).

--save appends each run to a file as a line of JSON, so that a measurement can be made in several calls, by operations and sizes; --table
prints the table of such files without measuring.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

from noise import busy_loops

HERE = os.path.dirname(os.path.abspath(__file__))
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv")
OURS = ("lockstep", "plain")
CONTENDERS = (*OURS, "openmpi", "mpich", "gloo")
FORMS = ("out of place", "in place")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    for unit, bytes_ in UNITS.items():
        if text.endswith(unit):
            return int(text[: -len(unit)]) * bytes_
    return int(text)


def size_text(bytes_):
    for unit, of in reversed(UNITS.items()):
        if bytes_ % of == 0:
            return f"{bytes_ // of} {unit}"
    return f"{bytes_} B"


def options():
    p = argparse.ArgumentParser(description="lockstep's collectives beside those of Open MPI, MPICH and gloo")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--python", help="a Python with torch; without it gloo is left out")
    p.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    p.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS))
    p.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    p.add_argument("--sizes", type=size, nargs="+", default=[1 << k for k in range(10, 29, 2)], help="bytes, or as in 256KiB")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--loops", type=int, default=0, help="busy loops that run at the same time")
    p.add_argument("--iterations", type=int, help="timed calls of every size [by size: 5 to 1000]")
    p.add_argument("--save", metavar="FILE", help="append the measurements to this file")
    p.add_argument("--table", metavar="FILE", nargs="+", help="measure nothing; print the table of these files")
    p.add_argument("--markdown", action="store_true", help="print the table as Markdown, without the ranges")
    return p.parse_args()


def calls(o, bytes_):
    """Timed calls of a size, of every contender."""
    if o.iterations:
        return o.iterations
    return 1000 if bytes_ < 1 << 16 else 200 if bytes_ < 1 << 20 else 50 if bytes_ < 1 << 24 else 10 if bytes_ < 1 << 27 else 5


def ours(o, op, n, memory):
    """{bytes: [seconds out of place, in place]}; nan: the form does not exist."""
    found = {}
    for b in o.sizes:
        out = subprocess.run([o.lockstep, "bench", "comm", "-n", str(n), "--op", op, "--min", str(b), "--max", str(b), "--memory", memory,
                              "--iterations", str(calls(o, b)), "--warmup", "3", "--json"], check=True, capture_output=True, text=True)
        row = json.loads(out.stdout)[0]
        found[b] = [math.nan if op == "broadcast" else row["out_of_place"]["seconds"],
                    math.nan if op == "sendrecv" else row["in_place"]["seconds"]]
    return found


def peer(argv):
    out = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if out.returncode:
        sys.exit(f"comm_peer: exit {out.returncode} of {' '.join(argv)}:\n{out.stdout}{out.stderr}")
    rows = [line.split() for line in out.stdout.splitlines() if line.startswith(OPS)]
    return {int(r[1]): [float(r[2]), float(r[5])] for r in rows}


def measure(o, who, op, n, built):
    sizes = [op, *(f"{b}:{calls(o, b)}" for b in o.sizes)]
    bound = n <= len(os.sched_getaffinity(0)) and not o.loops
    if who in OURS:
        return ours(o, op, n, "comm" if who == "lockstep" else "plain")
    if who == "gloo":
        return peer([o.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n),
                     os.path.join(HERE, "comm_gloo.py"), *sizes])
    if who == "openmpi":
        flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "core" if bound else "none"]
    else:
        flags = ["-bind-to", "core" if bound else "none"]
    return peer([f"mpirun.{who}", *flags, "-np", str(n), built[who], *sizes])


def build(o, folder):
    built = {}
    for who in ("openmpi", "mpich"):
        if who in o.contenders:
            built[who] = os.path.join(folder, f"comm_{who}")
            subprocess.run([f"mpicc.{who}", "-O2", os.path.join(HERE, "comm_mpi.c"), "-o", built[who]], check=True)
    return built


def cell(seconds, markdown):
    """Median, and the range, of the rounds in microseconds."""
    us = [1e6 * s for s in seconds if not math.isnan(s)]
    if not us:
        return "-"
    number = lambda x: f"{x:.2f}" if x < 100 else f"{x:.0f}"
    return number(statistics.median(us)) + ("" if markdown else f" ({number(min(us))}-{number(max(us))})")


def ratio(found, of, peers):
    """Time of the fastest peer / time of `of`, of the medians."""
    of = [s for s in found.get(of, []) if not math.isnan(s)]
    best = [statistics.median(s) for p in peers if (s := [x for x in found.get(p, []) if not math.isnan(x)])]
    return f"{min(best) / statistics.median(of):.2f}" if of and best else "-"


def print_table(runs, markdown):
    """runs: what --save writes: op, ranks, contender, seconds {bytes: [out of place, in place]}."""
    names = [w for w in CONTENDERS if any(r["contender"] == w for r in runs)]
    peers = [w for w in names if w not in OURS]
    for n, op in sorted({(r["ranks"], r["op"]) for r in runs}, key=lambda k: (k[0], OPS.index(k[1]))):
        of_op = [r for r in runs if r["ranks"] == n and r["op"] == op]
        for form in range(2):
            if all(math.isnan(s[form]) for r in of_op for s in r["seconds"].values()):
                continue
            head = ["bytes", *names, *(f"best peer / {w}" for w in OURS if w in names and peers)]
            lines = [head]
            for b in sorted({int(b) for r in of_op for b in r["seconds"]}):
                found = {w: [r["seconds"][str(b)][form] for r in of_op if r["contender"] == w and str(b) in r["seconds"]] for w in names}
                lines.append([size_text(b), *(cell(found[w], markdown) for w in names),
                              *(ratio(found, w, peers) for w in OURS if w in names and peers)])
            print(f"\n{op}, {FORMS[form]}, {n} ranks: microseconds of a call")
            put_lines(lines, markdown)


def put_lines(lines, markdown):
    if markdown:
        for i, line in enumerate(lines):
            print("| " + " | ".join(line) + " |" + ("\n" + "|---" * len(line) + "|" if i == 0 else ""))
        return
    width = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(text.rjust(width[i]) for i, text in enumerate(line)), flush=True)


def run_all(o, built):
    runs = []
    for n in o.ranks:
        for op in o.ops:
            for _ in range(o.rounds):
                for who in o.contenders:
                    with busy_loops(o.loops):
                        seconds = {str(b): s for b, s in measure(o, who, op, n, built).items()}
                    runs.append({"op": op, "ranks": n, "contender": who, "seconds": seconds})
                    if o.save:
                        with open(o.save, "a") as f:
                            f.write(json.dumps(runs[-1]) + "\n")
    return runs


def main():
    o = options()
    if o.table:
        print_table([json.loads(line) for name in o.table for line in open(name)], o.markdown)
        return
    if "gloo" in o.contenders and not o.python:
        print("# no --python with torch: gloo is left out")
        o.contenders.remove("gloo")
    with tempfile.TemporaryDirectory() as folder:
        print_table(run_all(o, build(o, folder)), o.markdown)


if __name__ == "__main__":
    main()
