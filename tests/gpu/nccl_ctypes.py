"""A client that opens NCCL by ctypes and calls it as vLLM's pynccl does, for
tests/gpu/gpu_nccl_torch.t.

    python3 -m torch.distributed.run --nproc-per-node N tests/gpu/nccl_ctypes.py

The library is the one that VLLM_NCCL_SO_PATH names, or the libnccl.so.2 of PyTorch. PyTorch gives
memory, streams and the store through which the unique id travels.
"""
import contextlib
import ctypes
import importlib.util
import os
import sys
import threading
import time

from nccl_world import DEVICE, RANK, WORLD, Checks, dist, say, synchronize, torch, value

RANKS = range(WORLD)
NEXT, BEFORE = (RANK + 1) % WORLD, (RANK - 1) % WORLD
SUM, PROD, MAX, MIN, AVG = range(5)  # ncclRedOp_t
TYPES = {torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6,
         torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}  # ncclDataType_t
REMOTE_ERROR, IN_PROGRESS = 6, 7  # ncclResult_t
SERVED = "SYMWIN_NCCL_SERVE" in os.environ  # by symwin; by NCCL alone otherwise
SIZES = [1, 7, 1000, 65537, 1 << 20]


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """The first members of ncclConfig_t, as of NCCL 2.14, which later ones take."""
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
                ("blocking", ctypes.c_int)]


pointer, size_t, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
FUNCTIONS = {
    "ncclGetVersion": [ctypes.POINTER(number)],
    "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
    "ncclCommInitRank": [ctypes.POINTER(pointer), number, UniqueId, number],
    "ncclCommInitRankConfig": [ctypes.POINTER(pointer), number, UniqueId, number,
                               ctypes.POINTER(Config)],
    "ncclCommGetAsyncError": [pointer, ctypes.POINTER(number)],
    "ncclAllReduce": [pointer, pointer, size_t, number, number, pointer, pointer],
    "ncclReduce": [pointer, pointer, size_t, number, number, number, pointer, pointer],
    "ncclAllGather": [pointer, pointer, size_t, number, pointer, pointer],
    "ncclReduceScatter": [pointer, pointer, size_t, number, number, pointer, pointer],
    "ncclSend": [pointer, size_t, number, number, pointer, pointer],
    "ncclRecv": [pointer, size_t, number, number, pointer, pointer],
    "ncclBroadcast": [pointer, pointer, size_t, number, number, pointer, pointer],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommDestroy": [pointer],
    "ncclCommAbort": [pointer],
}


def path():
    named = os.environ.get("VLLM_NCCL_SO_PATH")
    if named:
        return os.path.abspath(named)
    try:
        ctypes.CDLL("libnccl.so.2")  # PyTorch has loaded it
        return "libnccl.so.2"
    except OSError:
        folder = list(importlib.util.find_spec("nvidia.nccl").submodule_search_locations)[0]
        return f"{folder}/lib/libnccl.so.2"


class Nccl:
    """Each function is looked up by getattr, and raises if it does not return ncclSuccess."""

    def __init__(self):
        self.library = ctypes.CDLL(path())
        self.text = self.library.ncclGetErrorString
        self.text.restype, self.text.argtypes = ctypes.c_char_p, [number]
        for name, types in FUNCTIONS.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = number, types
            setattr(self, name, self.checked(name, function))

    def checked(self, name, function):
        def call(*arguments):
            result = function(*arguments)
            if result not in (0, IN_PROGRESS):
                raise RuntimeError(f"{name}: {self.text(result).decode()}")
            return result
        return call


