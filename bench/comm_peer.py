#!/usr/bin/env python3
"""comm_peer.py - lockstep's shared-memory collectives compared with those of Open MPI, MPICH and gloo, in alternating runs.

    bench/comm_peer.py [--lockstep build/lockstep] [--python V/bin/python] [--ranks 2 4] [--rounds 2]
                       [--contenders lockstep plain openmpi mpich gloo] [--sizes 1024 16384 262144 1048576 ...]

V is an environment with torch, for gloo; mpicc.openmpi and mpicc.mpich compile bench/comm_mpi.c. Each round runs every
contender once per operation and number of ranks, one after the other, so that a slow phase of the machine affects all. A
number is the median over the rounds of the bus bandwidth (nccl-tests' definition, GB/s), out of place if the peer supports
it. "lockstep" uses memory of ls_comm_alloc, as training does; "plain" uses ordinary memory. The last column is the ratio to a
memory-copy bound: the bandwidth of memcpy in huge pages by as many processes at once, as the bus bandwidth of an all-reduce that
only reads and writes its buffers once.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
OPS = ("all_reduce", "all_gather", "reduce_scatter")


def options():
    p = argparse.ArgumentParser(description="lockstep's collectives beside Open MPI and gloo")
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--python", help="a Python that has torch; without it there is no gloo")
    p.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    p.add_argument("--ops", nargs="+", choices=OPS, default=list(OPS))
    p.add_argument("--contenders", nargs="+", choices=("lockstep", "plain", "openmpi", "mpich", "gloo"),
                   default=["lockstep", "plain", "openmpi", "gloo"])
    p.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24, 1 << 28], help="bytes")
    p.add_argument("--rounds", type=int, default=2)
    return p.parse_args()


def bus_factor(op, n):
    return 2 * (n - 1) / n if op == "all_reduce" else (n - 1) / n


def calls(bytes_):
    """Timed calls of a size; the peers' programs have the same numbers."""
    return 1000 if bytes_ < 1 << 16 else 100 if bytes_ < 1 << 22 else 10 if bytes_ < 1 << 26 else 3


def ours(o, op, n, memory):
    found = {}
    for b in o.sizes:
        out = subprocess.run([o.lockstep, "bench", "comm", "-n", str(n), "--op", op, "--min", str(b), "--max", str(b), "--memory", memory,
                              "--iterations", str(calls(b)), "--warmup", "3", "--json"], check=True, capture_output=True, text=True)
        found[b] = json.loads(out.stdout)[0]["out_of_place"]["seconds"]
    return found


def peer(argv):
    out = subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = [line.split() for line in out.stdout.splitlines() if line.startswith(OPS)]
    return {int(r[1]): float(r[2]) for r in rows}


def measure(o, who, op, n, built):
    sizes = [op, *map(str, o.sizes)]
    if who == "lockstep":
        return ours(o, op, n, "comm")
    if who == "plain":
        return ours(o, op, n, "plain")
    if who == "gloo":
        return peer([o.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n),
                     os.path.join(HERE, "comm_gloo.py"), *sizes])
    root = ["--allow-run-as-root", "--oversubscribe"] if who == "openmpi" else []
    return peer([f"mpirun.{who}", *root, "-np", str(n), built[who], *sizes])


def copy_bandwidth(n, bytes_):
    """GB/s of memcpy by n processes at once, each its own buffers; bytes written."""
    code = ("import time,sys,mmap;import ctypes as c;b=int(sys.argv[1]);m=c.CDLL(None).memcpy;"
            "m.argtypes=[c.c_void_p,c.c_void_p,c.c_size_t];h=[mmap.mmap(-1,b) for _ in '12'];[k.madvise(mmap.MADV_HUGEPAGE) for k in h];"
            "x,y=[c.addressof(c.c_char.from_buffer(k)) for k in h];"
            "k=max(3,(1<<28)//b);[(m(y,x,b),m(x,y,b)) for _ in range(3)];t=time.perf_counter();"
            "[m(y,x,b) for _ in range(k)];print(b*k/(time.perf_counter()-t)/1e9)")
    runs = [subprocess.Popen([sys.executable, "-c", code, str(bytes_)], stdout=subprocess.PIPE, text=True) for _ in range(n)]
    return sum(float(r.communicate()[0]) for r in runs)


def build(o, folder):
    built = {}
    for who in ("openmpi", "mpich"):
        if who in o.contenders:
            built[who] = os.path.join(folder, f"comm_{who}")
            subprocess.run([f"mpicc.{who}", "-O2", os.path.join(HERE, "comm_mpi.c"), "-o", built[who]], check=True)
    return built


def table(o, op, n, found):
    names = list(found)
    print(f"\n{op}, {n} ranks: bus bandwidth in GB/s" + "".join(f", ratio to {w}" for w in names if w not in ("lockstep", "plain")))
    print(f"{'bytes':>12}" + "".join(f"{w:>10}" for w in names) +
          "".join(f"{'x ' + w:>11}" for w in names if w not in ("lockstep", "plain")) + f"{'of copy':>9}")
    for b in sorted(o.sizes):
        bus = {w: statistics.median(b / r[b] * bus_factor(op, n) / 1e9 for r in found[w]) for w in names}
        line = f"{b:>12}" + "".join(f"{bus[w]:>10.3f}" for w in names)
        line += "".join(f"{bus['lockstep'] / bus[w]:>11.2f}" for w in names if w not in ("lockstep", "plain") and "lockstep" in bus)
        if b >= 1 << 20 and "lockstep" in bus:
            # Per rank: an all-reduce reads and writes its buffer once, as a copy does; the others handle (n-1)/n of it.
            each = copy_bandwidth(n, b) / n
            line += f"{bus['lockstep'] / (each * bus_factor(op, n)):>9.2f}"
        print(line, flush=True)


def main():
    o = options()
    if "gloo" in o.contenders and not o.python:
        print("# no --python with torch: gloo is left out")
        o.contenders.remove("gloo")
    with tempfile.TemporaryDirectory() as folder:
        built = build(o, folder)
        for n in o.ranks:
            for op in o.ops:
                found = {w: [] for w in o.contenders}
                for _ in range(o.rounds):
                    for who in o.contenders:
                        found[who].append(measure(o, who, op, n, built))
                table(o, op, n, found)


if __name__ == "__main__":
    main()
