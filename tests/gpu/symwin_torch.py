"""symwin.torch on GPUs, in processes that share GPUs if there are fewer, for
tests/gpu/gpu_symwin_torch.t.

    python3 -m torch.distributed.run --nproc-per-node N tests/gpu/symwin_torch.py [SECTION]...

Every rank prints a line for each section: "rank R: SECTION: right", "skipped: why" or "wrong: why".
A section that fails on a rank ends for all, and the next one has a new communicator. Expected
values are computed on each rank from all ranks' inputs. Without a GPU, SYMWIN_DRIVER=emu runs the
sections that need none, to try the script.
"""

import ctypes
import datetime
import faulthandler
import os
import sys
import traceback
import warnings
from pathlib import Path

# Before torch is loaded: multicast can put a host's GPUs out of service.
os.environ["NCCL_NVLS_ENABLE"] = "0"
os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
os.environ["SYMWIN_NVLS"] = "0"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
import torch.distributed as dist

import symwin
import symwin.torch as st
import torch_cases as common

ops = torch.ops.symwin
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CUDA = torch.cuda.is_available()
OPTIONS = {"bootstrap_timeout_ms": 20000, "timeout_ms": 15000, "kernel_timeout_ms": 15000,
           "flags": symwin._api.SYMWIN_COMM_NO_MULTICAST}  # fmt: skip


class Skip(Exception):
    """A section that cannot run here."""


def say(text):
    """One write: ranks print at the same time."""
    print(f"rank {RANK}: {text}\n", end="", flush=True)


def need_gpu():
    if not CUDA:
        raise Skip("it needs a GPU")


def equal(what, found, expected):
    if found.shape != expected.shape or not torch.equal(found, expected):
        raise AssertionError(f"{what}: {found.flatten()[:8].tolist()}, not "
                             f"{expected.flatten()[:8].tolist()}")  # fmt: skip


def out_arguments(name, before):
    """Those of the form with an output: it takes the place of `like`."""
    return before[:1] if name == "scatter" else before


# ---- sections ----


def operators(comm):
    """Every operator, eager: functional, with an output, in place."""
    id = st.comm_id(comm)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for name, before, after, expected in common.cases(RANK, WORLD, dtype):
            found = getattr(ops, name)(*before, id, *after)
            equal(name, found, found.new_empty(0) if expected is None else expected)
            out = None if expected is None else torch.full_like(expected, 9)
            getattr(ops, name + "_out")(*out_arguments(name, before), out, id, *after)
            if expected is not None:
                equal(name + "_out", out, expected)
            if name in common.IN_PLACE:
                x = before[0].clone()
                getattr(ops, common.IN_PLACE[name])(x, id, *after)
                if expected is not None:
                    equal(common.IN_PLACE[name], x, expected)


def sizes(comm):
    """Small and large all-reduces on torch's memory, also on a stream of its own."""
    id = st.comm_id(comm)
    stream = torch.cuda.Stream() if CUDA else None
    for count in (1, 5, 4099, 1 << 18, (1 << 22) + 3):
        expected = sum(common.values(r, count) for r in range(WORLD))
        x = common.values(RANK, count)
        ops.allreduce_(x, id)
        equal(f"allreduce_ of {count}", x, expected)
        if CUDA:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = ops.allreduce(common.values(RANK, count), id)
                equal(f"allreduce of {count} on a stream", x, expected)


def messages(comm):
    id = st.comm_id(comm)
    mine, got = common.values(RANK, 70000), torch.empty(70000, device=common.DEVICE)
    if not CUDA:
        mine, got = (torch.from_dlpack(comm.empty(70000)).copy_(x) for x in (mine, got))
    for _ in range(3):
        with symwin.group():
            ops.send(mine, id, (RANK + 1) % WORLD)
            ops.recv_(got, id, (RANK - 1) % WORLD)
        if not CUDA:
            symwin.synchronize(comm.device)
        equal("a ring", got, common.values((RANK - 1) % WORLD, 70000))
        ops.barrier(id)
    if RANK == 0:
        ops.send(mine, id, WORLD - 1)
    elif RANK == WORLD - 1:
        equal("recv", ops.recv(got, id, 0), common.values(0, 70000))


def gradients(comm):
    if common.check_gradients(comm) != 10:
        raise AssertionError("not all gradients were compared")