class Communicator:
    def __init__(self, nccl, store, key, blocking=1):
        self.nccl, self.comm, unique = nccl, pointer(), UniqueId()
        if RANK == 0:
            nccl.ncclGetUniqueId(ctypes.byref(unique))
            store.set(key, bytes(unique))
        unique = UniqueId.from_buffer_copy(store.get(key))
        config = Config(ctypes.sizeof(Config), 0xcafebeef, 21400, blocking)
        nccl.ncclCommInitRankConfig(ctypes.byref(self.comm), WORLD, unique, RANK,
                                    ctypes.byref(config))

    def wait(self):
        """Until nothing is in progress, if the communicator does not block."""
        state, until = number(IN_PROGRESS), time.monotonic() + 60
        while state.value == IN_PROGRESS and time.monotonic() < until:
            self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
            time.sleep(0.001)
        return state.value

    def end(self):
        synchronize()
        self.nccl.ncclCommDestroy(self.comm)

    def abort(self):
        """Returns how many milliseconds it took."""
        start = time.perf_counter()
        self.nccl.ncclCommAbort(self.comm)
        return (time.perf_counter() - start) * 1e3

    @contextlib.contextmanager
    def group(self):
        self.nccl.ncclGroupStart()
        yield
        self.nccl.ncclGroupEnd()

    def rest(self):
        """The last two arguments of each call."""
        return self.comm, pointer(torch.cuda.current_stream().cuda_stream)

    def all_reduce(self, given, out, op=SUM):
        return self.nccl.ncclAllReduce(at(given), at(out), given.numel(), kind(given), op,
                                       *self.rest())

    def all_gather(self, given, out):
        self.nccl.ncclAllGather(at(given), at(out), given.numel(), kind(given), *self.rest())

    def reduce_scatter(self, given, out, op=SUM):
        self.nccl.ncclReduceScatter(at(given), at(out), out.numel(), kind(given), op, *self.rest())

    def broadcast(self, given, out, root):
        self.nccl.ncclBroadcast(at(given), at(out), out.numel(), kind(out), root, *self.rest())

    def reduce(self, given, out, root, op=SUM):
        self.nccl.ncclReduce(at(given), at(out), given.numel(), kind(given), op, root,
                             *self.rest())

    def send(self, given, peer):
        self.nccl.ncclSend(at(given), given.numel(), kind(given), peer, *self.rest())

    def recv(self, out, peer):
        self.nccl.ncclRecv(at(out), out.numel(), kind(out), peer, *self.rest())

    def all_gatherv(self, given, out, sizes):
        """As pynccl: a broadcast from each rank, in a group."""
        with self.group():
            for root, part in enumerate(out.split(sizes)):
                self.broadcast(given, part, root)

    def reduce_scatterv(self, given, out, sizes, op=SUM):
        """As pynccl: a reduction to each rank, in a group."""
        with self.group():
            for root, part in enumerate(given.split(sizes)):
                self.reduce(part, out, root, op)


def at(tensor):
    return pointer(tensor.data_ptr())


def kind(tensor):
    return TYPES[tensor.dtype]


def mine(count, dtype=torch.float32, salt=0):
    return value(RANK, count, salt).to(dtype)


def blank(count, dtype=torch.float32):
    return torch.full((count,), 99, device=DEVICE).to(dtype)


def every(count, salt=0):
    """All ranks' elements, a row each."""
    return torch.stack([value(r, count, salt) for r in RANKS])


def own(tensor):
    return tensor.chunk(WORLD)[RANK]


def same_counts(comm, checks):
    cases = [(torch.float32, size) for size in SIZES] + [(dtype, 1000) for dtype in TYPES]
    for salt, (dtype, size) in enumerate(cases):
        what = f"{dtype} of {size}"
        given, out = mine(size, dtype, salt), blank(size, dtype)
        comm.all_reduce(given, out)
        checks.equal(f"all_reduce {what}", out, every(size, salt).sum(0))
        comm.all_reduce(given, given)
        checks.equal(f"all_reduce in place {what}", given, every(size, salt).sum(0))
        out = blank(size * WORLD, dtype)
        comm.all_gather(mine(size, dtype, salt), out)
        checks.equal(f"all_gather {what}", out, every(size, salt).flatten())
        out = blank(size, dtype)
        comm.reduce_scatter(mine(size * WORLD, dtype, salt), out)
        checks.equal(f"reduce_scatter {what}", out, own(every(size * WORLD, salt).sum(0)))
        root = salt % WORLD
        out = mine(size, dtype, salt) if RANK == root else blank(size, dtype)
        comm.broadcast(out, out, root)
        checks.equal(f"broadcast {what} from {root}", out, value(root, size, salt))
        given, out = mine(size, dtype, salt), blank(size, dtype)
        with comm.group():
            comm.send(given, NEXT)
            comm.recv(out, BEFORE)
        checks.equal(f"send and recv {what}", out, value(BEFORE, size, salt))
    for word, op in (("max", MAX), ("min", MIN), ("prod", PROD), ("avg", AVG)):
        rows = every(1000, 50) % 2 + 1 if op == PROD else every(1000, 50) * WORLD
        expected = {MAX: rows.amax(0), MIN: rows.amin(0), PROD: rows.prod(0),
                    AVG: rows.sum(0) // WORLD}[op]
        out = rows[RANK].float()
        comm.all_reduce(out, out, op)
        checks.equal(f"all_reduce {word}", out, expected)


def unequal_counts(comm, checks):
    for unit in (1, 1000, 33333):
        for sizes in ([unit * (r + 1) for r in RANKS], [unit * ((2 * r) % 3) for r in RANKS]):
            what = f"of {sizes}"
            out = blank(sum(sizes))
            comm.all_gatherv(mine(sizes[RANK]), out, sizes)
            checks.equal(f"all_gatherv {what}", out,
                         torch.cat([value(r, sizes[r]) for r in RANKS]))
            for op in (SUM, MAX):
                out, rows = blank(sizes[RANK]), every(sum(sizes), 3)
                comm.reduce_scatterv(mine(sum(sizes), salt=3), out, sizes, op)
                whole = rows.sum(0) if op == SUM else rows.amax(0)
                checks.equal(f"reduce_scatterv {what}, op {op}", out, whole.split(sizes)[RANK])


def graph(comm, checks):
    """As vLLM's decoding: calls captured once and replayed with other inputs."""
    given, out, whole = blank(4096), blank(4096), blank(4096 * WORLD)
    side, captured = torch.cuda.Stream(DEVICE), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())

    def step():
        comm.all_reduce(given, out)
        out.add_(1)
        comm.all_gather(out, whole)
    with torch.cuda.stream(side):
        step()
    synchronize()
    with torch.cuda.graph(captured):
        step()
    for salt in range(10):
        given.copy_(value(RANK, 4096, salt))
        captured.replay()
        expected = every(4096, salt).sum(0) + 1
        checks.equal(f"replay {salt}, all_reduce", out, expected)
        checks.equal(f"replay {salt}, all_gather", whole, expected.repeat(WORLD))


