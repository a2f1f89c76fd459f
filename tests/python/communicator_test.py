"""Communicators: results against numpy, wrong input, and ends."""

import ctypes
import gc
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import symwin
from symwin import Communicator, Status, SymwinError, SymwinInvalid, SymwinTimeout
from symwin.selftest import run as selftest

RANKS = 4


def test_every_collective_against_numpy():
    sentence, wrong = selftest()
    assert wrong == [] and "50 results of 4 ranks are right" in sentence


REDUCED = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


@pytest.mark.parametrize("dtype", ["f64", "f32", "i32", "u32", "i64", "u64", "i8", "u8"])
@pytest.mark.parametrize("op", REDUCED)
def test_types_and_operations(ranks, dtype, op):
    kind = symwin.empty(1, dtype).numpy().dtype
    inputs = [np.arange(r, r + 9).astype(kind) % 5 + 1 for r in range(RANKS)]
    expected = REDUCED[op](np.stack(inputs), axis=0, **({"dtype": kind} if "r" in op else {}))

    def body(comm):
        x = symwin.from_host(inputs[comm.rank], dtype, comm.device)
        return comm.allreduce(x, op=op).numpy()

    for result in ranks(RANKS, body):
        assert result.dtype == kind and np.array_equal(result, expected.astype(kind))


def test_premultiplied(ranks):
    def body(comm):
        x = symwin.from_host(np.ones(10, "f4"), device=comm.device)
        comm.allreduce(x, op="mulsum", scalar=float(comm.rank + 1))
        first = x.numpy()
        factor = symwin.from_host(np.full(1, 0.5, "f4"), device=comm.device)
        comm.allreduce(x, op="mulsum", scalar=factor)
        return first, x.numpy()

    for first, second in ranks(2, body):
        assert np.array_equal(first, np.full(10, 3)) and np.array_equal(second, first)


def test_numpy_numbers(ranks):
    """Whole numbers may be numpy's."""

    def body(comm):
        x, parts = comm.empty(2), comm.empty(4)
        x.copy_from(np.full(2, comm.rank + 1, "f4"))
        comm.allgatherv(x, parts, np.full(2, 2), displacements=np.array([2, 0]))
        comm.broadcast(x, root=np.int64(1), blocks=np.int32(1))
        comm.allreduce(x, op="mulsum", scalar=np.float32(0.5))
        with comm.window(parts) as window:
            assert window.peer_ptr(np.uint8(1), np.int64(4)) == window.peer_ptr(1, 4)
        return parts.numpy().tolist(), x.numpy().tolist()

    assert ranks(2, body) == [([2, 2, 1, 1], [2, 2])] * 2


def test_options_and_windows(ranks):
    def body(comm):
        x, y = comm.empty(4096), comm.empty(4096)
        x.copy_from(np.full(4096, comm.rank, "f4"))
        with comm.window(x) as window:
            info = window.query()
            assert info["bytes"] == x.nbytes and info["nranks"] == comm.nranks
            assert info["rank"] == comm.rank and info["ptr"] == x.ptr
            peer = (comm.rank + 1) % comm.nranks
            assert window.peer_ptr(peer, 8) == (
                info["base"] + peer * info["stride"] + info["offset"] + 8
            )
            for algo in ("oneshot", "twoshot", "twoshot_push"):
                try:
                    comm.allreduce(x, y, algo=algo, blocks=2, threads=64)
                except SymwinError as error:  # all ranks alike: y is in no window
                    assert error.status is Status.UNSUPPORTED and algo == "twoshot"
                    continue
                assert y.numpy()[17] == sum(range(comm.nranks))
            comm.barrier()
            symwin.synchronize(comm.device)
        window.deregister()
        with pytest.raises(SymwinInvalid, match="deregistered"):
            window.query()
        return True

    assert all(ranks(2, body))


def test_split(ranks):
    def body(comm):
        part = comm.split(comm.rank % 2, key=-comm.rank)
        x = symwin.from_host(np.full(3, comm.rank, "i4"), device=comm.device)
        part.allreduce(x)
        found = (part.rank, part.nranks, int(x.numpy()[0]))
        comm.barrier()
        symwin.synchronize(comm.device)
        part.destroy()
        assert comm.split(None) is None
        return found

    assert ranks(4, body) == [(1, 2, 2), (1, 2, 4), (0, 2, 2), (0, 2, 4)]