def symmetric(comm):
    """Symmetric tensors: a window on all ranks, zero-copy, used by calls."""
    id = st.comm_id(comm)
    x = st.empty((1 << 20,), torch.float32, comm)
    expected = sum(common.values(r, 1 << 20) for r in range(WORLD))
    for _ in range(2):
        x.copy_(common.values(RANK, 1 << 20))
        ops.allreduce_(x, id)
        equal("allreduce_", x, expected)
    window = st.window_of(x[5:])
    if window.query()["ptr"] != x.data_ptr() or window.query()["bytes"] != x.nbytes:
        raise AssertionError("the window is not the tensor's")
    if x.device != common.DEVICE:
        raise AssertionError(f"the tensor is on {x.device}")
    ops.barrier(id)
    symwin.synchronize(comm.device, stream_of_torch())
    st.free(x)
    equal("after free", x, expected)


def stream_of_torch():
    return torch.cuda.current_stream() if CUDA else None


def graph_of(call):
    """Captures what call() does, after it has run once outside."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        result = call()
    graph.instantiate()
    return graph, result


def captured(comm):
    """Every operator in one graph, replayed with new inputs."""
    need_gpu()
    id = st.comm_id(comm)
    made = [
        (*case, None if case[3] is None else torch.empty_like(case[3]))
        for case in common.cases(RANK, WORLD, torch.float32)
    ]
    fresh = [[x.clone() if isinstance(x, torch.Tensor) else x for x in m[1]] for m in made]
    in_place = [common.IN_PLACE.get(m[0]) and m[1][0].clone() for m in made]

    def step():
        found = []
        for (name, before, after, _, out), x in zip(made, in_place):
            found.append(getattr(ops, name)(*before, id, *after))
            getattr(ops, name + "_out")(*out_arguments(name, before), out, id, *after)
            if x is not None:
                x.copy_(before[0])
                getattr(ops, common.IN_PLACE[name])(x, id, *after)
        ops.barrier(id)
        return found

    graph, found = graph_of(step)
    for replay in range(3):
        for (name, before, _, _, out), new in zip(made, fresh):
            for given, value in zip(before, new):
                if isinstance(given, torch.Tensor):
                    given.copy_(value * (replay + 1))
            if out is not None:
                out.fill_(-1)
        graph.replay()
        for (name, _, _, expected, out), result, x in zip(made, found, in_place):
            if expected is None:
                continue
            equal(f"{name}, replay {replay}", result, expected * (replay + 1))
            equal(f"{name}_out, replay {replay}", out, expected * (replay + 1))
            if x is not None:
                equal(f"{name}_, replay {replay}", x, expected * (replay + 1))
    torch.cuda.synchronize()
    del graph


def node_types(graph):
    """The types of a graph's nodes; 0 is a kernel."""
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    if cuda.cuGraphGetNodes(handle, None, ctypes.byref(count)):
        raise AssertionError("cuGraphGetNodes failed")
    nodes = (ctypes.c_void_p * count.value)()
    cuda.cuGraphGetNodes(handle, nodes, ctypes.byref(count))
    found, kind = [], ctypes.c_int()
    for node in nodes:
        cuda.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        found.append(kind.value)
    return found


def one_kernel(comm):
    """A captured all-reduce is one kernel, and the graph has nothing else; as by the plain call."""
    need_gpu()
    id = st.comm_id(comm)
    for count in (1024, 1 << 20):
        x, y = (torch.zeros(count, device=common.DEVICE) for _ in range(2))
        for what, call in (
            ("allreduce_", lambda: ops.allreduce_(x, id)),
            ("allreduce_out", lambda: ops.allreduce_out(x, y, id)),
            ("allreduce", lambda: ops.allreduce(x, id)),
            ("allgather", lambda: ops.allgather(x, id)),
            ("Communicator.allreduce", lambda: comm.allreduce(x, stream=stream_of_torch())),
        ):
            graph, _ = graph_of(call)
            types = node_types(graph)
            graph.replay()
            torch.cuda.synchronize()
            del graph
            if types != [0]:
                raise AssertionError(f"{what} of {count}: the graph has nodes of types {types}")


