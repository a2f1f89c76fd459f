"""Communicators and their calls."""

import ctypes
import functools
import numbers
import operator
import struct
import threading
import warnings
from contextlib import contextmanager

from . import _api
from ._library import ask, check, lib
from .errors import Status, error, invalid, number
from . import _dlpack
from ._extension import fast
from .memory import Array, Buffer, is_emulated, operand
from .streams import Stream, handle_of

_byref = ctypes.byref
_OPTIONS_BYTES = ctypes.sizeof(_api.symwin_collective_options)


# ---- ids ----


def unique_id():
    """A new id of 128 bytes, with which the ranks of one communicator find each other. Keep it
    secret, and give it to all ranks."""
    made = _api.symwin_unique_id()
    check(lib.symwin_unique_id_create(_byref(made)))
    return bytes(made.bytes)


def unique_id_from_env():
    """The same new id in every process of a job that a launcher started (torchrun, mpirun, srun).
    Collective over the processes."""
    made = _api.symwin_unique_id()
    check(lib.symwin_unique_id_from_env(_byref(made)))
    return bytes(made.bytes)


def unique_id_release(id):
    """Releases an id that this process made and no communicator has used."""
    check(lib.symwin_unique_id_release(_byref(_id(id))))


def _id(id):
    if not isinstance(id, (bytes, bytearray)) or len(id) != 128:
        size = f" of {len(id)}" if isinstance(id, (bytes, bytearray)) else ""
        raise invalid(f"id is a {type(id).__name__}{size}; pass the 128 bytes of unique_id()")
    return _api.symwin_unique_id.from_buffer_copy(id)


def launch():
    """What a launcher says of this process: launcher (None: there is none), rank, nranks,
    local_rank and local_nranks, as a dict."""
    return ask(lib.symwin_launch_query, _api.symwin_launch_info)


# ---- arguments ----


def _choice(names, value, what):
    if isinstance(value, str) and value in names:
        return names[value]
    if isinstance(value, int) and value in names.values():
        return value
    raise invalid(f"{what} is {value!r}; symwin has {', '.join(names)}")


class _Kept:
    """What C made of this rank's memory. The communicator keeps it until it is released, and it
    keeps the memory, which peers may use until then."""

    def __init__(self, comm, handle, keep):
        self.comm, self._handle, self._keep = comm, handle, keep
        comm._kept.add(self)

    def _live(self):
        handle = self._handle
        if handle is None:
            raise invalid(self._over)
        return handle

    def _end(self, comm, function):
        """Releases it, unless that was done before, or by the communicator's end (comm: None)."""
        with self.comm._idle:  # of several threads one gets the handle
            handle, self._handle = self._handle, None
        if comm is not None and handle is not None:
            try:
                check(function(comm, handle))
            finally:  # C has released it also if it tells a failure
                self.comm._kept.discard(self)
                self._keep = None


class Window(_Kept):
    """A symmetric window: the memory of all ranks at one offset of a flat range. Made by
    Communicator.window(). A context manager."""

    _over = "the window was deregistered"

    def query(self):
        """symwin_window_info as a dict: ptr, bytes, base, stride, offset, rank, nranks,
        transports, buffer_id, allocations, multicast_reason."""
        with self.comm._sharing() as comm:
            return ask(lib.symwin_window_query, _api.symwin_window_info, comm, self._live())

    def peer_ptr(self, peer, offset=0):
        """The address of byte `offset` of rank `peer`'s window, for kernels of this device."""
        address = ctypes.c_void_p()
        peer, offset = number(peer, "peer"), number(offset, "offset", most=(1 << 63) - 1)
        with self.comm._sharing() as comm:
            check(
                lib.symwin_window_peer_pointer(comm, self._live(), peer, offset, _byref(address))
            )
        return address.value

    def multicast_ptr(self, offset=0):
        """The multicast address of byte `offset`. Status.UNSUPPORTED: the window has none."""
        address = ctypes.c_void_p()
        offset = number(offset, "offset", most=(1 << 63) - 1)
        with self.comm._sharing() as comm:
            check(
                lib.symwin_window_multicast_pointer(comm, self._live(), offset, _byref(address))
            )
        return address.value

    def deregister(self):
        """Deregisters it; a second time, or after the communicator's end, it does nothing."""
        if self._handle is None or self.comm._handle is None:
            return
        with self.comm._using() as comm:
            self._end(comm, lib.symwin_window_deregister)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.deregister()


