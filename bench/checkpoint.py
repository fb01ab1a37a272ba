#!/usr/bin/env python3
"""checkpoint.py - saving and loading of checkpoints compared with torch.save, safetensors and the disk itself, in alternating runs.

    bench/checkpoint.py --python V/bin/python [--build build] [--folder /tmp/checkpoint-bench] [--preset gpt2-124m] [--rounds 3]

V is an environment with torch and safetensors; gcc compiles bench/checkpoint.c. All write the same bytes: the preset's parameters and
AdamW's two moments in f32, each in its own shape, then fsync (lockstep also syncs its folder and hashes everything twice: files and
blocks). "disk" writes the bytes from one buffer in 8 MiB calls and reads them in the same way into new memory. A load is into new memory,
cold (the files' pages are dropped by posix_fadvise first; a hypervisor may still cache them) and warm; lockstep checks the hashes of
everything it reads. The table has medians over the rounds in GB/s, the range, and the ratio to the disk's median.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

THEIRS = """
import json, os, sys, time, torch, safetensors.torch, numpy
folder, header = sys.argv[1], json.loads(sys.argv[2])
tensors = {k: torch.randn(shape) for k, shape in header.items()}
total = sum(t.numel() * 4 for t in tensors.values())
block = torch.randn(8 << 18).numpy().view(numpy.uint8)

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def drop(path):
    sync(path)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

def raw_save(path):
    with open(path, "wb", buffering=0) as f:
        for at in range(0, total, block.nbytes):
            f.write(block[:min(block.nbytes, total - at)])
    sync(path)

def raw_load(path):
    out = numpy.empty(total, numpy.uint8)
    with open(path, "rb", buffering=0) as f:
        at = 0
        while at < total:
            at += f.readinto(out[at:at + block.nbytes])
    return out

def torch_save(path):
    torch.save(tensors, path)
    sync(path)

def safetensors_save(path):
    safetensors.torch.save_file(tensors, path)
    sync(path)

def safetensors_load(path):
    return {k: t.clone() for k, t in safetensors.torch.load_file(path).items()}  # load_file only maps the file

ways = {"disk": (raw_save, raw_load), "torch": (torch_save, lambda p: torch.load(p, weights_only=True)),
        "safetensors": (safetensors_save, safetensors_load)}
print(json.dumps({"torch": torch.__version__, "safetensors": safetensors.__version__, "bytes": total}), flush=True)
for line in sys.stdin:
    who, what = line.split()
    path = os.path.join(folder, who)
    if what == "drop":
        drop(path)
    if what == "remove" and os.path.exists(path):
        os.remove(path)
    began = time.perf_counter()
    kept = ways[who][0](path) if what == "save" else ways[who][1](path) if what == "load" else None
    seconds = time.perf_counter() - began
    del kept
    print(seconds, flush=True)
"""

WAYS = ("disk", "lockstep", "torch", "safetensors")


def options():
    p = argparse.ArgumentParser(description="saving and loading of checkpoints beside torch.save, safetensors and the disk itself")
    p.add_argument("--build", default="build")
    p.add_argument("--python", default=sys.executable, help="python with torch and safetensors")
    p.add_argument("--folder", default=None, help="folder on the disk to measure; default: the system's temporary folder")
    p.add_argument("--preset", default="gpt2-124m")
    p.add_argument("--rounds", type=int, default=3)
    return p.parse_args()


def start(argv):
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        sys.exit(f"checkpoint.py: '{line}' failed")
    return float(answer)


def drop(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def shapes(o, ours, root):
    """The saved tensors, from the manifest of an untimed first save."""
    ask(ours, f"save {root}")
    with open(os.path.join(root, "step_00000001", "manifest.json")) as f:
        manifest = json.load(f)
    return {f"{t['kind']}:{t['name']}": t["shape"] for t in manifest["tensors"]}


def measure(ours, theirs, who, root):
    """Seconds of a save, a cold and a warm load."""
    saved = os.path.join(root, "step_00000001")
    if who == "lockstep":
        shutil.rmtree(saved, ignore_errors=True)
        seconds = [ask(ours, f"save {root}")]
        drop(saved)
        return seconds + [ask(ours, f"load {saved}"), ask(ours, f"load {saved}")]
    ask(theirs, f"{who} remove")
    seconds = [ask(theirs, f"{who} save")]
    ask(theirs, f"{who} drop")
    return seconds + [ask(theirs, f"{who} load"), ask(theirs, f"{who} load")]


def main():
    o = options()
    folder = tempfile.mkdtemp(prefix="checkpoint-bench-", dir=o.folder)
    program, root = os.path.join(folder, "program"), os.path.join(folder, "root")
    subprocess.run(["gcc", "-std=c11", "-O2", "-I" + os.path.join(HERE, "..", "include"), os.path.join(HERE, "checkpoint.c"), "-o", program,
                    "-L" + o.build, "-llockstep", "-Wl,-rpath," + os.path.abspath(o.build)], check=True)
    try:
        ours = start([program, o.preset])
        theirs = start([o.python, "-c", THEIRS, folder, json.dumps(shapes(o, ours, root))])
        facts = json.loads(theirs.stdout.readline())
        rates = {who: [[], [], []] for who in WAYS}
        for _ in range(o.rounds):
            for who in WAYS:
                for k, seconds in enumerate(measure(ours, theirs, who, root)):
                    rates[who][k].append(facts["bytes"] / seconds / 1e9)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"# {o.preset} with AdamW's state, {facts['bytes'] / 1e9:.2f} GB, torch {facts['torch']}, safetensors {facts['safetensors']}; "
          f"GB/s, median (range) of {o.rounds} rounds, x: of the disk's")
    print("| | save and fsync | load, cold | load, warm |\n|---|---|---|---|")
    for who in WAYS:
        cells = []
        for k in range(3):
            middle, disk = statistics.median(rates[who][k]), statistics.median(rates["disk"][k])
            cells.append(f"{middle:.2f} ({min(rates[who][k]):.2f}-{max(rates[who][k]):.2f}), {middle / disk:.2f}x")
        print(f"| {who} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