def test_split_of_a_derived_class():
    """Its __new__() has no part in it: the other ranks would have a part that this one has not."""

    class Named(Communicator):
        def __new__(cls, *arguments, name):
            return super().__new__(cls)

        def __init__(self, *arguments, name):
            super().__init__(*arguments)

    with Named(symwin.unique_id(), 1, 0, name="whole") as comm, comm.split(0) as part:
        assert type(part) is Named and part.nranks == 1


class Foreign:
    """Another library's array."""

    def __init__(self, array, shape, read_only=False):
        self.array = array
        self.__cuda_array_interface__ = {
            "data": (array.ptr, read_only), "shape": shape, "typestr": "<f4", "version": 3,
        }  # fmt: skip


BAD = [
    (lambda c: c.allreduce([1, 2]), "input is a list"),
    (lambda c: c.allreduce(c.empty(4), Foreign(c.empty(4), (4,), True)), "read-only"),
    (lambda c: c.allreduce(Foreign(c.empty(4), (2**32, 2**32))), "no memory has so many"),
    (lambda c: c.allreduce(None), "input is a NoneType"),
    (lambda c: c.allreduce(np.zeros(4, "f4")), "is not device memory"),
    (lambda c: c.allreduce(np.zeros((4, 4), "f4").T[:, :2]), "not contiguous"),
    (lambda c: c.allreduce(np.zeros(4, "c8")), "of a type that symwin has not"),
    (lambda c: c.allreduce(c.empty(4), op="median"), "op is 'median'"),
    (lambda c: c.allreduce(c.empty(4), op=17), "op is 17"),
    (lambda c: c.allreduce(c.empty(4), op=None), "op is None"),
    (lambda c: c.allreduce(c.empty(4), op=[]), "op is []"),
    (lambda c: c.allreduce(c.empty(4), c.empty(5)), "output has 5 elements; expected 4"),
    (lambda c: c.allreduce(c.empty(4), c.empty(4, "f64")), "output is of f64"),
    (lambda c: c.allreduce(c.empty(4), stream="s"), "stream is a str"),
    (lambda c: c.allreduce(c.empty(4), stream=-1), "stream is -1"),
    (lambda c: c.allreduce(c.empty(4), algo="fast"), "algo is 'fast'"),
    (lambda c: c.allreduce(c.empty(4), blocks=-1), "blocks is -1"),
    (lambda c: c.allreduce(c.empty(4), op="mulsum"), "scalar"),
    (lambda c: c.allreduce(c.empty(4), scalar=2.0), "scalar"),
    (lambda c: c.allreduce(c.empty(4, "i32"), op="mulsum", scalar=1.5), "is 1.5, which is no i32"),
    (lambda c: c.allreduce(c.empty(4, "u8"), op="mulsum", scalar=-1), "is -1, which is no u8"),
    (lambda c: c.allreduce(c.empty(4, "f16"), op="mulsum", scalar=1e9), "which is no f16"),
    (lambda c: c.allreduce(c.empty(4, "bf16"), op="mulsum", scalar=1), "cannot be made bf16"),
    (lambda c: c.allgather(c.empty(4), c.empty(5)), "output has 5 elements; expected 4"),
    (lambda c: c.reduce_scatter(c.empty(5), c.empty(4)), "input has 5 elements; expected 4"),
    (lambda c: c.broadcast(c.empty(4), root=1), "root"),
    (lambda c: c.broadcast(c.empty(4), root="x"), "root is 'x'"),
    (lambda c: c.broadcast(c.empty(4), root=0.0), "root is 0.0"),
    (lambda c: c.broadcast(None), "output is a NoneType"),
    (lambda c: c.send(c.empty(4), 5), "peer"),
    (lambda c: c.recv(c.empty(4), -1), "peer is -1"),
    (lambda c: c.alltoallv(c.empty(4), [1, 2], c.empty(4), [4]), "input_counts is [1, 2]"),
    (lambda c: c.alltoallv(c.empty(4), [5], c.empty(4), [4]), "are 5 elements, of an array of 4"),
    (lambda c: c.alltoallv(c.empty(4), [-1], c.empty(4), [4]), "input_counts is [-1]"),
    (lambda c: c.alltoallv(c.empty(4), [4.0], c.empty(4), [4]), "input_counts is [4.0]"),
    (lambda c: c.allgatherv(c.empty(1), c.empty(4), [4]), "input has 1 elements"),
    (
        lambda c: c.allgatherv(c.empty(4), c.empty(4), [4], displacements=[1]),
        "the part of rank 0 in counts and displacements ends at 5, of an array of 4",
    ),
    (lambda c: c.allgatherv(c.empty(4), c.empty(4), [4], displacements=3), "displacements is 3"),
    (lambda c: c.allgatherv(c.empty(4), c.empty(4), [4], displacements=[]), "displacements is []"),
    (
        lambda c: c.reduce_scatterv(c.empty(4), [4], c.empty(4), displacements=[-1]),
        "displacements is [-1]; pass 1 numbers",
    ),
    (
        lambda c: c.alltoallv(c.empty(4), [4], c.empty(4), [4], output_displacements=[1 << 70]),
        "output_displacements is [1180591620717411303424]",
    ),
    (
        lambda c: c.allgatherv(c.empty(4), c.empty(4), c.empty(1, "i64")),
        "counts and displacements: both are arrays of the device, or none is",
    ),
    (
        lambda c: c.allgatherv(
            c.empty(4), c.empty(4), c.empty(1, "f64"), displacements=c.empty(1, "u64")
        ),
        "counts is no array of 1 elements of i64 or u64",
    ),
    (
        lambda c: c.allgatherv(
            c.empty(4), c.empty(4), c.empty(1, "i64"), displacements=c.empty(2, "i64")
        ),
        "displacements is no array of 1 elements",
    ),
    (lambda c: c.register(np.zeros(4, "f4")), "is not device memory"),
    (lambda c: c.register(None), "memory is a NoneType"),
    (lambda c: c.channel(0), "peer"),
    (lambda c: c.channel(1), "peer"),
    (lambda c: c.channel("x"), "peer is 'x'"),
    (lambda c: c.channel(0, lanes=0), "lanes is 0"),
    (lambda c: c.channel(0, [1]), "memory is a list"),
    (lambda c: c.window(np.zeros(4, "f4")), "is not in VMM memory"),
    (lambda c: c.window(c.empty(4), flags=1 << 20), "flag"),
    (lambda c: c.split("x"), "color is 'x'"),
    (lambda c: c.split(-7), "color is -7"),
]


