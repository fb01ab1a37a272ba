#!/usr/bin/env python3
"""goodput.py [LOCKSTEP] [--ranks 16] [--minutes 5] [--between 30] [--every 60] [--seed 1]

A training run whose ranks are killed at random, restarted each time, compared with `lockstep sim` of the same run.

First it measures on this machine: seconds of a step, what a checkpoint adds, and what a restart takes. `lockstep sim --events` then draws
the failures and predicts the share of the time that trains. At each of these times a rank of the run is killed (SIGKILL), and the run is
restarted when the launcher has ended, which must be with exit code 3. The predicted share is compared with that of the real run: its
completed steps times the mean seconds of a step in that run.
"""
import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

PEER_FAILED = 3


class Job:
    """A run in a folder; `arrived` maps steps to the times at which their metrics appeared."""

    def __init__(self, lockstep, folder, ranks, every):
        self.folder = folder
        self.command = [lockstep, "train", "-n", str(ranks), "-q", "--model.preset=llama-tiny", f"--data.text={folder}/text.txt",
                        "--data.val_fraction=0", f"--run.dir={folder}/run", "--train.steps=1000000", f"--checkpoint.every={every}"]
        self.process = None
        self.log = []  # (time, step) as metrics appear
        self.watching = True
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        path = f"{self.folder}/run/metrics.jsonl"
        size = 0
        while self.watching:
            now = os.path.getsize(path) if os.path.exists(path) else 0
            if now != size:
                with open(path, "rb") as f:
                    f.seek(max(0, now - 4096))
                    lines = f.read().split(b"\n")
                size = now
                if len(lines) > 1 and lines[-2].startswith(b'{"step":'):
                    self.log.append((time.monotonic(), int(lines[-2][8:].split(b",")[0])))
            time.sleep(0.001)

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait_for(self, done):
        """Waits until done() is true; the run must not end before."""
        while not done():
            if self.process.poll() is not None:
                sys.exit(f"goodput.py: the run ended by itself: {self.process.stderr.read().decode()}")
            time.sleep(0.001)

    def kill_rank(self):
        ranks = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        at = time.monotonic()
        if ranks:
            os.kill(int(random.choice(ranks)), signal.SIGKILL)
        else:
            self.process.kill()
        code = self.process.wait()
        if ranks and code != PEER_FAILED:
            sys.exit(f"goodput.py: a killed rank ended the run with code {code}, not {PEER_FAILED}: {self.process.stderr.read().decode()}")
        return at

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.watching = False


def mean(x):
    return sum(x) / len(x)


def measure(job, every):
    """Seconds of a step, of a checkpoint, of a restart."""
    job.start()
    job.wait_for(lambda: job.log and job.log[-1][1] >= 4 * every + 1)
    gaps = [(b[0] - a[0], a[1]) for a, b in zip(job.log, job.log[1:]) if b[1] == a[1] + 1]
    step = mean([g for g, at in gaps if at % every])
    stall = mean([g for g, at in gaps if at % every == 0]) - step
    restarts = []
    for _ in range(5):
        killed = job.kill_rank()
        seen = len(job.log)
        job.start()
        job.wait_for(lambda: len(job.log) > seen)
        restarts.append(job.log[seen][0] - killed - step)
        job.wait_for(lambda: len(job.log) > seen + 5)
    return step, max(stall, 0), mean(restarts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("lockstep", nargs="?", default="build/lockstep")
    p.add_argument("--ranks", type=int, default=16)
    p.add_argument("--minutes", type=float, default=5)
    p.add_argument("--between", type=float, default=30, help="mean seconds between failures")
    p.add_argument("--every", type=int, default=60, help="steps between checkpoints")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    random.seed(a.seed)
    every = a.every
    with tempfile.TemporaryDirectory() as folder:
        words = ["the", "step", "rank", "mesh", "loss", "adam"]
        with open(f"{folder}/text.txt", "w") as f:
            f.write(" ".join(random.choice(words) for _ in range(200000)))
        job = Job(a.lockstep, folder, a.ranks, a.every)
        step, stall, restart = measure(job, a.every)
        print(f"measured: step {step:.4f} s, checkpoint {stall:.4f} s, restart {restart:.3f} s")
        seconds = 60 * a.minutes
        command = [a.lockstep, "sim", "-n", str(a.ranks), "--step-seconds", f"{step:.9f}", "--stall", f"{stall:.9f}", "--read", "0",
                   "--detect", "0", "--restart", f"{restart:.9f}", "--repair", "0", "--failures",
                   f"{3600 / a.between / a.ranks:.9f}", "--interval", f"{a.every * step:.9f}", "--days", f"{seconds / 86400:.12f}",
                   "--seed", str(a.seed), "--events", f"{folder}/events.csv", "--json"]
        one = json.loads(subprocess.run(command + ["--runs", "1"], check=True, capture_output=True, text=True).stdout)
        many = json.loads(subprocess.run(command + ["--runs", "1000"], check=True, capture_output=True, text=True).stdout)
        with open(f"{folder}/events.csv") as f:
            stops = [float(r["seconds"]) for r in csv.DictReader(f) if r["event"] == "stop"]
        # The run continues from its last checkpoint, which is where the simulated one begins.
        job.kill_rank()
        base = job.log[-1][1] // a.every * a.every
        seen = len(job.log)
        job.start()
        job.wait_for(lambda: len(job.log) > seen)
        began = job.log[seen][0] - step
        for at in stops:
            job.wait_for(lambda: time.monotonic() >= began + at)
            job.kill_rank()
            job.start()
        job.wait_for(lambda: time.monotonic() >= began + seconds)
        done = max(k for k, x in enumerate(job.log) if x[0] <= began + seconds)
        steps = job.log[done][1] - base
        job.stop()
    # The machine may have become slower or faster since it was measured, so the seconds of a step are those of this run.
    gaps = [b[0] - a[0] for a, b in zip(job.log[seen:done], job.log[seen + 1:done + 1]) if b[1] == a[1] + 1 and a[1] % every]
    real = steps * mean(gaps) / seconds
    print(f"{len(stops)} ranks killed in {seconds:.0f} s")
    print(f"simulated: {one['steps']:.0f} steps, {100 * one['share']['training']:.2f}% of the time; over 1000 runs with other failures "
          f"{100 * many['share']['training']:.2f} +- {100 * many['training_deviation']:.2f}%")
    print(f"real:      {steps} steps of {mean(gaps):.4f} s, {100 * real:.2f}% of the time; "
          f"{100 * (real - one['share']['training']):+.2f} points")


if __name__ == "__main__":
    main()
