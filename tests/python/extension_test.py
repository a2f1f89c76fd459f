"""The extension against the calls by ctypes: equal results and exceptions, whatever is passed."""

import datetime
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest

import symwin
from symwin import Communicator, Status, SymwinError, SymwinInvalid
from symwin.comm import by_ctypes

extension = pytest.mark.skipif(not symwin.has_extension(), reason="no extension here")
RANKS = 2

# The calls with good arguments, by the communicator and arrays of 4 and of 4 * nranks elements.
GOOD = {
    "allreduce": lambda x, y, big: (x, y, "max"),
    "allgather": lambda x, y, big: (x, big),
    "reduce_scatter": lambda x, y, big: (big, x, "sum"),
    "alltoall": lambda x, y, big: (x, y),
    "broadcast": lambda x, y, big: (x, y, 0),
    "reduce": lambda x, y, big: (x, y, "sum", 0),
    "gather": lambda x, y, big: (x, big, 0),
    "scatter": lambda x, y, big: (big, x, 0),
    "barrier": lambda x, y, big: (),
}


def run(program, **variables):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
        env=dict(os.environ, **variables),
    )  # fmt: skip


def test_it_is_loaded_where_it_is():
    """Or the tests of it were left out without a word."""
    there = (Path(symwin.__file__).parent / "_fast.abi3.so").exists()
    allowed = os.environ.get("SYMWIN_PYTHON_EXTENSION") != "0"
    assert symwin.has_extension() == (there and allowed)
    made = run("import symwin; print(symwin.has_extension())", SYMWIN_PYTHON_EXTENSION="0")
    assert made.stdout == "False\n", made.stderr


@extension
@pytest.mark.parametrize("name", GOOD)
def test_results(ranks, name):
    def body(comm):
        results = []
        for function in getattr(Communicator, name), by_ctypes[name]:
            x, y, big = comm.empty(4), comm.empty(4), comm.empty(4 * RANKS)
            for array, start in (x, 1), (y, 20), (big, 300):
                array.copy_from(np.arange(array.count, dtype="f4") * (comm.rank + 2) + start)
            given = GOOD[name](x, y, big)
            found = function(comm, *given, stream=None)
            place = [i for i, array in enumerate(given) if found is array]
            results.append((place, [array.numpy().tolist() for array in (x, y, big)]))
        return results

    for fast, slow in ranks(RANKS, body):
        assert fast == slow


@extension
def test_in_place_and_by_name(ranks):
    def body(comm):
        x, big = comm.empty(4), comm.empty(4 * RANKS)

        def fresh():
            x.copy_from(np.full(4, comm.rank + 1, "f4"), handle)

        with symwin.Stream(comm.device) as stream:
            for handle in None, 0, stream, stream.__cuda_stream__()[1], symwin.Stream(comm.device):
                fresh()
                assert comm.allreduce(input=x, output=None, op="sum", stream=handle) is x
                assert x.numpy(handle)[3] == 3
                fresh()
                assert comm.broadcast(None, x, root=1, stream=handle) is x
                assert x.numpy(handle)[3] == 2
                fresh()
                assert comm.reduce(x, root=1, stream=handle) is x
                assert x.numpy(handle)[3] == 3 or comm.rank == 0
                fresh()
                assert comm.gather(x, big if comm.rank == 0 else None, stream=handle) in (big, None)
                assert comm.rank or big.numpy(handle).tolist() == [1.0] * 4 + [2.0] * 4
                assert comm.scatter(None if comm.rank else big, x, stream=handle) is x
                assert x.numpy(handle)[3] == comm.rank + 1
                if comm.rank:
                    assert comm.send(x, 0, stream=handle) is None
                else:
                    assert comm.recv(x, peer=1, stream=handle) is x
                assert x.numpy(handle)[0] == 2
                assert comm.barrier(stream=handle) is None

    ranks(RANKS, body)


@extension
def test_what_it_takes(ranks):
    """Ordinary calls come to no function of comm.py."""

    def body(comm):
        x, y, big = comm.empty(4), comm.empty(4), comm.empty(4 * RANKS)
        with symwin.Stream(comm.device) as stream:
            for name, arguments in GOOD.items():
                call, given, seen = getattr(comm, name), arguments(x, y, big), []
                sys.setprofile(lambda frame, event, _: seen.append((event, frame.f_code.co_name)))
                call(*given)
                call(*given, stream=stream)
                sys.setprofile(None)
                assert [code for event, code in seen if event == "call"] == [], name

    ranks(RANKS, body)


class Str(str):
    pass


class Int(int):
    pass


class Array(symwin.Array):
    pass


class Buffer(symwin.Buffer):
    pass


class Raises:
    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}")


def nothing(*_, **__):
    return None