@pytest.mark.parametrize("call, words", BAD)
def test_bad_input(ranks, call, words):
    def body(comm):
        with pytest.raises(SymwinInvalid) as caught:
            call(comm)
        assert words in str(caught.value)
        x = symwin.from_host(np.ones(3, "f4"), device=comm.device)  # and it works on
        assert np.array_equal(comm.allreduce(x).numpy(), np.ones(3))
        return True

    assert ranks(1, body) == [True]


def test_unknown_options(ranks):
    def body(comm):
        with pytest.raises(TypeError, match="speed is no option"):
            comm.allreduce(comm.empty(4), speed=3)

    ranks(1, body)
    with pytest.raises(TypeError, match="colour is no option"):
        Communicator(symwin.unique_id(), 1, 0, colour=3)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((b"short", 1, 0), "id is a bytes of 5"),
        (("x" * 128, 1, 0), "id is a str"),
        ((None, 1, 0), "id is a NoneType"),
        ((b"\0" * 128, 1, 0), "id"),
        ((bytes(128), 0, 0), "nranks is 0"),
        ((bytes(128), 1, -1), "rank is -1"),
        ((bytes(128), 1.5, 0), "nranks is 1.5"),
    ],
)
def test_bad_creation(arguments, words):
    with pytest.raises(SymwinError, match=words):
        Communicator(*arguments)


def test_no_such_device():
    with pytest.raises(SymwinInvalid, match="99"):
        Communicator(symwin.unique_id(), 1, 0, 99)


def test_freed_memory(ranks):
    def body(comm):
        x = comm.empty(4)
        x.buffer.free()
        with pytest.raises(SymwinInvalid, match="was freed"):
            comm.allreduce(x)
        with pytest.raises(SymwinInvalid, match="was freed"):
            comm.window(x)
        y = comm.empty(4)
        window = comm.window(y)
        with pytest.raises(SymwinError) as caught:
            y.buffer.free()
        assert caught.value.status is Status.BUSY
        window.deregister()
        y.buffer.free()

    ranks(1, body)


