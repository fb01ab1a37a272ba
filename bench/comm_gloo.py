#!/usr/bin/env python3
"""comm_gloo.py - collectives of PyTorch's gloo backend, timed in the same way as `lockstep bench comm`; for comm_peer.py.

    torchrun --nproc-per-node 2 bench/comm_gloo.py all_reduce 1024:1000 1048576:100
takes BYTES:CALLS of each size and prints: op, bytes of the complete buffer, then median, minimum and maximum of the seconds of a call out
of place, and the same in place; nan for a form that does not exist. gloo's all_reduce and broadcast work only in place and its other
operations have only one form: the figures of an all_reduce are printed for both forms, those of the others as out of place.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

WARMUP = 3


def exchange(send, recv):
    n, me = dist.get_world_size(), dist.get_rank()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, send, (me + 1) % n), dist.P2POp(dist.irecv, recv, (me - 1) % n)]):
        work.wait()


def call_of(op, bytes_, n):
    whole = torch.full((bytes_ // 4,), 1e-30)
    block = torch.full((bytes_ // 4 // n,), 1e-30)
    blocks = whole[: block.numel() * n]
    other = torch.full_like(whole, 1e-30)
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(blocks, block),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(block, blocks),
        "all_to_all": lambda: dist.all_to_all_single(other[: block.numel() * n], blocks),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "sendrecv": lambda: exchange(whole, other),
    }[op]


def seconds_of(call, calls):
    """Of each call, on the slowest rank; sorted."""
    for _ in range(WARMUP):
        call()
    dist.barrier()
    took, before = [], time.perf_counter()
    for _ in range(calls):
        call()
        now = time.perf_counter()
        took.append(now - before)
        before = now
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.sort().values


def main():
    op, sizes = sys.argv[1], [tuple(map(int, word.split(":"))) for word in sys.argv[2:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for bytes_, calls in sizes:
        took = seconds_of(call_of(op, bytes_, dist.get_world_size()), calls)
        middle = (took[(calls - 1) // 2] + took[calls // 2]) / 2
        figures = f"{middle:.9f} {took[0]:.9f} {took[-1]:.9f}"
        none = "nan nan nan"
        if dist.get_rank() == 0:
            print(op, bytes_, none if op == "broadcast" else figures, figures if op in ("all_reduce", "broadcast") else none, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
