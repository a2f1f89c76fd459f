"""What tests/gpu/nccl_*.py have in common: the rank, the device and the backend.

Import it before torch. Ranks may share a GPU: NCCL refuses that on one host, so NCCL_HOSTID makes
each rank a host of its own, and NCCL sends over sockets. Where each rank has its own GPU, set
NCCL_HOSTID to one text for all ranks. NCCL_WORLD_HOSTS=2: for symwin, half of the ranks are on
another host.
"""
import datetime
import os
import sys

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ.setdefault("NCCL_HOSTID", f"rank{RANK}")
if "NCCL_WORLD_HOSTS" in os.environ:
    os.environ["SYMWIN_HOST_ID"] = f"host{RANK * int(os.environ['NCCL_WORLD_HOSTS']) // WORLD}"
os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic algorithms
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

CUDA = "gloo" not in sys.argv[1:]
DEVICE = torch.device("cpu")
if CUDA:
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(DEVICE)


def begin():
    """Creates the process group: over NCCL, or with the argument `gloo` over Gloo without GPUs."""
    limit = datetime.timedelta(seconds=120)
    if CUDA:
        dist.init_process_group("nccl", device_id=DEVICE, timeout=limit)
    else:
        dist.init_process_group("gloo", timeout=limit)


def synchronize():
    if CUDA:
        torch.cuda.synchronize(DEVICE)


def say(text):
    """One write: ranks print at the same time, and torchrun's Python writes the end of a line by
    itself."""
    print(f"rank {RANK}: {text}\n", end="", flush=True)


def value(rank, count, salt=0, most=13):
    """Integers from 0 to most - 1 that look random, as int64, the same on every rank."""
    index = torch.arange(count, device=DEVICE) + 1000003 * rank + 7000003 * salt
    return (index * 2654435761 >> 13) % most


def cast(tensor, dtype):
    """Integers as another type; to 8-bit floats by way of float32."""
    return tensor.float().to(dtype) if dtype.is_floating_point else tensor.to(dtype)


class Checks:
    """Counts what was compared."""

    def __init__(self, name):
        self.name, self.made, self.failed, self.refused = name, 0, 0, []

    def equal(self, what, found, expected):
        """Every element must be equal. The expected ones are converted to the type found."""
        self.made += 1
        expected = cast(expected, found.dtype)
        if found.is_floating_point() and found.element_size() == 1:
            found, expected = found.float(), expected.float()
        if found.shape == expected.shape and torch.equal(found, expected):
            return
        self.failed += 1
        if self.failed > 20:
            return
        if found.shape != expected.shape:
            say(f"{self.name}: {what}: shape {found.shape}, not {expected.shape}")
            return
        wrong = (found != expected).flatten().nonzero().flatten()
        first = wrong[0].item()
        say(f"{self.name}: {what}: {len(wrong)} of {found.numel()} are wrong, the first at {first}:"
            f" {found.flatten()[first].item()}, not {expected.flatten()[first].item()}")

    def attempt(self, what, call, optional=False):
        """Makes calls that PyTorch may refuse on all ranks: Gloo lacks some, as does NCCL for
        8-bit floats."""
        try:
            call()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            if CUDA and not optional:
                raise
            self.refused.append(what)
            if RANK == 0:
                say(f"{self.name}: {what}: refused: {str(error).splitlines()[0][:150]}")

    def end(self):
        """Prints the counts. Returns whether all was right."""
        refused = f", {len(self.refused)} refused" if self.refused else ""
        say(f"{self.name}: {self.made} checks, {self.failed} failed{refused}")
        return self.failed == 0 and self.made > 0