def test_ended(ranks):
    def body(comm):
        x = comm.empty(4)
        window = comm.window(x)
        comm.destroy()
        comm.destroy()
        window.deregister()
        for use in (
            lambda: comm.allreduce(x),
            lambda: comm.barrier(),
            lambda: comm.check(),
            lambda: comm.query(),
            lambda: comm.abort(),
            lambda: comm.split(0),
            lambda: window.query(),
        ):
            with pytest.raises(SymwinInvalid):
                use()
        assert "destroyed" in repr(comm)

    ranks(1, body)


def test_not_destroyed():
    comm = Communicator(symwin.unique_id(), 1, 0)
    handle = comm._handle
    with pytest.warns(ResourceWarning, match="was not destroyed"):
        del comm
    symwin.comm.lib.symwin_comm_destroy(handle)


def test_a_late_rank(ranks):
    """Rank 1 never comes: rank 0's registration ends in time, and says who."""

    def body(comm):
        if comm.rank == 0:
            with pytest.raises(SymwinTimeout, match="rank 1"):
                comm.window(comm.empty(4))
            over.set()
        else:
            over.wait(10)

    over = threading.Event()
    ranks(2, body, timeout_ms=300)


def test_abort_from_another_thread(ranks):
    def body(comm):
        if comm.rank == 1:
            over.wait(10)
            return
        begun = time.monotonic()
        threading.Timer(0.2, comm.abort).start()
        with pytest.raises(SymwinError) as caught:
            comm.window(comm.empty(4))
        over.set()
        assert caught.value.status is Status.ABORTED and time.monotonic() - begun < 5

    over = threading.Event()
    ranks(2, body)


@pytest.mark.parametrize("place", ["host", "i64", "u64"])
def test_parts_with_displacements(ranks, place):
    """Counts and displacements on the host and on the device; gaps between parts stay."""

    def body(comm):
        n, r = comm.nranks, comm.rank
        kept, counts = [], [rank + 1 for rank in range(n)]
        begins = [20 - 5 * rank for rank in range(n)]  # backwards

        def given(numbers):
            if place == "host":
                return numbers
            kept.append(symwin.from_host(np.array(numbers), place, comm.device))
            return kept[-1]

        mine = np.full(r + 1, 10.0 + r, "f4")
        x, y = symwin.from_host(mine, device=comm.device), comm.empty(30)
        y.copy_from(np.full(30, -1, "f4"))
        made = comm.allgatherv(x, y, given(counts), displacements=given(begins))
        assert made is y
        expected = np.full(30, -1, "f4")
        for rank in range(n):
            expected[begins[rank] : begins[rank] + rank + 1] = 10 + rank
        assert np.array_equal(y.numpy(), expected)

        y.copy_from(np.arange(30, dtype="f4") * (r + 1))
        x = comm.empty(r + 1)
        comm.reduce_scatterv(y, given(counts), x, displacements=given(begins))
        part = np.arange(30, dtype="f4")[begins[r] : begins[r] + r + 1] * sum(range(n + 1))
        assert np.array_equal(x.numpy(), part)

        z = comm.empty(30)
        z.copy_from(np.full(30, -1, "f4"))
        comm.alltoallv(
            y, given(counts), z, given([r + 1] * n), input_displacements=given(begins),
            output_displacements=given([7 * rank for rank in range(n)]),
        )  # fmt: skip
        expected = np.full(30, -1, "f4")
        for rank in range(n):
            sent = np.arange(begins[r], begins[r] + r + 1) * (rank + 1)
            expected[7 * rank : 7 * rank + r + 1] = sent
        assert np.array_equal(z.numpy(), expected)
        return True

    assert ranks(3, body) == [True] * 3


