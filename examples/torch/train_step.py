#!/usr/bin/env python3
"""One step of training whose gradients NCCL all-reduces in memory of symwin's pool.

    torchrun --nproc-per-node 2 examples/torch/train_step.py [build/libsymwin.so]

The same step with gradients in PyTorch's own memory must give the same model.
"""
import copy
import ctypes
import os
import pathlib
import sys

for name, off in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")):
    os.environ.setdefault(name, off)  # before NCCL is loaded: multicast can put a host's GPUs out of service
try:
    import torch
    import torch.distributed as dist
    from torch.cuda.memory import CUDAPluggableAllocator, MemPool, use_mem_pool
except ImportError as error:
    sys.exit(f"train_step.py: PyTorch 2.6 or later is needed: {error}")
if not torch.cuda.is_available() or "LOCAL_RANK" not in os.environ:
    sys.exit("train_step.py: run it under torchrun, on a machine with GPUs")
library = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/libsymwin.so").resolve()
if not library.exists():
    sys.exit(f"train_step.py: there is no {library}: build it by make, or give its path")


def train(model, batch, gradients):
    """One step; all gradients are parts of one flat tensor, which is averaged over the ranks."""
    gradients.zero_()
    parts = gradients.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts):
        p.grad = part.view_as(p)
    model(batch).square().mean().backward()
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)  # with a device: the communicator is there from here on
backend = dist.group.WORLD._get_backend(device)
if not hasattr(backend, "register_mem_pool"):
    sys.exit(f"train_step.py: PyTorch {torch.__version__} cannot register a pool with NCCL: 2.6 or later is needed")

torch.manual_seed(0)  # the same model on all ranks
plain = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).to(device)
model = copy.deepcopy(plain)
count = sum(p.numel() for p in model.parameters())
torch.manual_seed(1 + dist.get_rank())  # and another batch on each
batch = torch.randn(64, 512, device=device)

allocator = CUDAPluggableAllocator(str(library), "symwin_torch_alloc", "symwin_torch_free")
pool = MemPool(allocator.allocator())
with use_mem_pool(pool):
    gradients = torch.empty(count, device=device)
backend.register_mem_pool(pool)  # ncclCommRegister() for each of its segments
train(model, batch, gradients)
train(plain, batch, torch.empty(count, device=device))
for a, b in zip(model.parameters(), plain.parameters()):
    torch.testing.assert_close(a, b)

usage = (ctypes.c_uint64 * 13)()  # symwin_mem_usage: asked, used, reserved, ..., allocations is the eighth
if ctypes.CDLL(str(library)).symwin_mem_stats(device.index, usage) != 0 or usage[1] < gradients.nbytes:
    sys.exit(f"train_step.py: the gradients, {gradients.nbytes} bytes, are not in symwin's pool, which holds {usage[1]}")
print(f"rank {dist.get_rank()}: {gradients.nbytes} bytes of gradients in symwin's pool, which holds {usage[7]} "
      f"allocations of {usage[1]} bytes; the step equals the plain one", flush=True)

torch.cuda.synchronize()
backend.deregister_mem_pool(pool)
for p in model.parameters():
    p.grad = None  # a part of what is freed now; the pool must go before its allocator
del gradients, pool
dist.destroy_process_group()
