#!/usr/bin/env python3
"""gpu.py - training steps of lockstep and PyTorch on one NVIDIA GPU, in turn.

    bench/gpu.py [--lockstep build/lockstep] [--python V/bin/python] [--cases gpt2-124m llama3.2-1b gpt2-1.5b]
                 [--contenders lockstep pytorch tuned] [--seconds 300] [--json FILE]

Both train the same model on random tokens in bf16 with AdamW: f32 master weights and moments, no dropout, no clipping, no recomputation.
PyTorch's side is the model as its users write it: torch.autocast over f32 weights, F.scaled_dot_product_attention by the kernel that it
chooses, torch.compile, fused AdamW; each side runs in a process of its own. tuned: lockstep with --run.tune_matmuls. A step is timed from
its inputs to its loss on the host; the number is the median step's. PyTorch compiles a model of more than 24 layers layer by layer, which
takes as long as one layer; complete, 48 of them take minutes.

MFU = tokens per second x FLOPs per token / the GPU's dense bf16 peak, the same formula for both sides:
    FLOPs per token = 6 x weights of matmuls (the output projection included, the embedding not) + 6 x layers x width x T
where the second term is causal attention counted as half the square, forward and backward. The peak is NVIDIA's published one of the GPU
that nvidia-smi names, or --peak (TFLOP/s); without either no MFU is printed.

Memory: `allocated` is the largest number of bytes that each side's allocator had given out (torch.cuda.max_memory_allocated; lockstep's
ledger); `GPU` is the largest use of the GPU that nvidia-smi saw meanwhile, contexts and other processes included.

--seconds is a budget: a run is stopped when it is used up, and runs without time left are listed. The contenders run one after the other,
each all cases. What is known is printed and written to FILE after each run. Exit code 77 with a reason without a GPU; without torch only
lockstep's side runs, and 1 if a run failed. --device cpu tests this script without a GPU.
"""
import argparse
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace

LEAST_SECONDS, SKIPPED = 10, 77
WARNING = re.compile("warning: |^cuda: |own kernel|kernel of its own", re.IGNORECASE)


@dataclass(frozen=True)
class Case:
    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int

    def matmul_weights(self):
        head, w = self.width // self.heads, self.width
        mlp = (2 if self.family == "gpt2" else 3) * w * self.ffn
        return self.layers * (2 * w * w + 2 * w * self.kv_heads * head + mlp) + self.vocab * w

    def flops_per_token(self):
        return 6 * self.matmul_weights() + 6 * self.layers * self.width * self.seq


CASES = {  # by the names of lockstep's presets, those first that PyTorch compiles first
    "gpt2-124m": Case("gpt2", 12, 768, 12, 12, 3072, 50257, 1024, 32),
    "llama3.2-1b": Case("llama", 16, 2048, 32, 8, 8192, 128256, 4096, 4),
    "gpt2-1.5b": Case("gpt2", 48, 1600, 25, 25, 6400, 50257, 1024, 8),
}
TINY = {  # for tests
    "gpt2-tiny": Case("gpt2", 2, 64, 4, 4, 256, 256, 64, 2),
    "llama-tiny": Case("llama", 2, 64, 4, 2, 160, 256, 64, 2),
}
TIED = {"gpt2-124m", "gpt2-1.5b", "gpt2-tiny", "llama3.2-1b"}
KEPT = ("version", "parameters", "step_seconds", "tokens_per_second", "loss", "first_seconds", "allocated_bytes", "reserved_bytes",
        "memory", "compiled")
MOST_COMPILED = 24  # layers that are compiled as one model
NAMES = {"lockstep": "lockstep", "tuned": "lockstep, matmuls tuned", "pytorch": "PyTorch, compiled"}
PEAKS = {  # dense bf16 TFLOP/s of NVIDIA's data sheets, by a word of nvidia-smi's name; the first match counts
    "B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "A10": 125,
}


def options():
    p = argparse.ArgumentParser(description="lockstep compared with PyTorch on one GPU")
    p.add_argument("--lockstep", default="build/lockstep", help="the command")
    p.add_argument("--python", default=sys.executable, help="a Python that has torch")
    p.add_argument("--cases", nargs="+", choices=list(CASES) + list(TINY), default=list(CASES))
    p.add_argument("--contenders", nargs="+", choices=NAMES, default=["lockstep", "pytorch", "tuned"])
    p.add_argument("--batch", type=int, help="samples per step, for all cases")
    p.add_argument("--steps", type=int, default=10, help="timed steps")
    p.add_argument("--warmup", type=int, default=4, help="steps before them")
    p.add_argument("--seconds", type=float, default=300, help="budget of all runs together")
    p.add_argument("--peak", type=float, help="the GPU's dense bf16 peak in TFLOP/s")
    p.add_argument("--json", help="write the results to this file")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--as-pytorch", metavar="CASE", help=argparse.SUPPRESS)  # the process of PyTorch's side
    return p.parse_args()


