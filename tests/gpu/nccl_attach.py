"""What a communicator costs an unchanged program: times of its creation and its first collective,
and the memory of many.

    python3 -m torch.distributed.run --nproc-per-node 4 tests/gpu/nccl_attach.py [USED]

Run it with libsymwin-nccl.so preloaded and without, and compare. The slowest rank's milliseconds
are printed, of the first communicator, and the median of the others on the same ranks; then how
much less memory the device has with 32 communicators, of which USED were used, 2 by default.
"""
import os
import statistics
import sys
import time

from nccl_ctypes import Communicator, Nccl, mine
from nccl_world import RANK, WORLD, dist, synchronize, torch

OTHERS, MANY = 5, 32
USED = int(sys.argv[1]) if len(sys.argv) > 1 else 2


def slowest(ms):
    """The largest of all ranks' values, over PyTorch's own group on the host."""
    value = torch.tensor([ms])
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def timed(work):
    synchronize()
    dist.barrier()
    start = time.perf_counter()
    result = work()
    synchronize()
    return result, slowest((time.perf_counter() - start) * 1e3)


def main():
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, WORLD,
                          RANK == 0)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD)
    nccl = Nccl()
    data = mine(1024)
    out = torch.empty_like(data)
    times, kept = [], []

    def make(key):
        comm, birth = timed(lambda: Communicator(nccl, store, key))
        kept.append(comm)
        return comm, birth

    for number in range(1 + OTHERS):
        comm, birth = make(f"timed {number}")
        _, first = timed(lambda: comm.all_reduce(data, out))
        _, second = timed(lambda: comm.all_reduce(data, out))
        times.append((birth, first, second))
    if RANK == 0:
        print("first communicator: created in %.1f ms, first all-reduce %.1f, second %.2f" %
              times[0])
        print("the others, medians: created in %.1f ms, first all-reduce %.1f, second %.2f" %
              tuple(statistics.median(column) for column in zip(*times[1:])))
    while kept:
        kept.pop().end()
    dist.barrier()
    free = torch.cuda.mem_get_info()[0]
    for number in range(MANY):
        comm, _ = make(f"many {number}")
        if number < USED:
            comm.all_reduce(data, out)
    synchronize()
    dist.barrier()
    took = slowest((free - torch.cuda.mem_get_info()[0]) / 2**20)
    if RANK == 0:
        print(f"{MANY} communicators, {USED} of them used: {took:.0f} MiB of the device")
    dist.barrier()
    while kept:
        kept.pop().end()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