def profiled(comm):
    """The profiler sees one kernel for each replay of a captured all-reduce, and nothing else."""
    need_gpu()
    from torch.profiler import ProfilerActivity, profile

    id = st.comm_id(comm)
    x = torch.zeros(1024, device=common.DEVICE)
    graph, _ = graph_of(lambda: ops.allreduce_(x, id))
    graph.replay()  # uploads it
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
    # torch itself fills in its random generator's state before a replay.
    names = [
        e.name for e in seen.events()
        if e.device_type == torch.autograd.DeviceType.CUDA and "FillFunctor" not in e.name
    ]  # fmt: skip
    del graph
    if not names:
        raise Skip("the profiler sees no kernels here")
    if len(names) != 4 or len(set(names)) != 1:
        raise AssertionError(f"the profiler sees {names}")
    if RANK == 0:
        say(f"kernel: {names[0]}")


def compiled(comm, backend="aot_eager"):
    common.compiled_body(comm, backend)
    common.unused_body(comm, backend)
    common.messages_body(comm, backend)


def inductor(comm):
    """Compiled by inductor, if it has the compilers that it needs."""
    try:
        torch.compile(lambda x: x.sin() + 1, fullgraph=True)(torch.ones(5, device=common.DEVICE))
    except Exception as reason:
        words = " ".join(str(reason).split())[:200]
        raise Skip(f"inductor compiles nothing here: {type(reason).__name__}: {words}") from None
    compiled(comm, "inductor")


def ddp(comm):
    """Steps of DistributedDataParallel, whose process group is gloo's."""
    def wrapped(model):
        run = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
        run.register_comm_hook(comm, st.ddp_hook)
        return run

    alone = common.train(lambda model: model, range(WORLD))
    found = common.train(wrapped, [RANK])
    if not torch.allclose(found, alone, rtol=1e-9):
        raise AssertionError(f"weights differ by up to {(found - alone).abs().max().item()}")


def transformer(comm):
    """Tensor parallelism over all ranks gives what one rank gives."""
    common.check_model(common.model_step(), common.model_step(comm), RANK, WORLD)


def transformer_compiled(comm):
    """The block's forward pass, compiled without graph breaks."""
    x = torch.randn(2, 3, common.Block.WIDTH, generator=torch.Generator().manual_seed(5))
    x = x.double().to(common.DEVICE)
    block, alone = common.Block(1, comm), common.Block(1)
    torch._dynamo.reset()
    found = torch.compile(lambda x: block(x), fullgraph=True, backend="aot_eager")(x)
    if not torch.allclose(found, alone(x), rtol=1e-9):
        raise AssertionError("the compiled block gives something else")


def pool(comm):
    """Memory of mem_pool() in windows, and as the private pool of a graph."""
    need_gpu()
    id, memory = st.comm_id(comm), st.mem_pool()
    with torch.cuda.use_mem_pool(memory):
        x = torch.empty(1 << 20, device=common.DEVICE)
    x.copy_(common.values(RANK, 1 << 20))
    expected = sum(common.values(r, 1 << 20) for r in range(WORLD))
    if symwin.memory.usage(comm.device)["used_bytes"] < x.nbytes:
        raise AssertionError("the memory is not symwin's")
    torch.cuda.synchronize()
    with comm.window(x) as window:
        ops.allreduce_(x, id)
        equal("in a window", x, expected)
        if window.query()["ptr"] != x.data_ptr():
            raise AssertionError("the window is not the tensor's")
        ops.barrier(id)
        torch.cuda.synchronize()
    del window
    ops.allreduce(x, id) + 1  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory.id):
        y = ops.allreduce(x, id) + 1
    for replay in range(3):
        x.copy_(common.values(RANK, 1 << 20, salt=replay))
        graph.replay()
        equal(f"replay {replay}", y,
              sum(common.values(r, 1 << 20, salt=replay) for r in range(WORLD)) + 1)  # fmt: skip
    ops.barrier(id)
    torch.cuda.synchronize()
    del graph, y, x, memory