def case_of(o, name):
    case = {**CASES, **TINY}[name]
    return replace(case, batch=o.batch) if o.batch else case


# ---- PyTorch's side, in a process of its own ----

def rotary_tables(torch, case, name, device):
    """cos and sin of the rotary positions, [T,D]; Llama 3.2 stretches its long wavelengths."""
    head = case.width // case.heads
    theta = 10000.0 if name in TINY else 500000.0
    frequency = theta ** (-torch.arange(0, head, 2, device=device, dtype=torch.float32) / head)
    if name not in TINY:
        wavelengths = 8192 * frequency / (2 * torch.pi)  # relative to the context length of the first training
        smooth = ((wavelengths - 1) / 3).clamp(0, 1)
        frequency = frequency * (smooth + (1 - smooth) / 32)
    angle = torch.outer(torch.arange(case.seq, device=device, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


@functools.cache
def gpt2_block_class(torch):
    """A layer of GPT-2 in plain PyTorch, without dropout; bench/pytorch_gpt2.py has the same. Layers of one class are compiled once."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, width, heads, ffn):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

        def forward(self, x):  # [B,T,C] -> [B,T,C]
            B, T, C = x.shape
            q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(C, dim=2))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).reshape(B, T, C))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    return Block


def make_gpt2(torch, case, tied):
    nn, F, width = torch.nn, torch.nn.functional, case.width
    block = gpt2_block_class(torch)

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(case.vocab, width), nn.Embedding(case.seq, width)
            self.blocks = nn.ModuleList(block(width, case.heads, case.ffn) for _ in range(case.layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, case.vocab, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, x, y):  # [B,T] tokens and targets -> mean loss
            h = self.tokens(x) + self.places.weight[:x.shape[1]]
            for layer in self.blocks:
                h = layer(h)
            return self.loss(h, y)

        def loss(self, h, y):
            return F.cross_entropy(self.head(self.norm(h)).view(-1, case.vocab), y.view(-1))

    return GPT2()


def make_llama(torch, case, tied, tables):
    nn, F = torch.nn, torch.nn.functional
    width, heads, kv, head = case.width, case.heads, case.kv_heads, case.width // case.heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            self.q, self.k, self.v = (nn.Linear(width, n * head, bias=False) for n in (heads, kv, kv))
            self.out = nn.Linear(width, width, bias=False)
            self.gate, self.up = (nn.Linear(width, case.ffn, bias=False) for _ in range(2))
            self.down = nn.Linear(case.ffn, width, bias=False)

        def rotate(self, x, cos, sin):  # [B,H,T,D]
            first, second = x.chunk(2, dim=-1)
            return (x * cos + torch.cat([-second, first], -1) * sin).to(x.dtype)

        def forward(self, x, cos, sin):  # [B,T,C] -> [B,T,C]
            B, T, C = x.shape
            h = self.norm1(x)
            q, k, v = (w(h).view(B, T, -1, head).transpose(1, 2) for w in (self.q, self.k, self.v))
            a = F.scaled_dot_product_attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, is_causal=True,
                                               enable_gqa=kv != heads)
            x = x + self.out(a.transpose(1, 2).reshape(B, T, C))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.norm = nn.Embedding(case.vocab, width), nn.RMSNorm(width, eps=1e-5)
            self.blocks = nn.ModuleList(Block() for _ in range(case.layers))
            self.head = nn.Linear(width, case.vocab, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, x, y):  # [B,T] tokens and targets -> mean loss
            h = self.tokens(x)
            for layer in self.blocks:
                h = layer(h, *tables)
            return self.loss(h, y)

        def loss(self, h, y):
            return F.cross_entropy(self.head(self.norm(h)).view(-1, case.vocab), y.view(-1))

    return Llama()


def make_model(torch, case, name, device):
    with torch.device(device):
        if case.family == "gpt2":
            model = make_gpt2(torch, case, name in TIED)
        else:
            model = make_llama(torch, case, name in TIED, rotary_tables(torch, case, name, device))
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02)
    return model


def compiled_as(case):
    return "whole" if case.layers <= MOST_COMPILED else "by layer"


def compile_model(torch, model, case):
    if compiled_as(case) == "whole":
        return torch.compile(model)
    for layer in model.blocks:
        layer.compile()
    model.loss = torch.compile(model.loss)
    return model


def time_pytorch(o, torch, model, case):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = compile_model(torch, model, case)
    seconds, losses = [], []
    for _ in range(o.warmup + o.steps):
        x, y = torch.randint(case.vocab, (2, case.batch, case.seq), device=o.device)
        start = time.perf_counter()
        with torch.autocast(o.device, torch.bfloat16):
            loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())  # waits for the loss alone
        if o.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds, losses


def run_as_pytorch(o):
    """One JSON line on stdout, as `lockstep bench train --json` prints it."""
    import torch

    name = o.as_pytorch
    case = case_of(o, name)
    if o.device == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")
    torch.manual_seed(1)
    model = make_model(torch, case, name, o.device)
    seconds, losses = time_pytorch(o, torch, model, case)
    step = statistics.median(seconds[o.warmup:])
    on_gpu = o.device == "cuda"
    print(json.dumps({
        "version": torch.__version__, "parameters": sum(p.numel() for p in model.parameters()), "step_seconds": step,
        "tokens_per_second": case.batch * case.seq / step, "loss": losses[-1], "first_seconds": seconds[0],
        "compiled": compiled_as(case),
        "allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }))


# ---- running both sides ----

def find_gpu(o):
    """Name and dense bf16 peak of the GPU; None if they are not known."""
    name = None
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
        name = out.stdout.splitlines()[0].strip() if out.returncode == 0 and out.stdout.strip() else None
    except (OSError, subprocess.TimeoutExpired):
        pass
    known = next((peak for part, peak in PEAKS.items() if re.search(rf"\b{part}\b", name or "")), None)
    return name, (o.peak or known) and (o.peak or known) * 1e12


class MemoryWatch:
    """The largest use of the first GPU that nvidia-smi sees meanwhile, in bytes; None without nvidia-smi."""

    def __enter__(self):
        self.most, self.child = None, None
        try:
            argv = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "200"]
            self.child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        return self

    def read(self):
        for line in self.child.stdout:
            if line.strip().isdigit():
                self.most = max(self.most or 0, int(line) << 20)

    def __exit__(self, *_):
        if self.child:
            self.child.terminate()
            self.child.wait()
            self.reader.join(5)


def command(o, name, who):
    case = case_of(o, name)
    if who == "pytorch":
        return [o.python, os.path.abspath(__file__), f"--as-pytorch={name}", f"--batch={case.batch}", f"--steps={o.steps}",
                f"--warmup={o.warmup}", f"--device={o.device}"]
    line = [o.lockstep, "bench", "train", f"--model.preset={name}", f"--data.seq_len={case.seq}", f"--train.micro_batch={case.batch}",
            "--train.accumulate=1", "--precision.compute=bf16", "--optim.clip=0", f"--run.device={o.device}",
            "--run.measure_peak=off", f"--bench.steps={o.steps}", f"--bench.warmup={o.warmup}", "--json"]
    return line + (["--run.tune_matmuls"] if who == "tuned" else [])


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def run(argv, seconds):
    """The JSON that the command printed last with status ok, or status and reason; and the end of what it wrote to stderr."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, MemoryWatch() as memory:
        try:
            code = subprocess.run(argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = None
        except OSError as e:
            return {"status": "failed", "reason": f"{argv[0]}: {e.strerror}"}
        out.seek(0)
        err.seek(0)
        objects = [s for s in out.read().splitlines() if s.startswith("{")]
        said = err.read()
    kept = {"stderr": said[-3000:]} if said else {}
    if code is None:
        return {"status": "no time", "reason": f"stopped after {seconds:.0f} s", **kept}
    if code != 0 or not objects:
        missing = "No module named 'torch'" in said or "PyTorch sees no GPU" in said or ": run.device=cuda: " in said
        return {"status": "skipped" if missing else "failed", "exit_code": code, "reason": reason_of(said), **kept}
    result = json.loads(objects[-1])
    if "memory" in result:
        result["allocated_bytes"] = result["memory"].get("gpu_peak", result["memory"]["peak"])
    result = {key: result[key] for key in KEPT if key in result}
    return {"status": "ok", **result, **kept, "gpu_bytes": memory.most, "run_seconds": time.monotonic() - began}


def reason_of(said):
    """The last error of stderr: PyTorch prints advice after its own."""
    errors = [line for line in said.splitlines() if re.match(r"lockstep\b.*: |[\w.]*(Error|Exception)\b", line)]
    return last_line("\n".join(errors) or said)


def measure(o, peak, keep):
    """A row per contender and case, all cases of one contender before those of the next: PyTorch compiles for minutes. keep(rows) after
    each."""
    end = time.monotonic() + o.seconds
    rows = []
    for who in o.contenders:
        for name in o.cases:
            case = case_of(o, name)
            left = end - time.monotonic()
            row = run(command(o, name, who), left) if left >= LEAST_SECONDS else {"status": "no time", "reason": "the budget was used up"}
            other = next((r["parameters"] for r in rows if r["case"] == name and r["status"] == "ok"), row.get("parameters"))
            if row["status"] == "ok" and row["parameters"] != other:
                row = {"status": "failed", "reason": f"{row['parameters']} parameters, but the other side has {other}"}
            if row["status"] == "ok" and peak:
                row["mfu"] = row["tokens_per_second"] * case.flops_per_token() / peak
            rows.append({"case": name, "contender": who, "batch": case.batch, "seq_len": case.seq,
                         "flops_per_token": case.flops_per_token(), **row})
            print("  " + line_of(rows[-1]), file=sys.stderr)
            for warning in dict.fromkeys(s for s in row.get("stderr", "").splitlines() if WARNING.search(s)):
                print("    " + warning, file=sys.stderr)
            keep(by_case(o, rows))
    return by_case(o, rows)


def by_case(o, rows):
    rows = sorted(rows, key=lambda r: o.cases.index(r["case"]))  # those of a case stay in their order
    add_ratios(rows)
    return rows


def add_ratios(rows):
    for row in rows:
        peer = next((r for r in rows if r["case"] == row["case"] and r["contender"] == "pytorch" and r["status"] == "ok"), None)
        if row["status"] == "ok" and row["contender"] != "pytorch" and peer:
            row["speed_ratio"] = row["tokens_per_second"] / peer["tokens_per_second"]
            if row.get("gpu_bytes") and peer.get("gpu_bytes"):
                row["memory_ratio"] = row["gpu_bytes"] / peer["gpu_bytes"]


def gib(n):
    return f"{n / 2 ** 30:7.2f} GiB" if n else f"{'-':>11s}"


def line_of(r):
    start = f"{r['case']:12s} {NAMES[r['contender']]:23s} {r['batch']:3d} {r['seq_len']:5d} "
    if r["status"] != "ok":
        return f"{start}{r['status']}: {r['reason']}"
    mfu = f"{100 * r['mfu']:5.1f}%" if "mfu" in r else f"{'-':>6s}"
    ratios = [f"{r[k]:.2f}" if k in r else "" for k in ("speed_ratio", "memory_ratio")]
    return (f"{start}{r['tokens_per_second']:10.0f} {r['step_seconds'] * 1e3:6.1f} ms {mfu} {gib(r.get('allocated_bytes'))} "
            f"{gib(r.get('gpu_bytes'))} {ratios[0]:>7s} {ratios[1]:>8s}")


def table(rows, gpu, peak):
    known = f"dense bf16 peak {peak / 1e12:.0f} TFLOP/s" if peak else "its bf16 peak is not known, so no MFU"
    print(f"{gpu or 'no GPU known'}; {known}")
    print(f"{'model':12s} {'':23s} {'B':>3s} {'T':>5s} {'tokens/s':>10s} {'step':>9s} {'MFU':>6s} {'allocated':>11s} {'GPU':>11s} "
          f"{'speed x':>7s} {'memory x':>8s}")
    for r in rows:
        print(line_of(r))
    print("speed x, memory x: lockstep / PyTorch, of tokens per second and of the GPU's memory")
    ratios = [f"{r['case']} {r['speed_ratio']:.2f}" for r in rows if r["contender"] == "lockstep" and "speed_ratio" in r]
    late = sum(r["status"] == "no time" for r in rows)
    print(f"tokens per second, lockstep / PyTorch: {', '.join(ratios) or 'nothing to compare'}"
          + (f"; {late} of {len(rows)} runs had no time" if late else ""))


def write_json(o, gpu, peak, rows):
    """In one piece, so that a reader, or a run that is ended, finds the last complete file."""
    with open(o.json + ".part", "w") as f:
        json.dump({"gpu": gpu, "bf16_peak_flops": peak, "steps": o.steps, "warmup": o.warmup, "rows": rows}, f, indent=1)
        f.write("\n")
    os.replace(o.json + ".part", o.json)


def main():
    o = options()
    if o.as_pytorch:
        run_as_pytorch(o)
        return
    gpu, peak = find_gpu(o) if o.device == "cuda" else (None, o.peak and o.peak * 1e12)
    rows = measure(o, peak, lambda known: o.json and write_json(o, gpu, peak, known))
    table(rows, gpu, peak)
    statuses = {r["status"] for r in rows}
    if "failed" in statuses:
        sys.exit(1)
    if "ok" not in statuses and statuses != {"skipped"}:
        sys.exit("nothing was measured")
    if statuses == {"skipped"}:
        print(f"skipped: {rows[0]['reason']}")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
