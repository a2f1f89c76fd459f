#!/usr/bin/env python3
"""NCCL's all-reduces on rails, several communicators at the same time, in the columns of
symwin-perf. bed.sh runs it.

    NCCL_NVLS_ENABLE=0 torchrun --nproc-per-node RANKS bench/scale/lanes.py -n LANES -b 2K -e 256M

Half of the processes are one host for NCCL, half another one; each has a GPU. A rail is a process
of each. It has LANES communicators, each with a stream and as many multiprocessors as one of
symwin's has, and all of them reduce at the same time, in a graph. A call is what symwin's is: a
message and a word, in one group, behind what the main stream has had and before what it gets. A
time is that of one call of each; of repetitions the median, of ranks the slowest.
"""
import argparse
import os
import sys

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from plot import size, version  # pylint: disable=wrong-import-position

COLUMNS = "library,algo,type,op,bytes,count,ranks,calls,repetitions,time_us,wrong,collective"
MOST_BLOCKS = 8  # of a communicator: SW_SPARE / SW_LANES of src/rails/rails.h
REPETITIONS = 7
MANY, FEW = 20, 4  # calls up to 2 MiB, and of more


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=version("lanes.py"))
    parser.add_argument("-n", type=int, required=True, help="communicators of a rail")
    parser.add_argument("-b", type=size, default=2 << 10, help="first size in bytes")
    parser.add_argument("-e", type=size, default=256 << 20, help="largest size")
    parser.add_argument("-f", type=int, default=4, help="factor between sizes")
    return parser.parse_args()


def main():
    options = arguments()
    rank, ranks = int(os.environ.get("RANK", "-1")), int(os.environ.get("WORLD_SIZE", "0"))
    if os.environ.get("NCCL_NVLS_ENABLE") != "0":
        sys.exit("lanes.py: set NCCL_NVLS_ENABLE=0: multicast must stay off")
    if rank < 0 or ranks % 2:
        sys.exit("lanes.py: run it under torchrun, with an even number of processes")
    # Before NCCL starts: it asks for these once.
    os.environ["NCCL_HOSTID"] = f"host-{rank // (ranks // 2)}"
    import torch  # pylint: disable=import-outside-toplevel
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    if torch.cuda.device_count() < ranks:
        sys.exit(f"lanes.py: {ranks} processes need as many GPUs: processes that share one take "
                 "turns on it")
    torch.cuda.set_device(rank)
    dist.init_process_group("gloo")
    run(options, torch, dist, rank, ranks)
    dist.destroy_process_group()


def run(options, torch, dist, rank, ranks):
    settings = dist.ProcessGroupNCCL.Options()
    settings.config.max_ctas = MOST_BLOCKS
    lanes = []
    for rail in range(ranks // 2):  # all processes make all groups, in this order
        for _ in range(options.n):
            group = dist.new_group([rail, rail + ranks // 2], backend="nccl",
                                   pg_options=settings)
            if rail == rank % (ranks // 2):
                lanes.append(group)
    streams = [torch.cuda.Stream() for _ in lanes]
    if rank == 0:
        print(f"# lanes.py, torch {torch.__version__}, NCCL "
              f"{'.'.join(map(str, torch.cuda.nccl.version()))}, {ranks} GPUs, {options.n} "
              "communicators of a rail")
        print(COLUMNS)
    of = options.b
    while of <= options.e:
        time, wrong = measure(torch, dist, lanes, streams, of // 2)
        if rank == 0:
            print(f"nccl,nccl,bf16,sum,{of},{of // 2},2,{calls(of)},{REPETITIONS},{time:.3f},"
                  f"{wrong},allreduce", flush=True)
        of *= options.f


def calls(of):
    return MANY if of <= 2 << 20 else FEW


def measure(torch, dist, lanes, streams, count):
    """(microseconds of a call of each lane, wrong elements of all ranks)"""
    n = calls(2 * count)
    options = dist.AllreduceCoalescedOptions()
    data = [torch.zeros(count, dtype=torch.bfloat16, device="cuda") for _ in lanes]
    words = [torch.zeros(2, dtype=torch.bfloat16, device="cuda") for _ in lanes]
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    main, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def reduce():  # on all lanes
        for stream in streams:
            stream.wait_stream(main)
        for lane, stream, *tensors in zip(lanes, streams, data, words):
            with torch.cuda.stream(stream):
                lane.allreduce_coalesced(tensors, options).wait()
        for stream in streams:
            main.wait_stream(stream)

    with torch.cuda.stream(main):
        reduce()  # connects
        reduce()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=main, capture_error_mode="thread_local"):
        reduce()  # aligns the ranks
        begin.record(main)
        for _ in range(n):
            reduce()
        end.record(main)
    times = []
    for _ in range(REPETITIONS):
        dist.barrier()
        graph.replay()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / n)
    wrong = 0
    for tensor in data:
        tensor.fill_(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(main):
        reduce()
    torch.cuda.synchronize()
    for tensor in data:
        wrong += int((tensor != 2).sum())
    figures = torch.tensor([sorted(times)[len(times) // 2], float(wrong)], dtype=torch.float64)
    slowest = figures.clone()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(figures)
    return float(slowest[0]), int(figures[1])


if __name__ == "__main__":
    main()
