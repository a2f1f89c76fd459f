#!/usr/bin/env python3
"""PyTorch's symmetric-memory collectives, timed as in symwin-perf, in the columns of its CSV.

    TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 \\
        torchrun --nproc-per-node 4 bench/rivals/torch_symm.py -b 1K -e 512M -d bf16 >torch.csv
    bench/plot.py --output picture.svg ours.csv torch.csv

symwin-perf --against torch runs this and adds the rows to its own table.

Of the all-reduce: torch-one-shot (torch.ops.symm_mem.one_shot_all_reduce_out, out of place) and
torch-two-shot (torch.ops.symm_mem.two_shot_all_reduce_, which works in place only; out of place it
is timed with a copy of the input to symmetric memory before it, as a program with its input
elsewhere needs). Of the reduce-scatter: torch-reduce-scatter (reduce_scatter_out), which changes
its input. Of the all-gather: torch-low-contention (_low_contention_all_gather), which allocates its
output. The multimem operations are left out, and the script refuses to run unless multicast is
switched off: a faulty multicast program can put a host's GPUs out of service.

A repetition is: a kernel that sleeps while the hosts queue the rest, a barrier of all GPUs through
symmetric memory, an event, a CUDA graph of the calls (with -G 0 the calls themselves), an event. As
in symwin-perf, the slowest rank's time counts, the median over the repetitions is printed, and
results are compared exactly, before and after.
"""
import argparse
import ctypes
import datetime
import os
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from plot import size, version  # pylint: disable=wrong-import-position

COLUMNS = ("library,algo,type,op,bytes,count,placement,memory,mode,ranks,calls,repetitions,time_us,"
           "algbw_gbs,busbw_gbs,wrong,p50_us,p99_us,max_us,host_us,ratio,collective")
# How often a byte crosses a link, times (n - 1) / n.
CROSSINGS = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1}
SLEEP_CYCLES = 4_000_000  # about 2 ms, longer than a graph launch
SLEEP_CYCLES_A_CALL = 200_000  # about 0.1 ms, longer than a launch of a call


def refuse_multicast():
    """Ends the program unless multicast is off. Call before torch is imported."""
    for name, want in (("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"), ("NCCL_NVLS_ENABLE", "0")):
        if os.environ.get(name) != want:
            sys.exit(f"torch_symm.py: set {name}={want}: multicast must stay off")