class Odd:
    """Has all that is asked for, and nothing of use."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing


def broken(comm, **attributes):
    array = comm.empty(4)
    for name, value in attributes.items():
        setattr(array, name, value)
    return array


def freed(comm):
    array = comm.empty(4)
    array.buffer.free()
    return array


def without_buffer(comm):
    array = comm.empty(4)
    del array.buffer
    return array


KEYS = "input output op root peer stream algo blocks speed self"
HOSTILE = [
    *(lambda comm, value=value: value for value in (
        None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 70), 1.5,
        float("nan"), "", "sum", "sums", "\udcff", b"sum", [], (), {}, Ellipsis, int, object,
        Str("max"), Int(0), Int(3), np.float32(1), np.int64(0), np.zeros(4, "f4"),
        np.zeros((2, 2), "f4").T, np.zeros(4, "c8"), memoryview(b"abcd"), len, Raises(), Odd(),
    )),
    freed,
    without_buffer,
    lambda comm: comm.empty(0),
    lambda comm: comm.empty(3),
    lambda comm: comm.empty(4, "f64"),
    lambda comm: comm.empty(4, "e4m3"),
    lambda comm: symwin.empty(4, "f32", (comm.device + 1) % symwin.device_count()),
    lambda comm: comm.empty(4).buffer,
    lambda comm: Array(symwin.Buffer(16), 4),
    lambda comm: symwin.Array(Buffer(16), 4),
    lambda comm: object.__new__(symwin.Array),
    lambda comm: broken(comm, count=1 << 62),
    lambda comm: broken(comm, count=-1),
    lambda comm: broken(comm, count=1 << 80),
    lambda comm: broken(comm, count="4"),
    lambda comm: broken(comm, offset=1 << 40),
    lambda comm: broken(comm, offset=-(1 << 70)),
    lambda comm: broken(comm, offset=2),
    lambda comm: broken(comm, type=17),
    lambda comm: broken(comm, type=None),
    lambda comm: broken(comm, device=None),
    lambda comm: broken(comm, device=1 << 40),
    lambda comm: broken(comm, buffer=None),
    lambda comm: broken(comm, buffer=Odd()),
    lambda comm: comm,
    lambda comm: symwin.Stream,
]  # fmt: skip


def outcome(function, comm, *given, **named):
    try:
        return "returned", function(comm, *given, **named)
    except Exception as error:
        return type(error), str(error)


@extension
@pytest.mark.parametrize("name", [*GOOD, "send", "recv"])
def test_whatever_is_passed(ranks, name):
    """In each place, and by each name."""

    def body(comm):
        fast, slow = getattr(Communicator, name), by_ctypes[name]
        x, y, tried = comm.empty(4), comm.empty(4), set()
        good = GOOD.get(name, lambda x, y, _: (x, 0))(x, y, comm.empty(4))
        names = [*map(sys.intern, inspect.signature(slow).parameters)][1 : len(good) + 1]
        for make in HOSTILE:
            value = make(comm)
            calls = [((*good[:i], value, *good[i + 1 :]), {}) for i in range(len(good))]
            calls += [((*good[:i], value), {}) for i in range(len(good) + 2)]
            for key in map(sys.intern, KEYS.split()):
                if key == "stream" and issubclass(type(value), int):
                    continue  # it is taken as it is
                calls += [(good, {key: value}), ((), {**dict(zip(names, good)), key: value})]
            for given, named in calls:
                expected = outcome(slow, comm, *given, **named)
                found = outcome(fast, comm, *given, **named)
                tried.add(expected[0])
                if expected[0] is TypeError:
                    assert found[0] is TypeError
                else:
                    assert found == expected, (given, named)
        symwin.synchronize(comm.device)
        comm.check()
        assert SymwinInvalid in tried
        assert "returned" in tried or name in ("send", "recv")  # of messages to oneself

    ranks(1, body)


@extension
def test_streams_of_others(ranks):
    """Those of a stream's own code that ends what the call is about, too."""

    class Stream:
        def __init__(self, then, handle=0):
            self.then, self.handle = then, handle

        def __cuda_stream__(self):
            self.then()
            return 0, self.handle

    def body(comm):
        x = comm.empty(4)
        assert comm.allreduce(x, stream=Stream(lambda: None)) is x
        with pytest.raises(ZeroDivisionError):
            comm.allreduce(x, stream=Stream(lambda: 1 // 0))
        for handle in -1, 1 << 64, "x", None:
            assert outcome(Communicator.allreduce, comm, x, stream=Stream(int, handle)) == outcome(
                by_ctypes["allreduce"], comm, x, stream=Stream(int, handle)
            )
        other = symwin.Stream((comm.device + 1) % symwin.device_count())
        for _ in "alive", "destroyed":
            found = outcome(Communicator.allreduce, comm, x, stream=other)
            assert found == outcome(by_ctypes["allreduce"], comm, x, stream=other)
            assert found[0] is SymwinInvalid or other.device_index == comm.device
            other.destroy()
        y = comm.empty(4)
        comm.alltoall(x, y, stream=Stream(lambda: setattr(comm, "nranks", 0)))
        comm.nranks = 1
        group = symwin.group()
        comm.allreduce(x, stream=Stream(group.__enter__))
        assert len(symwin.comm.opened.keep) == 1  # it is a call of the group
        group.__exit__(None, None, None)
        symwin.synchronize(comm.device)
        with pytest.raises(SymwinInvalid, match="was destroyed"):
            comm.allreduce(x, stream=Stream(comm.destroy))

    ranks(1, body)


WITH_COUNTS = {
    "alltoallv": lambda x, y, big: (x, [4], y, [4]),
    "allgatherv": lambda x, y, big: (x, y, [4]),
    "reduce_scatterv": lambda x, y, big: (x, [4], y),
    "send": lambda x, y, big: (x, 0),
    "recv": lambda x, y, big: (x, 0),
}


@pytest.mark.parametrize("way", ["as it is", "by ctypes"])
@pytest.mark.parametrize("name", [name for name in by_ctypes if name != "barrier"])
def test_a_stream_that_frees_memory(ranks, name, way):
    """A stream's own code runs once, and before the addresses are read."""
    function = by_ctypes[name] if way == "by ctypes" else getattr(Communicator, name)

    def body(comm):
        arrays, ran = [comm.empty(4) for _ in range(3)], []

        class Stream:
            def __cuda_stream__(self):
                ran.append(1)
                for array in arrays:
                    array.buffer.free()
                return 0, 0

        with pytest.raises(SymwinInvalid, match="was freed"):
            function(comm, *{**GOOD, **WITH_COUNTS}[name](*arrays), stream=Stream())
        assert len(ran) == 1

    ranks(1, body)


def like_a_tensor(table):
    """A class with what is asked of torch's tensors, on an Array."""

    class Tensor:
        __dlpack_c_exchange_api__ = table
        is_cpu, is_cuda = symwin.is_emulated(), not symwin.is_emulated()

        def __init__(self, array):
            self.array, self.dtype, self.nbytes = array, array.dtype, array.nbytes

        def __getattr__(self, name):
            storage = types.SimpleNamespace(nbytes=lambda: self.nbytes)
            return {
                "data_ptr": lambda: self.array.ptr, "numel": lambda: self.array.count,
                "get_device": lambda: self.array.device, "untyped_storage": lambda: storage,
                "is_contiguous": lambda: True, "is_neg": lambda: False,
                "storage_offset": lambda: 0, "element_size": lambda: 4,
            }[name]  # fmt: skip

    return Tensor


def test_classes_like_tensors(ranks, monkeypatch):
    """A module `torch` that is another one, and tables that are none: no quick way, and no more."""

    def body(comm):
        x = symwin.from_host(np.full(4, 3, "f4"), device=comm.device)
        for table in None, "text", datetime.datetime_CAPI:  # the last is a capsule, of another name
            for names in (), ("Tensor",), ("Tensor", "nn"), ("nn",):
                kind = like_a_tensor(table)
                module = types.ModuleType("torch")
                found = {"Tensor": kind, "nn": types.SimpleNamespace(Parameter=kind)}
                vars(module).update({name: found[name] for name in names})
                with monkeypatch.context() as patch:
                    patch.setitem(sys.modules, "torch", module)
                    for _ in range(2):
                        assert comm.allreduce(kind(x)).array.numpy().tolist() == [3] * 4

    ranks(1, body)


@extension
def test_communicators_that_are_none(ranks):
    class Empty(Communicator):
        def __init__(self):
            pass

    x = symwin.empty(4)
    for use in Empty().allreduce, Empty().broadcast, Communicator.__new__(Communicator).allreduce:
        with pytest.raises(SymwinInvalid, match="destroyed"):
            use(x)
    for other in None, 1, object(), x:
        with pytest.raises(TypeError):
            Communicator.allreduce(other, x)
    with pytest.raises(TypeError):
        Communicator.allreduce()

    def body(comm):
        for key, value in ("_handle", "x"), ("_handle", -1 << 70), ("nranks", None), ("device", []):
            with pytest.raises((TypeError, OverflowError)):
                setattr(comm, key, value)
        for key in "_handle", "nranks":
            with pytest.raises(TypeError):
                delattr(comm, key)
        for nranks in 0, -5:
            comm.nranks = nranks
            with pytest.raises((SymwinInvalid, ZeroDivisionError)):
                comm.alltoall(x, symwin.empty(4))
        comm.nranks = 1
        comm.allreduce(x)
        symwin.synchronize(comm.device)

    ranks(1, body)
    with pytest.raises(TypeError):
        import pickle

        pickle.dumps(Empty())


@extension
def test_nothing_leaks(ranks):
    def body(comm):
        x, y, odd = comm.empty(0), comm.empty(0), comm.empty(3)
        stream = symwin.Stream(comm.device)

        class Other:
            def __cuda_stream__(self):
                return stream.__cuda_stream__()

        other = Other()
        calls = [
            lambda: comm.allreduce(x, y, "max", stream=stream),
            lambda: comm.allreduce(x, stream=other),
            lambda: comm.allgather(x, output=y),
            lambda: comm.gather(x, None),
            lambda: comm.barrier(),
            lambda: comm.allreduce(x, odd),  # and what fails: by comm.py, by C
            lambda: comm.allreduce(x, nothing=3),
            lambda: comm.allreduce(),
            lambda: comm.allreduce(1 << 90, op=[]),
            lambda: comm.allreduce(odd, op="mulsum"),
            lambda: comm.send(odd, 12),
        ]

        def repeat():
            for call in calls:
                for _ in range(200):
                    try:
                        call()
                    except (TypeError, SymwinError):
                        pass

        kept = (x, y, odd, stream, other, None, comm)
        repeat()
        gc.collect()
        blocks, references = sys.getallocatedblocks(), [sys.getrefcount(k) for k in kept]
        repeat()
        gc.collect()
        assert sys.getallocatedblocks() - blocks < 100
        assert all(abs(sys.getrefcount(k) - n) < 50 for k, n in zip(kept, references))
        symwin.synchronize(comm.device)
        stream.destroy()

    ranks(1, body)


def test_threads(ranks):
    """Of one communicator: each call is made, or BUSY; until the communicator ends."""

    def body(comm):
        x, told, done = comm.empty(16), set(), []

        def main():
            while True:
                try:
                    for _ in range(10):
                        comm.allreduce(x)
                    done.append(1)
                    time.sleep(0.001)  # or destroy() finds no moment
                except SymwinError as error:
                    told.add(error.status)
                    if error.status is not Status.BUSY:
                        return

        assert comm._acquire() and not comm._acquire()  # as another thread
        for call in lambda: comm.allreduce(x), comm.barrier, comm.query, comm.destroy:
            with pytest.raises(SymwinError, match="another thread is in a call"):
                call()
        comm._release()
        threads = [threading.Thread(target=main) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(done) < 40:
            time.sleep(0.01)
        symwin.synchronize(comm.device)
        while True:
            try:
                comm.destroy()
                break
            except SymwinError as error:
                assert error.status is Status.BUSY
        for thread in threads:
            thread.join()
        assert Status.INVALID in told and told <= {Status.INVALID, Status.BUSY}

    ranks(1, body)


def test_groups_of_one_thread(ranks):
    """A thread's group is not that of others, and memory lives until it ends."""

    def body(comm):
        with symwin.group():
            x = symwin.from_host(np.full(3, comm.rank + 1, "f4"), device=comm.device)
            comm.allreduce(x)
            buffer = x.buffer
            del x
            gc.collect()
            if comm.rank == 0:
                other = threading.Thread(target=lambda: results.append(alone.allreduce(y) is y))
                other.start()
                other.join()
            assert sys.getrefcount(buffer) > 2  # the group has the array
        return True

    results = []
    with Communicator(symwin.unique_id(), 1, 0) as alone:
        y = alone.empty(4)
        assert ranks(RANKS, body) == [True] * RANKS
        symwin.synchronize()
    assert results == [True]


@pytest.mark.parametrize("name", by_ctypes)
def test_help(name):
    """A call tells its signature and its text, whoever makes it."""
    call = getattr(Communicator, name)
    signature = str(inspect.signature(call)).replace("self, /", "self")
    assert signature == str(inspect.signature(by_ctypes[name]))
    assert inspect.getdoc(call) == inspect.getdoc(by_ctypes[name])


@extension
def test_once_in_a_process():
    """A second copy of the package, as of another interpreter in the process, goes by ctypes."""
    made = run("""
import sys, symwin
first = symwin
for name in [name for name in sys.modules if name.startswith("symwin")]:
    del sys.modules[name]
import symwin
print(first.has_extension(), symwin.has_extension())
for package in first, symwin:
    with package.Communicator(package.unique_id(), 1, 0) as comm:
        print(comm.allreduce(comm.empty(4)).count)
        package.synchronize()
""")
    assert made.stdout == "True False\n4\n4\n", made.stderr
