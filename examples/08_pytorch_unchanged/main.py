#!/usr/bin/env python3
"""A PyTorch program that knows nothing of symwin: DDP, FSDP, and inference with CUDA graphs.

    torchrun --nproc-per-node 2 main.py RESULTS

Rank 0 writes the file RESULTS: for each part its results, as hexadecimal floats, and the time of a
step. compare.py compares two such files.
"""
import json
import os
import statistics
import sys
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast can put a host's GPUs out of service
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same results in every run
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

STEPS, WARM, WIDTH, TOKENS, LAYERS = 110, 10, 1024, 32, 4
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gpus = torch.cuda.device_count()
if gpus == 0:
    sys.exit("main.py: PyTorch finds no GPU")
if gpus < int(os.environ["LOCAL_WORLD_SIZE"]):
    # Ranks share GPUs, which NCCL allows to ranks of different hosts only. It then sends over
    # sockets, so times mean nothing.
    os.environ["NCCL_HOSTID"] = f"rank{rank}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)


def timed(step):
    """Runs all steps. Returns their results, and the milliseconds of a step: the median of rows of
    WARM steps, without the first row."""
    values, rows = [], []
    for first in range(0, STEPS, WARM):
        begin = time.perf_counter()
        values += [step(i) for i in range(first, first + WARM)]
        torch.cuda.synchronize()
        rows.append(1000 * (time.perf_counter() - begin) / WARM)
    return {"results": [float(value).hex() for value in values],
            "ms": statistics.median(rows[1:])}


def batch(step):
    """Other data for each rank and step, the same in every run."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(TOKENS, WIDTH, generator=generator).to(device)


def blocks():
    """The same weights on all ranks and in every run."""
    torch.manual_seed(1)
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH),
                            torch.nn.GELU(), torch.nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(LAYERS))).to(device)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [batch(i) for i in range(STEPS)]

    def step(i):
        x = batches[i]
        loss = (model(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    return timed(step)


def ddp():
    """Gradients are averaged by all-reduces of buckets."""
    return train(torch.nn.parallel.DistributedDataParallel(blocks(), device_ids=[device.index]))


def fsdp():
    """Weights are all-gathered before a block runs, gradients reduce-scattered after it."""
    model = blocks()
    for block in model:
        fully_shard(block)
    return train(fully_shard(model))


class TensorParallel(torch.nn.Module):
    """Each rank has a part of the inner width. An all-reduce adds what the ranks have."""

    def __init__(self):
        super().__init__()
        inner = 4 * WIDTH // world
        self.up = torch.nn.Linear(WIDTH, inner, bias=False)
        self.down = torch.nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x):
        y = self.down(torch.nn.functional.silu(self.up(x)))
        dist.all_reduce(y)
        return torch.nn.functional.rms_norm(x + y, (WIDTH,))


@torch.no_grad()
def inference():
    """One CUDA graph of all layers, replayed for each new input."""
    torch.manual_seed(2 + rank)
    model = torch.nn.Sequential(*(TensorParallel() for _ in range(LAYERS)))
    model = model.to(device, torch.bfloat16)
    tokens = torch.zeros(TOKENS, WIDTH, device=device, dtype=torch.bfloat16)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # PyTorch asks for a run before the capture
        model(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(tokens)
    inputs = [torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(i)).to(tokens)
              for i in range(STEPS)]  # the same on all ranks
    places = torch.arange(1, WIDTH + 1, device=device) / WIDTH

    def step(i):
        tokens.copy_(inputs[i])
        graph.replay()
        return (out.float() * places).square().mean()
    return timed(step)


torch.cuda.set_device(device)
torch.use_deterministic_algorithms(True)
dist.init_process_group("nccl", device_id=device)
results = {"DDP": ddp(), "FSDP": fsdp(), "inference": inference()}
if rank == 0:
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"ranks": world, "gpus": min(gpus, world), "parts": results}, file)
dist.barrier()
torch.cuda.synchronize()
dist.destroy_process_group()