def end_with_torchrun():
    """The process is killed if torchrun ends: a kernel that goes on would share the GPU with all
    that is measured later."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=version("torch_symm.py"))
    parser.add_argument("-b", type=size, default=1 << 10, help="first size in bytes")
    parser.add_argument("-e", type=size, default=256 << 20, help="last size")
    parser.add_argument("-f", type=int, default=4, help="factor between sizes")
    parser.add_argument("--sizes", type=lambda text: [size(word) for word in text.split(",")],
                        default=[], metavar="LIST", help="these, with commas, instead of -b -e -f")
    parser.add_argument("-d", choices=("f32", "bf16"), default="bf16", help="type")
    parser.add_argument("--collective", choices=sorted(CROSSINGS), default="allreduce")
    parser.add_argument("-n", type=int, default=0, help="calls; 50 up to 16 MiB, 20 above")
    parser.add_argument("-w", type=int, default=5, help="warm-up calls")
    parser.add_argument("-G", type=int, default=9, help="graph replays; 0: stream launches")
    parser.add_argument("--rounds", type=int, default=9, help="repetitions of stream launches")
    parser.add_argument("--placement", choices=("out", "in", "both"), default="both",
                        help="of the result: the one-shot's is out of place")
    parser.add_argument("--one-shot-most", type=size, default=16 << 20,
                        help="largest size for the one-shot, which sends all to all")
    options = parser.parse_args()
    if options.f < 2 or options.G < 0 or options.rounds < 1 or options.n < 0 or options.w < 0:
        parser.error("-f is 2 at least, --rounds 1, -G, -n and -w 0")
    if not options.sizes:
        options.sizes = [options.b]
        while options.sizes[-1] * options.f <= options.e:
            options.sizes.append(options.sizes[-1] * options.f)
    return options


def main():
    options = arguments()
    refuse_multicast()
    try:
        # pylint: disable=import-outside-toplevel
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symm_mem
    except ImportError as error:
        sys.exit(f"torch_symm.py: {error}")
    if "LOCAL_RANK" not in os.environ:
        sys.exit("torch_symm.py: run it under torchrun")
    end_with_torchrun()
    Bench(options, torch, dist, symm_mem).run()


class Bench:
    """One rank's run."""

    def __init__(self, options, torch, dist, symm_mem):
        self.o, self.torch, self.dist = options, torch, dist
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.group = dist.group.WORLD.group_name
        self.type = {"f32": torch.float32, "bf16": torch.bfloat16}[options.d]
        self.element = torch.empty(0, dtype=self.type).element_size()
        most = max(options.sizes) // self.element
        self.symmetric = symm_mem.empty(most, dtype=self.type, device=self.device)
        self.handle = symm_mem.rendezvous(self.symmetric, self.group)
        if getattr(self.handle, "multicast_ptr", 0):
            sys.exit("torch_symm.py: this memory has a multicast address; it must not")
        self.plain = torch.empty(most, dtype=self.type, device=self.device)
        self.gathered = None  # the output of the last all-gather
        self.parts = 1 if options.collective == "allreduce" else self.ranks

    def ways(self, count):
        """(name, placement, call, input, result) of each algorithm for the size; the result is None
        if the call allocates it."""
        ops = self.torch.ops.symm_mem
        if self.o.collective != "allreduce":
            if self.o.placement != "in":
                yield self.way_of_parts(ops, count)
            return
        symmetric, plain = self.symmetric[:count], self.plain[:count]

        def copied_two_shot():
            symmetric.copy_(plain)
            ops.two_shot_all_reduce_(symmetric, "sum", self.group)

        if self.o.placement != "in":
            if count * self.element <= self.o.one_shot_most:
                yield ("torch-one-shot", "out",
                       lambda: ops.one_shot_all_reduce_out(symmetric, "sum", self.group, plain),
                       symmetric, plain)
            yield "torch-two-shot", "out", copied_two_shot, plain, symmetric
        if self.o.placement != "out":
            yield ("torch-two-shot", "in",
                   lambda: ops.two_shot_all_reduce_(symmetric, "sum", self.group),
                   symmetric, symmetric)

    def way_of_parts(self, ops, count):
        part = count // self.ranks
        if self.o.collective == "reduce_scatter":
            source, result = self.symmetric[:count], self.plain[:part]
            return ("torch-reduce-scatter", "out",
                    lambda: ops.reduce_scatter_out(source, self.group, False, result),
                    source, result)
        source = self.symmetric[:part]

        def gather():
            # pylint: disable-next=protected-access
            gathered = ops._low_contention_all_gather(source, self.group)
            # It is on a stream of its own, which the current one has to wait for.
            self.gathered = self.torch.ops._c10d_functional.wait_tensor(gathered)

        return "torch-low-contention", "out", gather, source, None

    def data(self, rank, count):
        """Small integers of both signs: every partial sum is exact in bf16, in any order."""
        most = 256 // self.ranks
        index = self.torch.arange(count, device=self.device, dtype=self.torch.int64)
        mixed = (index * 2654435761 + (rank + 1) * 40503) & 0x7FFFFFFF
        mixed = (mixed ^ (mixed >> 13)) * 1274126177 & 0x7FFFFFFF
        return (mixed >> 7) % (2 * most + 1) - most

    def fill(self, source, result):
        """Fills the input; for a call out of place, also fills the output with wrong values."""
        result = self.gathered if result is None else result
        if result is not None and result is not source:
            result.fill_(-4096.0)
        source.copy_(self.data(self.rank, len(source)).to(self.type))
        self.settle()

    def settle(self):
        self.torch.cuda.synchronize()
        self.dist.barrier()
        self.torch.cuda.synchronize()

    def wrong(self, source, result):
        """The number of wrong elements on all ranks."""
        inputs = [self.data(rank, len(source)) for rank in range(self.ranks)]
        if result is None:
            result, want = self.gathered, self.torch.cat(inputs)
        else:
            want = sum(inputs)
        if self.o.collective == "reduce_scatter":
            want = want[self.rank * len(result):(self.rank + 1) * len(result)]
        found = (result != want.to(self.type)).sum().to(self.torch.int64)
        self.dist.all_reduce(found)
        return int(found.item())

    def slowest(self, times):
        together = self.torch.tensor(times, device=self.device, dtype=self.torch.float64)
        self.dist.all_reduce(together, op=self.dist.ReduceOp.MAX)
        return sorted(together.tolist())

    def captured(self, call, calls):
        """A function that replays a graph of the calls. The first replay, which uploads the graph,
        is done here."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        graph.replay()
        return graph.replay

    def launched(self, call, calls, host):
        """A function that launches the calls, and appends each one's host time to `host`."""
        def launch():
            for _ in range(calls):
                before = time.perf_counter()
                call()
                host.append((time.perf_counter() - before) * 1e6)
        return launch

    def measure(self, call, source, result):
        """The number of wrong elements, the sorted times per call in microseconds, the calls per
        repetition, and the host time of a launch on the slowest rank, or None."""
        torch, o = self.torch, self.o
        larger = max(len(source), self.parts * len(source) if result is None else len(result))
        calls = o.n or (50 if larger * self.element <= 16 << 20 else 20)
        self.fill(source, result)
        call()
        self.settle()
        wrong = self.wrong(source, result)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(o.w):
                call()
        torch.cuda.current_stream().wait_stream(side)
        self.settle()
        host = []
        work = self.captured(call, calls) if o.G else self.launched(call, calls, host)

        times = []
        for _ in range(o.G or o.rounds):
            self.fill(source, result)
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            sleep = SLEEP_CYCLES if o.G else SLEEP_CYCLES + SLEEP_CYCLES_A_CALL * calls
            torch.cuda._sleep(sleep)  # pylint: disable=protected-access
            self.handle.barrier(channel=0)
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        self.settle()
        if result is not source and o.collective != "reduce_scatter":
            wrong += self.wrong(source, result)
        else:
            # The timed calls leave sums of sums, or have changed their input: checks one more call
            # on the input, launched in the same way.
            again = self.captured(call, 1) if o.G else call
            self.fill(source, result)
            again()
            self.settle()
            wrong += self.wrong(source, result)
        host = self.slowest([sorted(host)[len(host) // 2]])[0] if host else None
        return wrong, self.slowest(times), calls, host

    def head(self):
        torch = self.torch
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(f"# torch_symm.py, torch {torch.__version__}, {now}")
        print(f"# arguments: {' '.join(sys.argv[1:])}")
        print(f"# driver: CUDA {torch.version.cuda}; "
              f"nccl: {'.'.join(map(str, torch.cuda.nccl.version()))}")
        print(f"# rank 0: device 0, {torch.cuda.get_device_name(self.device)}")
        print(COLUMNS, flush=True)

    def row(self, name, placement, count, figures):
        wrong, times, calls, host = figures
        total, n = count * self.element, len(times)
        median = (times[n // 2] + times[(n - 1) // 2]) / 2
        width = total / median / 1e3
        op = "none" if self.o.collective == "allgather" else "sum"
        factor = CROSSINGS[self.o.collective] * (self.ranks - 1) / self.ranks
        mode, host = "graph" if self.o.G else "stream", "" if host is None else f"{host:.3f}"
        print(f"torch,{name},{self.o.d},{op},{total},{count // self.parts},{placement},"
              f"symmetric,{mode},"
              f"{self.ranks},{calls},{n},{median:.3f},{width:.3f},"
              f"{width * factor:.3f},"
              f"{wrong},{times[(n * 50 + 99) // 100 - 1]:.3f},"
              f"{times[(n * 99 + 99) // 100 - 1]:.3f},"
              f"{times[-1]:.3f},{host},,{self.o.collective}", flush=True)

    def run(self):
        wrong = 0
        if self.rank == 0:
            self.head()
        for total in self.o.sizes:
            step = 16 * self.parts  # the kernels take parts of multiples of 16 bytes
            count = total // step * step // self.element
            for name, placement, call, source, result in self.ways(count) if count > 0 else ():
                figures = self.measure(call, source, result)
                wrong += figures[0]
                if self.rank == 0:
                    self.row(name, placement, count, figures)
        self.settle()
        self.dist.destroy_process_group()
        sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