class Registration(_Kept):
    """Memory that becomes a window in the first call that can use it (symwin/register.h). Made by
    Communicator.register(). Any thread may use it. A context manager."""

    _over = "the registration was released"

    def query(self):
        """symwin_registration_info as a dict: ptr, bytes, local_references, graph_references,
        transports, buffer_id, refused."""
        with self.comm._sharing() as comm:
            return ask(
                lib.symwin_registration_query, _api.symwin_registration_info, comm, self._live()
            )

    def deregister(self):
        """Releases it: local, when no call on the memory is under way. A second time, or after the
        communicator's end, it does nothing."""
        with self.comm._sharing(ended=True) as comm:
            self._end(comm, lib.symwin_deregister)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.deregister()


class Channel(_Kept):
    """This rank's end of a channel: memory of two ranks for each other's kernels, and counters by
    which these signal and wait (symwin/channel.h). Made by Communicator.channel(). Any thread may
    call query() and destroy(). A context manager."""

    _over = "the channel was destroyed"

    def connect(self):
        """Waits for the peer's end. Returns the five addresses of a symwin_channel in order, which
        is what kernels get, as a dict: own, theirs, signals, their_signals, waited."""
        with self.comm._using() as comm:
            return ask(lib.symwin_channel_connect, _api.symwin_channel, comm, self._live())

    def query(self):
        """symwin_channel_info as a dict: peer, lanes, connected, window, ptr, bytes,
        their_bytes."""
        with self.comm._sharing() as comm:
            return ask(lib.symwin_channel_query, _api.symwin_channel_info, comm, self._live())

    def destroy(self):
        """Destroys this end: local, when this rank's kernels with it have ended. The peer's may use
        this rank's memory until it destroys its own end. A second time, or after the communicator's
        end, it does nothing."""
        with self.comm._sharing(ended=True) as comm:
            self._end(comm, lib.symwin_channel_destroy)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()


class _Plain:
    """What the extension keeps in C: the handle, and whether a thread is in a call."""

    def __new__(cls, *_, **__):
        made = object.__new__(cls)
        lock = threading.Lock()
        made._acquire, made._release = functools.partial(lock.acquire, False), lock.release
        made._handle = None
        return made