def test_counts_of_the_device_in_a_group(ranks):
    """The arrays live until the group has been launched."""

    def body(comm):
        x, y = comm.empty(4), comm.empty(4)
        x.copy_from(np.full(4, 3, "f4"))
        counts = symwin.from_host(np.array([4]), "i64", comm.device)
        begins = symwin.from_host(np.array([0]), "i64", comm.device)
        with symwin.group():
            comm.allgatherv(x, y, counts, displacements=begins)
            (operands, _), = symwin.comm.opened.keep
            assert operands[2] == [counts, begins]
        assert y.numpy().tolist() == [3] * 4

    ranks(1, body)


def test_counts_that_are_read_once(ranks):
    """Whatever gives a number for each rank."""

    def body(comm):
        x, y = symwin.from_host(np.full(4, 3, "f4"), device=comm.device), comm.empty(4)
        assert comm.allgatherv(x, y, iter([4])).numpy().tolist() == [3] * 4
        assert comm.reduce_scatterv(y, {4: None}, x).numpy().tolist() == [3] * 4
        with pytest.raises(SymwinInvalid, match="input has 4 elements, and this rank's part 5"):
            comm.allgatherv(x, comm.empty(5), iter([5]))

    ranks(1, body)


def test_registrations(ranks):
    def body(comm):
        x = symwin.from_host(np.full(100000, comm.rank + 1, "f4"), device=comm.device)
        registration, again = comm.register(x), comm.register(x)
        info = registration.query()
        assert (info["ptr"], info["bytes"], info["local_references"]) == (x.ptr, x.nbytes, 2)
        assert info["transports"] == 0
        assert comm.allreduce(x).numpy()[99999] == 3
        assert registration.query()["transports"] != 0 and info["refused"] == ""
        with pytest.raises(SymwinError) as caught:
            x.buffer.free()
        assert caught.value.status is Status.BUSY
        again.deregister()
        with registration:
            pass
        registration.deregister()
        with pytest.raises(SymwinInvalid, match="was released"):
            registration.query()
        comm.barrier()
        symwin.synchronize(comm.device)
        comm.register(symwin.Buffer(4096, comm.device))  # the communicator keeps the memory
        gc.collect()
        assert symwin.memory.usage(comm.device)["asked_bytes"] > 4096
        comm.destroy()
        gc.collect()

    ranks(2, body)


def test_channels(ranks):
    """Each rank writes to the other's memory by what kernels get."""

    def body(comm):
        peer = 1 - comm.rank
        x, other = comm.empty(1000 + comm.rank, "i64"), comm.empty(8)
        channel, second = comm.channel(peer, x, lanes=3), comm.channel(peer)
        got = channel.connect()
        assert got == channel.connect() and got["own"] == x.ptr
        assert [*got] == ["own", "theirs", "signals", "their_signals", "waited"]
        info = channel.query()
        assert (info["peer"], info["lanes"], info["connected"]) == (peer, 3, 1)
        assert (info["bytes"], info["their_bytes"]) == (x.nbytes, 8 * (1000 + peer))
        assert second.connect()["own"] == second.connect()["theirs"] == 0
        if symwin.is_emulated():
            ctypes.c_int64.from_address(got["theirs"] + 8 * 999).value = 50 + comm.rank
            comm.barrier()
            assert x.numpy()[999] == 50 + peer
        with pytest.raises(SymwinError):
            x.buffer.free()
        comm.barrier()
        symwin.synchronize(comm.device)
        channel.destroy()
        channel.destroy()
        with pytest.raises(SymwinInvalid, match="was destroyed"):
            channel.query()
        with second:
            comm.channel(peer, other.buffer)  # goes with the communicator
        comm.destroy()
        with pytest.raises(SymwinInvalid, match="destroyed"):
            second.connect()

    ranks(2, body)


@pytest.mark.parametrize(
    "fail, words",
    [
        (lambda comm, freed: comm.channel(1, np.zeros((4, 4), "f4").T[:, :2]), "not contiguous"),
        (lambda comm, freed: comm.channel(1, freed), "was freed"),
        (lambda comm, freed: comm.channel(1, freed.buffer), "was freed"),
        (lambda comm, freed: comm.channel(1, [1]), "memory is a list"),
        (lambda comm, freed: comm.channel(1, lanes=0), "lanes is 0"),
    ],
)
def test_channels_that_fail_here(ranks, fail, words):
    """The peer hears of it at once, and the next channels of both meet."""

    def body(comm):
        peer, freed = 1 - comm.rank, comm.empty(4)
        freed.buffer.free()
        if comm.rank == 0:
            with pytest.raises(SymwinInvalid, match=words):
                fail(comm, freed)
        else:
            begun, refused = time.monotonic(), comm.channel(peer)
            with pytest.raises(SymwinInvalid, match="rank 0"):
                refused.connect()
            assert time.monotonic() - begun < 5
        x = comm.empty(10 + comm.rank, "u8")
        channel = comm.channel(peer, x)
        channel.connect()
        assert channel.query()["their_bytes"] == 10 + peer
        comm.barrier()
        symwin.synchronize(comm.device)

    ranks(2, body, timeout_ms=10000)