def not_blocking(nccl, store, checks):
    """The first call waits for no rank: rank 0 calls when all others have come back from theirs."""
    def says(what, result, expected=0):
        checks.equal(f"not blocking: {what}", torch.tensor(result), torch.tensor(expected))

    comm = Communicator(nccl, store, "not blocking", blocking=0)
    says("birth", comm.wait())
    given, out = mine(1000), blank(1000)
    if RANK == 0:
        store.wait([f"called {r}" for r in RANKS if r != 0])
    says("first call", comm.all_reduce(given, out), IN_PROGRESS)
    store.set(f"called {RANK}", b"")
    for turn in range(2):
        says(f"call {turn} is over", comm.wait())
        synchronize()
        checks.equal(f"not blocking: result {turn}", out, every(1000).sum(0))
        out.fill_(99)
        comm.all_reduce(given, out)
    says("the last call is over", comm.wait())
    comm.end()


def aborted(nccl, store, checks, is_first):
    """Rank 0 aborts a call that no other rank makes: the first one, in which the ranks meet, or
    one whose kernel spins. After the latter, symwin's other ranks are told if they call."""
    what = "first call" if is_first else "kernel"
    comm = Communicator(nccl, store, f"aborted in its {what}")
    given, out = mine(1000), blank(1000)
    ended = []

    def call():
        try:
            comm.all_reduce(given, out)
        except RuntimeError as error:
            ended.append(error)

    if not is_first:
        call()
        synchronize()
        checks.equal(f"before an abort in a {what}", out, every(1000).sum(0))
    if RANK == 0:
        caller = threading.Thread(target=call)
        caller.start()
        time.sleep(0.3)
        took = comm.abort()
        caller.join(20)
        checks.equal(f"a call is over after an abort in a {what}",
                     torch.tensor(caller.is_alive()), torch.tensor(False))
        synchronize()
        say(f"an abort in a {what} took {took:.1f} ms; the call: {ended or 'no error'}")
        store.set(f"aborted in a {what}", b"")
        return
    store.wait([f"aborted in a {what}"])
    if SERVED and not is_first:
        call()
        state, until = number(0), time.monotonic() + 20
        while state.value != REMOTE_ERROR and time.monotonic() < until:
            nccl.ncclCommGetAsyncError(comm.comm, ctypes.byref(state))
            time.sleep(0.001)
        checks.equal(f"what is told of an abort in a {what}", torch.tensor(state.value),
                     torch.tensor(REMOTE_ERROR))
    comm.abort()


def main():
    nccl, version, checks = Nccl(), number(), Checks("ctypes")
    nccl.ncclGetVersion(ctypes.byref(version))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, WORLD,
                          RANK == 0)
    comm = Communicator(nccl, store, "first")
    same_counts(comm, checks)
    second = Communicator(nccl, store, "second")  # as of another group
    unequal_counts(second, checks)
    graph(comm, checks)
    not_blocking(nccl, store, checks)
    aborted(nccl, store, checks, False)
    if SERVED:
        aborted(nccl, store, checks, True)
    comm.end()
    second.end()
    if RANK == 0:
        say(f"NCCL {version.value} of {path()}")
    store.set(f"end {RANK}", b"")
    if RANK == 0:  # the store is this process's
        store.wait([f"end {r}" for r in RANKS])
    return 0 if checks.end() else 1


if __name__ == "__main__":
    sys.exit(main())