class Communicator(fast.Slots if fast else _Plain):
    """A rank of a communicator. Creation is collective: every rank passes the same id.

    id       128 bytes of unique_id()
    nranks   how many ranks; rank: this one's number, from 0 on
    device   the ordinal of the rank's device; ranks may share one
    options  members of symwin_comm_options by name: timeout_ms, bootstrap_timeout_ms,
             kernel_timeout_ms, slot_bytes, max_blocks, spare_multiprocessors, flags

    One thread at a time may be in a call; a second one gets Status.BUSY. Beside it any thread may
    be in abort(), which ends calls that wait, in check() and register(), and in what C allows of
    windows, registrations and channels. destroy(), or the end of a `with` block, waits for these,
    and ends the communicator.
    """

    _default = _api.symwin_collective_options(size=_OPTIONS_BYTES)

    def __new__(cls, *_, **__):
        made = super().__new__(cls)
        made._kept = set()  # windows, registrations and channels
        # Threads in calls that any thread may make, which destroy() waits for. A thread may come
        # here again, by a signal's handler or a finalizer.
        made._users, made._idle = [], threading.Condition(threading.RLock())
        return made

    def __init__(self, id, nranks, rank, device=0, **options):
        handle = ctypes.c_void_p()
        check(
            lib.symwin_comm_create(
                _byref(_id(id)),
                number(nranks, "nranks", 1),
                number(rank, "rank"),
                number(device, "device", -1),
                _byref(_comm_options(options)),
                _byref(handle),
            )
        )
        self._adopt(handle.value)

    def _adopt(self, handle):
        self._handle, self._emulated = handle, is_emulated()
        info = ask(lib.symwin_comm_query, _api.symwin_comm_info, handle)
        self.nranks, self.rank, self.device = info["nranks"], info["rank"], info["device"]

    @classmethod
    def from_env(cls, device=None, **options):
        """One rank in each process of a job that a launcher started. The device is the rank's
        number on its host, modulo the devices that there are, unless it is given."""
        job = launch()
        if job["launcher"] is None:
            raise invalid(
                "there is no launcher: start the processes by torchrun, mpirun or srun, or set "
                "SYMWIN_RANK and SYMWIN_NRANKS"
            )
        if device is None:
            device = max(job["local_rank"], 0) % device_count()
        return cls(unique_id_from_env(), job["nranks"], job["rank"], device, **options)

    @classmethod
    def from_mpi(cls, comm, device, **options):
        """The ranks of a communicator of mpi4py."""
        made = comm.bcast(_tried(unique_id) if comm.Get_rank() == 0 else None)
        return cls(_untried(made), comm.Get_size(), comm.Get_rank(), device, **options)

    @classmethod
    def from_torch(cls, group=None, device=None, **options):
        """The ranks of a torch.distributed group (None: all). The device is an int or what
        torch.device() takes, or else torch's current one. What fails on one rank before all have
        the id fails on all."""
        import torch.distributed as dist

        group = torch_group(group)
        rank, nranks = dist.get_rank(group), dist.get_world_size(group)

        def prepare():
            at = number(torch_ordinal(device), "device", -1)
            _comm_options(options)
            return at, unique_id() if rank == 0 else None

        mine, told = _tried(prepare), [None] * nranks
        failed = isinstance(mine, Exception)
        dist.all_gather_object(told, mine if failed else mine[1], group)
        failures = [reason for reason in told if isinstance(reason, Exception)]
        if failures:
            if rank == 0 and not failed:
                unique_id_release(mine[1])
            raise mine if failed else failures[0]
        return cls(told[0], nranks, rank, mine[0], **options)

    # ---- the handle ----

    @contextmanager
    def _using(self):
        """The handle, while no other thread is in a call."""
        self._enter()
        try:
            yield self._handle
        finally:
            self._release()

    def _enter(self):
        if not self._acquire():
            raise error(Status.BUSY, "another thread is in a call of this communicator")
        if self._handle is None:
            self._release()
            raise self._ended()

    def _ended(self):
        return invalid("the communicator was destroyed")

    @contextmanager
    def _sharing(self, ended=False):
        """The handle, for what any thread may call until destroy() begins, which waits for it. If
        it has begun: None where `ended` allows that."""
        with self._idle:
            handle, me = self._handle, threading.get_ident()
            if handle is None and not ended:
                raise self._ended()
            self._users.append(me)
        try:
            yield handle
        finally:
            with self._idle:
                self._users.remove(me)
                self._idle.notify_all()

    def destroy(self):
        """Destroys the communicator, its windows included; a second time it does nothing. Waits
        for this rank's calls, which abort() ends."""
        if not self._acquire():
            raise error(Status.BUSY, "another thread is in a call of this communicator")
        try:
            handle = self._last()
        finally:
            self._release()
        if handle is not None:
            lib.symwin_comm_destroy(handle)
            for kept in self._kept:
                kept._keep = None
            self._kept.clear()

    def _last(self):
        """The handle, once no thread has it."""
        with self._idle:
            if threading.get_ident() in self._users:  # a handler of a signal, within a call
                raise error(Status.BUSY, "this thread is in a call of this communicator")
            handle, self._handle = self._handle, None
            try:
                self._idle.wait_for(lambda: not self._users)
            except BaseException:
                self._handle = handle
                raise
            return handle

    def abort(self):
        """Makes waiting calls and kernels of this rank and its peers end soon. Any thread, until
        destroy() begins. Afterwards only destroy() is left."""
        with self._sharing() as comm:
            check(lib.symwin_comm_abort(comm))

    def check(self):
        """Raises why the communicator has ended, if it has. Any thread."""
        with self._sharing() as comm:
            check(lib.symwin_comm_check(comm))

    def query(self):
        """symwin_comm_info as a dict."""
        with self._using() as comm:
            return ask(lib.symwin_comm_query, _api.symwin_comm_info, comm)

    def split(self, color, key=0, **options):
        """A communicator of the ranks that pass the same color, ordered by key; None for a rank
        that passes color None. Collective."""
        handle = ctypes.c_void_p()
        color = _api.SYMWIN_SPLIT_NONE if color is None else number(color, "color")
        with self._using() as comm:
            check(
                lib.symwin_comm_split(
                    comm, color, number(key, "key", -0x80000000),
                    _byref(_comm_options(options)), _byref(handle),
                )  # fmt: skip
            )
        if handle.value is None:
            return None
        part = Communicator.__new__(type(self))  # no code of a derived class: all have the part
        part._adopt(handle.value)
        return part

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"{self!r} was not destroyed", ResourceWarning, source=self)

    def __repr__(self):
        if self._handle is None:
            return "<symwin.Communicator, destroyed>"
        return f"<symwin.Communicator rank {self.rank} of {self.nranks}, device {self.device}>"

    # ---- memory ----

    def empty(self, shape, dtype="f32"):
        """An array in a new buffer of the rank's device."""
        from .memory import empty

        return empty(shape, dtype, self.device)

    def window(self, memory, flags=0):
        """Makes a window of an array or a buffer, of the same bytes on all ranks. Collective."""
        handle, (address, nbytes, keep) = ctypes.c_void_p(), self._range(memory)
        with self._using() as comm:
            check(lib.symwin_window_register(comm, address, nbytes, flags, _byref(handle)))
            return Window(self, handle.value, keep)

    def register(self, memory):
        """Registers an array, a buffer or a tensor. Local: it becomes a window in the first
        all-reduce on it, or in another call that can use that, where all ranks have registered
        theirs. Each call needs a deregister(). Any thread."""
        handle, (address, nbytes, keep) = ctypes.c_void_p(), self._range(memory)
        with self._sharing() as comm:
            check(lib.symwin_register(comm, address, nbytes, _byref(handle)))
            return Registration(self, handle.value, keep)

    def channel(self, peer, memory=None, lanes=1):
        """This rank's end of a channel with rank `peer`, to whose kernels it gives `memory` (None:
        none). The peer makes its own end; connect() waits for it. What fails here fails there too,
        and counts as one of the channels; but of Status.BUSY the peer hears nothing."""
        handle = ctypes.c_void_p()
        options = _api.symwin_channel_options(size=ctypes.sizeof(_api.symwin_channel_options))
        peer = number(peer, "peer")
        try:
            options.lanes = number(lanes, "lanes", 1)
            address, nbytes, keep = (None, 0, None) if memory is None else self._range(memory)
        except Exception:  # C refuses a byte at no address, and tells the peer
            with self._using() as comm:
                lib.symwin_channel_create(comm, peer, None, 1, None, _byref(handle))
            raise
        with self._using() as comm:
            check(
                lib.symwin_channel_create(
                    comm, peer, address, nbytes, _byref(options), _byref(handle)
                )
            )
            return Channel(self, handle.value, keep)

    def _range(self, memory):
        """(address, bytes, what keeps it alive)"""
        if isinstance(memory, (Array, Buffer)):
            return memory.ptr, memory.nbytes, memory
        found = operand(memory, "memory", self.device)
        return found.ptr, found.count * lib.symwin_type_bytes(found.type), found

    # ---- calls ----

    # A stream's own code may end what the other arguments are about, so it runs before them.

    def allreduce(self, input, output=None, op="sum", *, stream=None, **options):
        """Reduces over all ranks; every rank gets the result, in `output` or else in `input`.

        input, output  of equal shape and type on all ranks
        op             "sum", "prod", "min", "max", "avg", "mulsum" (with scalar=...)
        options        algo, blocks, threads, scalar: as symwin_collective_options
        """
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        b = a if output is None else self._like(a, output, a.count, "output")
        self._call(
            lib.symwin_allreduce_with, a.ptr, b.ptr, a.count, a.type,
            _choice(_api.OP_NAMES, op, "op"), options=options, operands=(a, b), stream=stream,
        )  # fmt: skip
        return input if output is None else output

    def allgather(self, input, output, *, stream=None, **options):
        """Every rank gets the parts of all ranks: `output` has nranks times the elements."""
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        b = self._like(a, output, a.count * self.nranks, "output")
        self._call(
            lib.symwin_allgather_with, a.ptr, b.ptr, a.count, a.type,
            options=options, operands=(a, b), stream=stream,
        )  # fmt: skip
        return output

    def reduce_scatter(self, input, output, op="sum", *, stream=None, **options):
        """Every rank gets its part of the result: `input` has nranks times the elements."""
        stream = handle_of(stream, self.device)
        b = operand(output, "output", self.device)
        a = self._like(b, input, b.count * self.nranks, "input")
        self._call(
            lib.symwin_reduce_scatter_with, a.ptr, b.ptr, b.count, b.type,
            _choice(_api.OP_NAMES, op, "op"), options=options, operands=(b, a), stream=stream,
        )  # fmt: skip
        return output

    def alltoall(self, input, output, *, stream=None, **options):
        """Every rank gets from every rank the part that is for it."""
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        b = self._like(a, output, a.count, "output")
        self._call(
            lib.symwin_alltoall_with, a.ptr, b.ptr, self._share(a, "input"), a.type,
            options=options, operands=(a, b), stream=stream,
        )  # fmt: skip
        return output

    def broadcast(self, input, output=None, root=0, *, stream=None, **options):
        """Every rank gets the root's `input`, in `output` or else in `input`. Other ranks may pass
        input=None with an output."""
        stream = handle_of(stream, self.device)
        output = input if output is None else output
        b = operand(output, "output", self.device)
        a = b if input is None or input is output else self._like(b, input, b.count, "input")
        self._call(
            lib.symwin_broadcast_with, a.ptr, b.ptr, b.count, b.type, number(root, "root"),
            options=options, operands=(b, a), stream=stream,
        )  # fmt: skip
        return output

    def reduce(self, input, output=None, op="sum", root=0, *, stream=None, **options):
        """The root gets the result, in `output` or else in `input`; others' `output` is ignored."""
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        b = a if output is None else self._like(a, output, a.count, "output")
        self._call(
            lib.symwin_reduce_with, a.ptr, b.ptr, a.count, a.type,
            _choice(_api.OP_NAMES, op, "op"), number(root, "root"),
            options=options, operands=(a, b), stream=stream,
        )  # fmt: skip
        return input if output is None else output

    def gather(self, input, output=None, root=0, *, stream=None, **options):
        """The root gets the parts of all ranks in `output`; others pass None."""
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        b = None
        if output is not None:
            b = self._like(a, output, a.count * self.nranks, "output")
        self._call(
            lib.symwin_gather_with, a.ptr, None if b is None else b.ptr, a.count,
            a.type, number(root, "root"),
            options=options, operands=(a, b), stream=stream,
        )  # fmt: skip
        return output

    def scatter(self, input, output, root=0, *, stream=None, **options):
        """Every rank gets the part of the root's `input` that is for it; others pass None."""
        stream = handle_of(stream, self.device)
        b = operand(output, "output", self.device)
        a = None
        if input is not None:
            a = self._like(b, input, b.count * self.nranks, "input")
        self._call(
            lib.symwin_scatter_with, None if a is None else a.ptr, b.ptr, b.count,
            b.type, number(root, "root"),
            options=options, operands=(b, a), stream=stream,
        )  # fmt: skip
        return output

    # Displacements say where parts begin; None: each where the one before it ends.

    def alltoallv(
        self, input, input_counts, output, output_counts, *, input_displacements=None,
        output_displacements=None, stream=None, **options,
    ):  # fmt: skip
        """An all-to-all of unequal parts: elements for each rank, and from each. Counts and
        displacements are numbers, or both are arrays of the device (i64 or u64).

        The stream reads such arrays while the call runs there: keep them, unchanged, until it has
        ended; of a call in a graph, as long as the graph."""
        stream = handle_of(stream, self.device)
        a, b = operand(input, "input", self.device), operand(output, "output", self.device)
        self._same_type(a, b, "input", "output")
        sent, *mine = self._parts(a, input_counts, "input_counts", input_displacements)
        got, *others = self._parts(b, output_counts, "output_counts", output_displacements)
        self._call(
            lib.symwin_alltoallv_with, a.ptr, sent, b.ptr, got, a.type,
            options=options, operands=(a, b, mine, others), stream=stream,
        )  # fmt: skip
        return output

    def allgatherv(self, input, output, counts, *, displacements=None, stream=None, **options):
        """An all-gather of unequal parts: counts[r] elements of rank r. Counts and displacements
        are numbers, or both are arrays of the device (i64 or u64).

        The stream reads such arrays while the call runs there: keep them, unchanged, until it has
        ended; of a call in a graph, as long as the graph. With them nothing checks that `input` has
        this rank's count."""
        stream = handle_of(stream, self.device)
        a, b = operand(input, "input", self.device), operand(output, "output", self.device)
        self._same_type(a, b, "input", "output")
        parts, *arrays = self._parts(b, counts, "counts", displacements)
        if not parts.on_device:
            self._exactly(a, parts.counts[self.rank], "input")
        self._call(
            lib.symwin_allgatherv_with, a.ptr, b.ptr, parts, a.type,
            options=options, operands=(a, b, arrays), stream=stream,
        )  # fmt: skip
        return output

    def reduce_scatterv(
        self, input, counts, output, op="sum", *, displacements=None, stream=None, **options
    ):
        """A reduce-scatter of unequal parts: counts[r] elements for rank r. Counts and
        displacements are numbers, or both are arrays of the device (i64 or u64).

        The stream reads such arrays while the call runs there: keep them, unchanged, until it has
        ended; of a call in a graph, as long as the graph. With them nothing checks that `output`
        has room for this rank's count."""
        stream = handle_of(stream, self.device)
        a, b = operand(input, "input", self.device), operand(output, "output", self.device)
        self._same_type(a, b, "input", "output")
        parts, *arrays = self._parts(a, counts, "counts", displacements)
        if not parts.on_device:
            self._exactly(b, parts.counts[self.rank], "output")
        self._call(
            lib.symwin_reduce_scatterv_with, a.ptr, parts, b.ptr, a.type,
            _choice(_api.OP_NAMES, op, "op"), options=options, operands=(a, b, arrays),
            stream=stream,
        )  # fmt: skip
        return output

    def barrier(self, *, stream=None, **options):
        """What follows in the stream waits for what all ranks' streams have before it."""
        stream = handle_of(stream, self.device)
        self._call(lib.symwin_barrier_with, options=options, operands=(), stream=stream)

    def send(self, input, peer, *, stream=None, **options):
        """Sends to rank `peer`, which makes the receive."""
        stream = handle_of(stream, self.device)
        a = operand(input, "input", self.device)
        self._call(
            lib.symwin_send_with, a.ptr, a.count, a.type, number(peer, "peer"), options=options,
            operands=(a,), stream=stream,
        )  # fmt: skip

    def recv(self, output, peer, *, stream=None, **options):
        """Receives from rank `peer`."""
        stream = handle_of(stream, self.device)
        b = operand(output, "output", self.device)
        self._call(
            lib.symwin_recv_with, b.ptr, b.count, b.type, number(peer, "peer"), options=options,
            operands=(b,), stream=stream,
        )  # fmt: skip
        return output

    # ---- helpers of these ----

    def _call(self, function, *arguments, options, operands, stream):
        kept = _Options(options, operands[0] if operands else None) if options else None
        chosen = kept.struct if kept else self._default
        self._enter()
        try:
            status = function(self._handle, *arguments, chosen, stream)
        finally:
            self._release()
        if status:
            check(status)
        if opened.depth:  # the group's end launches it: the memory must not be reused before
            opened.keep.append((operands, kept))

    def _same_type(self, a, b, one, other):
        if a.type != b.type:
            names = {value: name for name, value in _api.TYPE_NAMES.items()}
            raise invalid(f"{one} is of {names[a.type]}, and {other} of {names[b.type]}")

    def _exactly(self, found, count, name):
        if found.count < count:
            raise invalid(f"{name} has {found.count} elements, and this rank's part {count}")

    def _like(self, a, value, count, name):
        b = operand(value, name, self.device)
        if b.type != a.type:
            self._same_type(b, a, name, "the other argument")
        if b.count != count:
            raise invalid(
                f"{name} has {b.count} elements; expected {count} for {self.nranks} ranks"
            )
        return b

    def _share(self, a, name):
        if a.count % self.nranks:
            raise invalid(f"{name} has {a.count} elements, no multiple of {self.nranks} ranks")
        return a.count // self.nranks

    def _parts(self, found, counts, name, displacements):
        """symwin_parts, and the arrays of the device in it."""
        places = name.replace("counts", "displacements")
        arrays = [_on_device(counts), _on_device(displacements)]
        if any(arrays):
            if not all(arrays):
                raise invalid(f"{name} and {places}: both are arrays of the device, or none is")
            given = self._array(counts, name), self._array(displacements, places)
            addresses = [ctypes.cast(a.ptr, _NUMBERS) for a in given]
            return (_api.symwin_parts(*addresses, room=found.count, on_device=1), *given)
        counts = self._numbers(counts, name)
        if displacements is None:
            if sum(counts) > found.count:
                raise invalid(f"{name} are {sum(counts)} elements, of an array of {found.count}")
            begins = None
        else:
            begins = self._numbers(displacements, places)
            for rank, (begin, count) in enumerate(zip(begins, counts)):
                if begin + count > found.count:
                    raise invalid(
                        f"the part of rank {rank} in {name} and {places} ends at {begin + count}, "
                        f"of an array of {found.count}"
                    )
            begins = (ctypes.c_uint64 * self.nranks)(*begins)
        counts = (ctypes.c_uint64 * self.nranks)(*counts)
        return (_api.symwin_parts(counts=counts, displacements=begins, room=found.count),)

    def _numbers(self, values, name):
        try:
            found = [operator.index(value) for value in values]
        except TypeError:
            found = []
        if len(found) != self.nranks or not all(0 <= value < 1 << 63 for value in found):
            raise invalid(f"{name} is {values!r}; pass {self.nranks} numbers of elements")
        return found

    def _array(self, value, name):
        a = operand(value, name, self.device)
        if a.type not in (_api.SYMWIN_I64, _api.SYMWIN_U64) or a.count != self.nranks:
            raise invalid(f"{name} is no array of {self.nranks} elements of i64 or u64")
        return a