def engine(comm):
    """vLLM's interface, eager and captured."""
    ar = st.CustomAllreduce(dist.group.WORLD, common.DEVICE, max_size=1 << 20)
    try:
        if ar.disabled:
            raise AssertionError("it is disabled")
        x = common.values(RANK, 64, 32, dtype=torch.bfloat16)
        expected = sum(common.values(r, 64, 32, dtype=torch.bfloat16) for r in range(WORLD))
        equal("eager", ar.custom_all_reduce(x), expected)
        if ar.custom_all_reduce(torch.empty(1 << 20, device=common.DEVICE)) is not None:
            raise AssertionError("max_size has no effect")
        if CUDA:
            with ar.capture():
                graph, found = graph_of(lambda: ar.custom_all_reduce(x))
            for replay in range(3):
                x.copy_(common.values(RANK, 64, 32, dtype=torch.bfloat16) * replay)
                graph.replay()
                equal(f"replay {replay}", found, expected * replay)
            torch.cuda.synchronize()
            del graph
    finally:
        ar.close()


def refused(comm):
    """Wrong input is an exception on each rank, and the communicator works on."""
    id = st.comm_id(comm)
    x = torch.ones(4, 4, device=common.DEVICE)
    wrong = [
        ("not contiguous", lambda: ops.allreduce_(x.T, id)),
        ("expected shape (4,)", lambda: ops.allreduce_out(x[0], x, id)),
        ("dtype torch.bool", lambda: ops.allreduce(x > 0, id)),
        ("no communicator", lambda: ops.allreduce(x, 12345)),
        ("op is 'median'", lambda: ops.allreduce(x, id, "median")),
        ("root", lambda: ops.broadcast(x, id, WORLD)),
        ("peer", lambda: ops.send(x, id, WORLD)),
        ("not symmetric", lambda: st.window_of(x)),
    ]
    if CUDA:
        wrong.append((f"expected memory of cuda:{comm.device}",
                      lambda: ops.allreduce_(torch.ones(3), id)))  # fmt: skip
    if torch.cuda.device_count() > 1:
        other = (comm.device + 1) % torch.cuda.device_count()
        wrong.append((f"device {comm.device}",
                      lambda: ops.allreduce_(torch.ones(3, device=other), id)))  # fmt: skip
    for words, call in wrong:
        try:
            call()
        except symwin.SymwinInvalid as reason:
            if words not in str(reason):
                raise AssertionError(f"'{words}' is not in: {reason}") from None
        else:
            raise AssertionError(f"it was not refused: {words}")
    if CUDA:  # within a capture too, which goes on
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            try:
                ops.allreduce_(x.T, id)
            except symwin.SymwinInvalid:
                pass
            y = x + 1
        graph.replay()
        equal("after a refused call in a capture", y, x + 1)
    equal("afterwards", ops.allreduce(x, id), x * WORLD)


SECTIONS = [
    operators, sizes, messages, gradients, symmetric, captured, one_kernel, profiled, compiled, ddp,
    transformer, transformer_compiled, pool, engine, refused, inductor,
]  # fmt: skip


# ---- the run ----


def outcome_of(section, comm):
    """None if this rank was right, else what to print."""
    try:
        section(comm)
        if CUDA:
            torch.cuda.synchronize()
        comm.check()
        return None
    except Skip as reason:
        return f"skipped: {reason}"
    except BaseException as reason:
        traceback.print_exc()
        try:
            comm.abort()
        except Exception:
            pass
        return f"wrong: {type(reason).__name__}: " + " ".join(str(reason).split())[:300]


def new_communicator():
    device = common.DEVICE.index if CUDA else RANK % symwin.device_count()
    return symwin.Communicator.from_torch(None, device, **OPTIONS)


def main():
    faulthandler.dump_traceback_later(int(os.environ.get("SYMWIN_TORCH_SECONDS", "100")), exit=True)
    warnings.simplefilter("ignore", ResourceWarning)
    wanted = [s for s in SECTIONS if s.__name__ in sys.argv[1:]] if sys.argv[1:] else SECTIONS
    if CUDA:
        device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        common.DEVICE = torch.device("cuda", device)
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    comm, wrong = None, 0
    for section in wanted:
        try:
            comm = comm or new_communicator()
            mine = outcome_of(section, comm)
        except Exception as reason:
            mine = f"wrong: no communicator: {reason}"
        told = [None] * WORLD
        dist.all_gather_object(told, mine)
        say(f"{section.__name__}: {mine or 'right'}")
        if any(text and text.startswith("wrong") for text in told):
            wrong += 1
            if comm is not None:
                comm.destroy()
            comm = None
    if comm is not None:
        comm.destroy()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(1 if wrong else 0)


main()
