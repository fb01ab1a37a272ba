#!/usr/bin/env python3
"""offload.py - the seconds of a step whose parameters, gradients and optimizer state are in a file, compared with the disk's limit.

    bench/offload.py [--build build] [--folder /var/tmp/offload-bench] [--preset gpt2-124m] [--tokens 128] [--rounds 3] [--steps 4]
                     [--limit MB/s]

Each round measures, one after another: the disk, a run with everything in memory, a run with parallel.offload_parameters=file and
optim.offload=file, and the disk again. "Disk" transfers the bytes that the plan gives for a step, within a file as large as the run's,
without computing: 8 MiB at a time, one after the other, with O_DIRECT from and to huge pages, as the run does; 64 MiB are read, and then
the same share of the saves is written. The first step of a run is left out. bound = max(seconds of a step in memory, seconds of the disk,
mean of both measurements); the table has medians over the rounds, and the range of step / bound.

--limit caps reads and writes each to so many MB/s by a cgroup (blkio of version 1, which needs root), so that the disk's speed is known;
the disk is measured under the same cap.
"""
import argparse
import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK, TURN = 8 << 20, 64 << 20
GROUP = "/sys/fs/cgroup/blkio/lockstep-offload-bench"


def disk(folder, size, loaded, saved):
    """Seconds for reading `loaded` and writing `saved` bytes of a file of `size` bytes, in turns."""
    path, buffer = os.path.join(folder, "disk"), mmap.mmap(-1, 4 * BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer.madvise(mmap.MADV_HUGEPAGE)
    buffer.write(os.urandom(1 << 20) * 32)
    page = 2 << 20
    first = -ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % page  # the buffer begins at a huge page
    block = memoryview(buffer)[first:first + BLOCK]
    size = size // BLOCK * BLOCK
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        for at in range(0, size, BLOCK):
            os.pwritev(fd, [block], at)
        done, at, total = {os.preadv: 0, os.pwritev: 0}, {os.preadv: 0, os.pwritev: 0}, loaded + saved
        began = time.perf_counter()
        while sum(done.values()) < total:
            for move, most in ((os.preadv, loaded), (os.pwritev, saved)):
                turn = min(done[move] + TURN * most // loaded, most)
                while done[move] < turn:
                    n = move(fd, [block], at[move])
                    if n != BLOCK:
                        sys.exit(f"{path}: {n} of {BLOCK} bytes were moved")
                    done[move] += n
                    at[move] = (at[move] + n) % size
        return (time.perf_counter() - began) * total / sum(done.values())
    finally:
        os.close(fd)
        os.unlink(path)


def options(o, where):
    return [f"--model.preset={o.preset}", "--data.text=" + os.path.join(o.folder, "text.txt"), "--data.tokenizer=bytes",
            "--data.val_fraction=0", f"--data.seq_len={o.tokens}", "--train.global_batch=1", "--optim.name=adamw",
            "--precision.compute=bf16", "--parallel.offload_parameters=" + where, "--optim.offload=" + where]


def plan(o):
    done = subprocess.run([os.path.join(o.build, "lockstep"), "plan", "--json"] + options(o, "file"), capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["offload"]


def train(o, where):
    """Lines of metrics of the steps after the first."""
    run = os.path.join(o.folder, "run-" + where)
    shutil.rmtree(run, ignore_errors=True)
    command = [os.path.join(o.build, "lockstep"), "train", "-q", "--run.dir=" + run, "--checkpoint.every=0",
               f"--train.steps={o.steps + 1}"] + options(o, where)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    with open(os.path.join(run, "metrics.jsonl")) as f:
        lines = [json.loads(line) for line in f][1:]
    shutil.rmtree(run)
    return lines


def limited(folder, megabytes):
    """Puts this process and its children into a cgroup whose reads and writes are capped."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    if os.path.exists(f"/sys/dev/block/{number}/partition"):
        with open(f"/sys/dev/block/{number}/../dev") as f:
            number = f.read().strip()
    try:
        os.makedirs(GROUP, exist_ok=True)
        for kind in ("read", "write"):
            with open(f"{GROUP}/blkio.throttle.{kind}_bps_device", "w") as f:
                f.write(f"{number} {int(megabytes * 1e6)}")
        with open(f"{GROUP}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
    except OSError as e:
        sys.exit(f"--limit: this system does not allow it: {e}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    p.add_argument("--folder", default="/var/tmp/offload-bench")
    p.add_argument("--preset", default="gpt2-124m")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--limit", type=float)
    o = p.parse_args()
    os.makedirs(o.folder, exist_ok=True)
    with open(os.path.join(HERE, "..", "ARCHITECTURE.md")) as f, open(os.path.join(o.folder, "text.txt"), "w") as out:
        out.write(f.read())
    if o.limit:
        limited(o.folder, o.limit)
    moved, rows = plan(o), []
    for _ in range(o.rounds):
        first = disk(o.folder, moved["file"], moved["loaded"], moved["saved"])
        memory = statistics.median(line["step_seconds"] for line in train(o, "none"))
        lines = train(o, "file")
        seconds = (first + disk(o.folder, moved["file"], moved["loaded"], moved["saved"])) / 2
        if any(line["offload"][kind] != moved[kind] for line in lines for kind in ("loaded", "saved")):
            sys.exit(f"a step moved other bytes than planned: {lines[-1]['offload']}, {moved}")
        step = statistics.median(line["step_seconds"] for line in lines)
        rows.append({"memory": memory, "disk": seconds, "bound": max(memory, seconds), "step": step, "ratio": step / max(memory, seconds),
                     "waited": statistics.median(line["offload"]["waited"] for line in lines)})
    m = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratios, total = [row["ratio"] for row in rows], moved["loaded"] + moved["saved"]
    print(f"{o.preset}, 1 x {o.tokens} tokens, bf16, AdamW; {moved['file'] / 1e9:.2f} GB in files; a step loads "
          f"{moved['loaded'] / 1e9:.2f} GB and saves {moved['saved'] / 1e9:.2f} GB")
    print("| tokens | disk [GB/s] | disk [s] | in memory [s] | bound [s] | step [s] | waited [s] | step / bound (range) |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| {o.tokens} | {total / m['disk'] / 1e9:.2f} | {m['disk']:.2f} | {m['memory']:.2f} | {m['bound']:.2f} | {m['step']:.2f} | "
          f"{m['waited']:.2f} | {m['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")


if __name__ == "__main__":
    main()