_NUMBERS = ctypes.POINTER(ctypes.c_uint64)


def _on_device(value):
    if isinstance(value, Array) or getattr(value, "is_cuda", False) is True:  # torch's
        return True
    return hasattr(value, "__cuda_array_interface__")


class _Options:
    """symwin_collective_options, and what they point to."""

    def __init__(self, options, found):
        self.struct = made = _api.symwin_collective_options(size=_OPTIONS_BYTES)
        for name, value in options.items():
            if name == "algo":
                made.algo = _choice(_api.ALGO_NAMES, value, "algo")
            elif name in ("blocks", "threads"):
                setattr(made, name, number(value, name))
            elif name == "scalar" and found is not None:
                if isinstance(value, numbers.Real):
                    self.scalar = _scalar(value, found.type)
                    made.scalar = ctypes.addressof(self.scalar)
                else:
                    self.scalar = operand(value, "scalar", found.device)
                    made.scalar, made.scalar_on_device = self.scalar.ptr, 1
            else:
                raise TypeError(f"{name} is no option; there are algo, blocks, threads, scalar")


_PACKED = {
    "f64": "d", "f32": "f", "f16": "e", "i8": "b", "u8": "B", "i32": "i", "u32": "I", "i64": "q",
    "u64": "Q",
}  # fmt: skip


