#!/usr/bin/env python3
"""comm_gloo.py - collectives of PyTorch's gloo backend, timed in the same way as `lockstep bench comm`; for comm_peer.py.

    torchrun --nproc-per-node 2 bench/comm_gloo.py all_reduce 1024 1048576 268435456
prints for each size (bytes): op, bytes of the complete buffer, and twice the seconds of one call (mean over the timed calls, of the slowest
rank): gloo's all_reduce works only in place, and its all_gather has only one form.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

WARMUP = 3


def calls(op, bytes_, n):
    whole = torch.full((bytes_ // 4,), 1e-30)
    block = torch.full((bytes_ // 4 // n,), 1e-30)
    if op == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole[: block.numel() * n], block)
    return lambda: dist.reduce_scatter_tensor(block, whole[: block.numel() * n])


def main():
    op, sizes = sys.argv[1], [int(b) for b in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for bytes_ in sizes:
        call = calls(op, bytes_, dist.get_world_size())
        iterations = 1000 if bytes_ < 1 << 16 else 100 if bytes_ < 1 << 22 else 10 if bytes_ < 1 << 26 else 3
        for _ in range(WARMUP):
            call()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(iterations):
            call()
        seconds = torch.tensor([(time.perf_counter() - began) / iterations], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(op, bytes_, f"{seconds.item():.9f}", f"{seconds.item():.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