RELEASED = {
    "symwin_window_deregister": lambda comm, x: comm.window(x),
    "symwin_deregister": lambda comm, x: comm.register(x),
    "symwin_channel_destroy": lambda comm, x: comm.channel(1, x),
}


@pytest.mark.parametrize("name", RELEASED)
def test_releases(ranks, monkeypatch, name):
    """C is called once, whoever is fast, and has released all also if it tells a failure."""
    called, release = [], getattr(symwin.comm.lib, name)

    def body(comm):
        if comm.rank == 1:
            return
        x = comm.empty(4)
        buffer, made = weakref.ref(x.buffer), RELEASED[name](comm, x)
        del x
        end = made.destroy if "channel" in name else made.deregister

        def fails(handle, mine):
            called.append(mine)
            end()  # as another thread
            return release(handle, mine) or Status.DRIVER

        monkeypatch.setattr(symwin.comm.lib, name, fails)
        assert buffer() is not None
        with pytest.raises(SymwinError) as caught:
            end()
        assert caught.value.status is Status.DRIVER
        end()
        assert len(called) == 1 and made not in comm._kept
        gc.collect()
        assert buffer() is None

    ranks(2 if "channel" in name else 1, body)


def test_memory_after_the_end(ranks):
    """What is left of windows, registrations and channels holds none."""

    def body(comm):
        arrays = [comm.empty(4) for _ in range(3)]
        buffers = [weakref.ref(x.buffer) for x in arrays]
        left = [comm.window(arrays[0]), comm.register(arrays[1])]
        left.append(comm.channel(1 - comm.rank, arrays[2]))
        del arrays
        gc.collect()
        assert None not in [buffer() for buffer in buffers]
        comm.destroy()
        gc.collect()
        assert [buffer() for buffer in buffers] == [None] * 3
        for one in left:
            with pytest.raises(SymwinInvalid, match="destroyed"):
                one.query()

    ranks(2, body)


def test_destroy_waits(ranks, monkeypatch):
    """For threads in calls that any thread may make, also if they have not come to C yet."""
    abort = symwin.comm.lib.symwin_comm_abort

    def body(comm):
        def late(handle):
            with pytest.raises(SymwinError, match="this thread is in a call") as caught:
                comm.destroy()  # as a signal's handler
            assert caught.value.status is Status.BUSY and comm._handle == handle
            ending.start()
            ending.join(0.3)
            assert ending.is_alive()
            for call in comm.abort, comm.check, lambda: comm.register(x):
                with pytest.raises(SymwinInvalid, match="was destroyed"):
                    call()
            registration.deregister()  # has nothing to do any more
            return abort(handle)

        x, ending = comm.empty(4), threading.Thread(target=comm.destroy)
        registration = comm.register(x)
        monkeypatch.setattr(symwin.comm.lib, "symwin_comm_abort", late)
        comm.abort()
        ending.join(30)
        assert not ending.is_alive() and not comm._kept

    ranks(1, body)


def test_destroy_that_is_interrupted(ranks):
    def body(comm):
        def interrupted(_):
            raise KeyboardInterrupt

        comm._idle.wait_for = interrupted
        with pytest.raises(KeyboardInterrupt):
            comm.destroy()
        del comm._idle.wait_for
        assert comm.query()["nranks"] == 1  # it is as it was

    ranks(1, body)