def _scalar(value, type):
    """A number as an element of the type, in host memory."""
    name = next(name for name, code in _api.TYPE_NAMES.items() if code == type)
    if name not in _PACKED:
        raise invalid(f"a number cannot be made {name} here; pass an array of it")
    try:
        return ctypes.create_string_buffer(struct.pack(_PACKED[name], value))
    except (struct.error, OverflowError):
        raise invalid(f"scalar is {value!r}, which is no {name}") from None


def _comm_options(options):
    made = _api.symwin_comm_options(size=ctypes.sizeof(_api.symwin_comm_options))
    known = [name for name, _ in made._fields_ if name != "size"]
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"{name} is no option of a communicator; there are {', '.join(known)}")
        most = (1 << 63) - 1 if name == "slot_bytes" else 0x7FFFFFFF
        setattr(made, name, number(value, name, -1, most))
    return made


def _tried(make):
    """What a rank tells the others: what it made, or why not. So all fail together."""
    try:
        return make()
    except Exception as reason:
        return reason


def _untried(made):
    if isinstance(made, Exception):
        raise made
    return made


def torch_group(group):
    """A torch.distributed group; None: that of all ranks."""
    import torch.distributed as dist

    group = dist.group.WORLD if group is None else group
    if group is None:
        raise invalid("there is no process group; call torch.distributed.init_process_group()")
    if isinstance(group, int):  # GroupMember.NON_GROUP_MEMBER
        raise invalid(
            f"group is {group}, which torch.distributed.new_group() gives to ranks that are not in "
            "the group; call this on the group's ranks only"
        )
    return group


