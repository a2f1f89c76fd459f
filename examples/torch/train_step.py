#!/usr/bin/env python3
"""One training step whose gradients NCCL all-reduces in memory of symwin's pool.

    torchrun --nproc-per-node 2 examples/torch/train_step.py [build/libsymwin.so]
"""
import ctypes, os, sys

# Before NCCL is loaded: multicast can put a host's GPUs out of service.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
import torch
import torch.distributed as dist
from torch.cuda.memory import CUDAPluggableAllocator, MemPool, use_mem_pool

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)  # device_id creates the communicator
torch.manual_seed(0)  # the same model on all ranks
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(),
                            torch.nn.Linear(2048, 512)).to(device)
torch.manual_seed(1 + dist.get_rank())  # a different batch on each rank
batch = torch.randn(64, 512).to(device)
library = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/libsymwin.so")
allocator = CUDAPluggableAllocator(library, "symwin_torch_alloc", "symwin_torch_free")
pool, backend = MemPool(allocator.allocator()), dist.group.WORLD._get_backend(device)
sizes = [p.numel() for p in model.parameters()]
with use_mem_pool(pool):
    gradients = torch.zeros(sum(sizes), device=device)  # all in one tensor
backend.register_mem_pool(pool)  # ncclCommRegister() for each segment
for p, part in zip(model.parameters(), gradients.split(sizes)):
    p.grad = part.view_as(p)

model(batch).square().mean().backward()
dist.all_reduce(gradients, dist.ReduceOp.AVG)
torch.optim.SGD(model.parameters(), lr=0.1).step()
usage = (ctypes.c_uint64 * 13)()  # symwin_mem_usage: asked, used, ...
ctypes.CDLL(library).symwin_mem_stats(device.index, usage)
print(f"rank {dist.get_rank()}: gradients of norm {gradients.norm():.6e}, "
      f"{gradients.nbytes} bytes; symwin's pool holds {usage[1]}; "
      f"loss after the step {model(batch).square().mean():.6e}", flush=True)

backend.deregister_mem_pool(pool)
del p, part, gradients, model, pool  # the pool must go before its allocator
dist.destroy_process_group()
