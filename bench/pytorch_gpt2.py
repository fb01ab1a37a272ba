#!/usr/bin/env python3
"""pytorch_gpt2.py - speed and peak memory of GPT-2 training steps in PyTorch, on the CPU.

The counterpart of `lockstep bench train`: the same model, batch, dtype and thread count, with the best
settings for PyTorch. bench/peer.py runs both in turn. One JSON line on stdout.

Packages: python3 -m venv V && V/bin/pip install torch numpy

A step is forward, backward and AdamW on random tokens. fp32: weights and arithmetic in fp32
(matrix precision "highest"). bf16: torch.autocast over fp32 weights. No dropout, no activation
checkpointing, no clipping unless --clip; attention by F.scaled_dot_product_attention (causal), the output
projection tied to the embedding.

--tune sets, before PyTorch starts, what its manuals and users' reports recommend on CPUs:
    none    nothing
    malloc  freed blocks stay with the process and are on huge pages, instead of being unmapped and
            faulted in again at every step (glibc's tunables; the same as using jemalloc)
    all     malloc, and MKL is told to use AVX-512 on processors that are not Intel's, where it
            falls back to AVX2 otherwise: a one-line library is compiled and preloaded (needs cc)
"""
import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from gpu import gpt2_block

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
SIZES = {  # layers, width, heads
    "gpt2-124m": (12, 768, 12),
    "gpt2-350m": (24, 1024, 16),
    "gpt2-774m": (36, 1280, 20),
}


def options():
    p = argparse.ArgumentParser(description="GPT-2 training steps in PyTorch on the CPU")
    p.add_argument("--preset", choices=SIZES, default="gpt2-124m")
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--batch", type=int, default=4, help="B, samples of a step")
    p.add_argument("--seq", type=int, default=1024, help="T, tokens of a sample")
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=3, help="timed steps")
    p.add_argument("--warmup", type=int, default=3, help="steps before them; memory settles")
    p.add_argument("--clip", type=float, default=0.0, help="clip the gradient norm (0: don't)")
    p.add_argument("--tune", choices=("none", "malloc", "all"), default="all")
    p.add_argument("--head", choices=("plain", "chunked"), default="plain",
                   help="chunked: F.linear_cross_entropy in chunks, the logits are never materialized")
    p.add_argument("--compile", action="store_true", help="torch.compile the model and the loss")
    return p.parse_args()


def restart_tuned(tune):
    """Settings that must be made before the process starts: sets them and runs this script again."""
    if tune == "none" or os.environ.get("PYTORCH_GPT2_TUNED") == tune:
        return
    env = dict(os.environ, PYTORCH_GPT2_TUNED=tune, **MALLOC)
    if tune == "all":
        folder = tempfile.mkdtemp(prefix="mkl-")
        source, library = os.path.join(folder, "mkl.c"), os.path.join(folder, "libmklcpu.so")
        with open(source, "w") as f:
            f.write("int mkl_serv_intel_cpu_true(void);\n"
                    "int mkl_serv_intel_cpu_true(void) { return 1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        env["LD_PRELOAD"] = " ".join(filter(None, [library, os.environ.get("LD_PRELOAD")]))
    os.execve(sys.executable, [sys.executable] + sys.argv, env)


def make_model(torch, opt):
    nn, F = torch.nn, torch.nn.functional
    layers, width, heads = SIZES[opt.preset]

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(opt.vocab, width), nn.Embedding(opt.seq, width)
            self.blocks = nn.ModuleList(gpt2_block(torch, width, heads, 4 * width) for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.02)

        def forward(self, x, y):  # [B,T] tokens and targets -> mean loss
            h = self.tokens(x) + self.places.weight[:x.shape[1]]
            for block in self.blocks:
                h = block(h)
            h, head = self.norm(h).view(-1, width), self.tokens.weight
            if opt.head == "plain":
                return F.cross_entropy(F.linear(h, head), y.view(-1))
            if opt.dtype == "bf16":
                h, head = h.bfloat16(), head.bfloat16()
            return F.linear_cross_entropy(h, head, y.view(-1), options=nn.LinearCrossEntropyOptions())

    return GPT2()


def flops_per_token(opt):
    """FLOPs of a forward and a backward pass, causal attention counted as half the square."""
    layers, width, _ = SIZES[opt.preset]
    weights = layers * 12 * width * width + opt.vocab * width
    return 6 * weights + 6 * layers * width * opt.seq


def matrix_peak(torch, dtype):
    """FLOP/s of the best of some square matmuls: the ceiling that PyTorch itself reaches. Measured
    before and after the steps, since the machine may be busy at either time."""
    n = 2048
    a, b = (torch.randn(n, n).to(dtype) for _ in range(2))
    c = torch.empty(n, n, dtype=dtype)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        torch.matmul(a, b, out=c)
        best = min(best, time.perf_counter() - start)
    return 2 * n ** 3 / best


def main():
    opt = options()
    restart_tuned(opt.tune)
    os.environ["OMP_NUM_THREADS"] = str(opt.threads)
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(opt.threads)
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(True)
    dtype = torch.bfloat16 if opt.dtype == "bf16" else torch.float32
    peak = matrix_peak(torch, dtype)

    model = make_model(torch, opt)
    loss_of = torch.compile(model) if opt.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(opt.warmup + opt.steps):
        x, y = torch.randint(opt.vocab, (2, opt.batch, opt.seq))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=opt.dtype == "bf16"):
            loss = loss_of(x, y)
        loss.backward()
        if opt.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), opt.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last = loss.item()
        seconds.append(time.perf_counter() - start)

    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = max(peak, matrix_peak(torch, dtype))
    timed = sorted(seconds[opt.warmup:])
    tokens = opt.batch * opt.seq
    rate = tokens / statistics.median(timed)
    print(json.dumps({
        "name": "pytorch", "version": torch.__version__, "python": platform.python_version(),
        "model": opt.preset, "dtype": opt.dtype, "batch": opt.batch, "seq_len": opt.seq,
        "threads": opt.threads, "tune": opt.tune, "head": opt.head, "compile": opt.compile,
        "tokens_per_second": round(rate, 1),
        "tokens_per_second_range": [round(tokens / t, 1) for t in (timed[-1], timed[0])],
        "step_seconds": [round(t, 3) for t in seconds],
        "peak_rss_bytes": rss,
        "mfu": round(rate * flops_per_token(opt) / peak, 4),
        "gemm_peak_flops": round(peak), "loss": round(last, 4),
    }))


if __name__ == "__main__":
    main()