def torch_ordinal(device):
    """The number of a device: an int, or what torch.device() takes; None: torch's current one. On
    the emulated driver "cpu" is device 0."""
    import torch

    if isinstance(device, int):
        return device
    if device is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else 0
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.current_device() if device.index is None else device.index
    if device.type == "cpu" and is_emulated():
        return 0
    raise invalid(f"device is {device}; expected a CUDA device")


class _Opened(threading.local):
    """This thread's groups: how many are open, and memory that lives until the outermost ends."""

    depth, keep = 0, ()


opened = _Opened()


def _deeper(step):
    opened.depth += step
    if fast:
        fast.groups(opened.depth)


@contextmanager
def group():
    """Collects calls of this thread, and launches them together at the end of the block. If the
    block raises, nothing is launched."""
    check(lib.symwin_group_begin())
    if not opened.depth:
        opened.keep = []
    _deeper(1)
    try:
        yield
    except BaseException:
        _leave_group()
        raise
    else:
        check(lib.symwin_group_end())
    finally:
        _deeper(-1)
        if not opened.depth:
            opened.keep = ()


def _leave_group():
    """Ends a group without launching it: a call that fails makes the whole group fail."""
    lib.symwin_barrier(None, None)
    lib.symwin_group_end()


# ---- devices ----