def test_two_threads(ranks):
    def body(comm):
        if comm.rank == 1:
            comm.window(comm.empty(4))
            time.sleep(0.5)
            comm.window(comm.empty(4))
            return
        other, window, channel = [], comm.window(comm.empty(4)), comm.channel(1)

        def second():
            time.sleep(0.1)
            for call in comm.query, window.deregister:
                try:
                    call()
                except SymwinError as error:
                    other.append(error.status)
            comm.check()
            with comm.register(comm.empty(4)) as registration:  # what C lets any thread call
                assert registration.query()["local_references"] == 1
            info = window.query()
            assert window.peer_ptr(0) == info["base"] + info["offset"]
            assert channel.query()["peer"] == 1
            channel.destroy()
            other.append(comm._acquire())  # all of this beside the call

        thread = threading.Thread(target=second)
        thread.start()
        comm.window(comm.empty(4))  # waits for rank 1
        thread.join()
        assert other == [Status.BUSY, Status.BUSY, False]
        assert comm.query()["windows"] == 2
        window.deregister()  # the window was not lost
        assert comm.query()["windows"] == 1

    ranks(2, body)


def test_groups(ranks):
    def body(comm):
        arrays = [
            symwin.from_host(np.full(7, comm.rank + i, "i4"), device=comm.device)
            for i in range(5)
        ]
        with symwin.group():
            for x in arrays:
                comm.allreduce(x)
        assert [int(x.numpy()[3]) for x in arrays] == [6 + 4 * i for i in range(5)]
        with pytest.raises(KeyError):
            with symwin.group():
                comm.allreduce(arrays[0])
                raise KeyError("mine")
        with pytest.raises(SymwinInvalid):
            with symwin.group():
                comm.send(arrays[0], comm.rank)  # without its receive
        assert int(arrays[0].numpy()[0]) == 6
        comm.allreduce(arrays[0])
        return int(arrays[0].numpy()[0])

    assert ranks(4, body) == [24] * 4


def test_processes():
    """A rank in each process, as a launcher starts them."""
    program = """
import numpy, symwin
with symwin.Communicator.from_env() as comm:
    x = symwin.from_host(numpy.full(5, comm.rank + 1, "f4"), device=comm.device)
    with comm.window(x):
        comm.allreduce(x)
        comm.barrier()
        print(comm.rank, comm.nranks, int(x.numpy()[4]))
"""
    import os

    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=dict(os.environ, SYMWIN_RANK=str(r), SYMWIN_NRANKS="2",
                     SYMWIN_JOB=f"pytest-{os.getpid()}"),
            stdout=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    assert [run.communicate(timeout=60)[0] for run in runs] == ["0 2 3\n", "1 2 3\n"]


def test_no_launcher(monkeypatch):
    for name in ("SYMWIN_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SymwinInvalid, match="no launcher"):
        Communicator.from_env()


def test_mpi():
    """By what mpi4py's communicators have; rank 0's failure is that of all."""

    class Two:
        def __init__(self, rank, box, meet):
            self.rank, self.box, self.meet = rank, box, meet

        def Get_rank(self):
            return self.rank

        def Get_size(self):
            return 2

        def bcast(self, value):
            if self.rank == 0:
                self.box.append(value)
            self.meet.wait(10)
            return self.box[0]

    box, meet, sums = [], threading.Barrier(2), [None, None]

    def main(rank):
        with Communicator.from_mpi(Two(rank, box, meet), rank) as comm:
            x = symwin.from_host(np.full(3, rank + 1, "i4"), device=rank)
            sums[rank] = int(comm.allreduce(x).numpy()[0])

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [3, 3]


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["selftest"], 0, "50 results of 4 ranks are right"),
        (["info"], 0, "emu"),
        (["--help"], 0, "usage"),
        ([], 2, "usage"),
        (["self-test"], 2, "usage"),
        (["selftest", "x"], 2, "usage"),
        (["bench", "-b", "8", "-e", "64", "-t", "2", "-n", "2", "-w", "1"], 0, "allreduce"),
        (["bench", "--no-such"], 2, "no-such"),
    ],
)
def test_command_line(arguments, status, words):
    run = subprocess.run(
        [sys.executable, "-m", "symwin", *arguments], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, words in run.stdout + run.stderr) == (status, True), run.stderr


def test_command_that_is_interrupted():
    command = [sys.executable, "-m", "symwin", "bench", "-t", "2", "-e", "1G", "-n", "1", "-G", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert run.returncode != 0 and "Traceback" not in errors