def device_count():
    """How many devices the driver in use has."""
    return driver()["device_count"]


def driver():
    """The driver in use: name ("cuda" or "emu"), version, device_count, has_kernels, as a dict."""
    return ask(lib.symwin_driver_query, _api.symwin_driver_info)


def device(ordinal=0):
    """symwin_device_info of a device as a dict."""
    return ask(lib.symwin_device_query, _api.symwin_device_info, number(ordinal, "ordinal"))


# ---- the extension ----

by_ctypes = {
    name: function
    for name, function in vars(Communicator).items()
    if f"symwin_{name}_with" in _api.PROTOTYPES
}


def _text(function):
    """A call's docstring, with its signature as functions of C have it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[1 : code.co_argcount]
    pairs = [""] * (len(names) - len(defaults)) + [f"={value!r}" for value in defaults]
    parts = ["$self", *map("".join, zip(names, pairs)), "*", "stream=None", "**options"]
    return f"{function.__name__}({', '.join(parts)})\n--\n\n{function.__doc__}"


def _install():
    """Puts the extension's calls in the place of those of the class, which they call when an
    argument is not one that they know."""
    calls = {
        name: (ctypes.cast(getattr(lib, f"symwin_{name}_with"), ctypes.c_void_p).value, function,
               _text(function))
        for name, function in by_ctypes.items()
    }  # fmt: skip
    types = [(code, bits, _api.TYPE_NAMES[name]) for name, (code, bits) in _dlpack.CODES.items()]
    fast.install(
        Communicator, Array, Buffer, Stream, calls, _api.OP_NAMES, types, check, handle_of
    )


if fast:
    _install()
