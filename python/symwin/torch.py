"""symwin for PyTorch: symmetric tensors, every collective as an operator of `torch.ops.symwin`,
vLLM's custom all-reduce, and a communication hook for DistributedDataParallel.

    import symwin.torch as st

    comm = st.communicator(group)                      # of a torch.distributed group
    id = st.comm_id(comm)                              # by which operators know it
    x = st.empty((1024,), torch.bfloat16, comm)        # a window on all ranks
    torch.ops.symwin.allreduce_(x, id)                 # in the current stream, in place
    y = torch.ops.symwin.allgather(x, id)              # functional; has a gradient

Operators work eagerly, in torch.compile and in CUDA graphs. Eager ones register nothing, and the
host waits for nothing. Captured ones may connect buffers, and then wait for the other ranks at
capture; SYMWIN_GRAPH_REGISTER=0 on all ranks turns it off. Tensors are contiguous, and on the
communicator's device. On the emulated driver they are tensors of the CPU. Those that are not in
symwin's memory are copied there and back, and the call returns with its result, because operators
of the CPU know no streams.
"""

import ctypes
import functools
import math
import threading
import warnings
import weakref
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ._library import lib, library_path
from ._torch_operators import comm_id, known_types, text
from .comm import Communicator, _tried, torch_group, torch_ordinal
from .errors import Status, SymwinError, error, invalid
from .memory import TYPES, dtype_name, shape_of

__all__ = [
    "CustomAllreduce", "comm_id", "communicator", "ddp_hook", "empty", "free", "mem_pool",
    "window_of",
]  # fmt: skip

_ops = torch.ops.symwin

# ---- communicators ----

_of_group = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def communicator(group=None, device=None, **options):
    """The communicator of a torch.distributed group (None: all ranks). The first call of a group
    makes it by Communicator.from_torch(), and is collective; so is the first one after destroy().
    It lives until destroy(), or until the group is dropped."""
    group = torch_group(group)
    with _lock:
        comm = _of_group.get(group)
    if comm is None or comm._handle is None:
        comm = Communicator.from_torch(group, device, **options)
        with _lock:
            _of_group[group] = comm
    elif options or (device is not None and torch_ordinal(device) != comm.device):
        raise invalid(
            f"device is {device} and options are {options}, but the group has {comm!r} already; "
            "pass them in the first call"
        )
    return comm


# ---- memory ----

_windows = weakref.WeakValueDictionary()  # the address of a symmetric tensor's storage -> window


def empty(shape, dtype, comm):
    """A symmetric tensor: one in a window, of the same bytes on all ranks. Collective.

    free() deregisters the window. A tensor that is dropped without it keeps window and memory until
    comm.destroy(), since peers may still use them. The memory is freed once neither a window nor a
    tensor is on it, so a tensor that outlives its communicator stays valid."""
    shape = shape_of(shape, least=1)
    nbytes = math.prod(shape) * TYPES[dtype_name(dtype)]
    try:
        array = comm.empty(shape, dtype)
    except SymwinError:  # then the other ranks' windows fail too, and nobody waits
        with comm._using() as handle:
            lib.symwin_window_register(handle, 1, nbytes, 0, ctypes.c_void_p())
        raise
    window = comm.window(array)
    tensor = torch.from_dlpack(array)
    _windows[tensor.untyped_storage().data_ptr()] = window
    return tensor


def window_of(tensor):
    """The symwin.Window of a symmetric tensor, or of a view of one: peer_ptr(), multicast_ptr()."""
    if not isinstance(tensor, torch.Tensor):
        raise invalid(f"tensor is a {type(tensor).__name__}; pass one of symwin.torch.empty()")
    window = _windows.get(tensor.untyped_storage().data_ptr())
    if window is None or window._handle is None or window.comm._handle is None:
        raise invalid(
            f"{text('tensor', tensor)}: it is not symmetric, was freed, or its communicator was "
            "destroyed; make it by symwin.torch.empty()"
        )
    return window


def free(tensor):
    """Deregisters the window of a symmetric tensor: local, when this rank's work with it is done.
    The tensor is an ordinary one from then on. Its memory goes with the last reference, at once:
    before you drop that, wait for streams that use it, and for kernels of peers that use it by
    peer_ptr()."""
    window_of(tensor).deregister()


@functools.cache
def _allocator():  # kept, because it must outlive its pools
    return torch.cuda.memory.CUDAPluggableAllocator(
        library_path(), "symwin_torch_alloc", "symwin_torch_free"
    )


def mem_pool():
    """A torch.cuda.MemPool whose memory can become windows; for torch.cuda.use_mem_pool(). It
    registers nothing."""
    if not torch.cuda.is_available():
        raise error(Status.UNSUPPORTED, "torch finds no CUDA device, which pools are for")
    return torch.cuda.MemPool(_allocator().allocator())


# ---- for engines and trainers ----


class CustomAllreduce:
    """vLLM's class of this name, by symwin: an engine takes it in place of its own.

    group     a torch.distributed group for messages of the host, as gloo's
    device    this rank's: an int, a torch.device or its text
    max_size  most bytes of a tensor, the least of all ranks' counts

    `disabled` where ranks are one only, or cannot all reach each other's memory."""

    def __init__(self, group, device, max_size=8 << 20, symm_mem_enabled=False):
        self.disabled, self._comm = True, None
        self.group = group = torch_group(group)
        made = _tried(
            lambda: torch.device(*(("cuda", device) if isinstance(device, int) else (device,)))
        )
        self.device = None if isinstance(made, Exception) else made
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.max_size, self.fully_connected = max_size, True
        if self.world_size == 1:
            return
        try:
            self._comm = Communicator.from_torch(group, device)
            failure = None if self._comm.query()["domains"] == 1 else "there are several domains"
        except Exception as reason:
            failure = str(reason)
        told = [None] * self.world_size
        dist.all_gather_object(told, (failure, max_size), group)
        self.max_size = min(size for _, size in told)
        self.disabled = any(reason is not None for reason, _ in told)
        if self.disabled:
            reasons = sorted({reason for reason, _ in told if reason is not None})
            warnings.warn(f"symwin.torch.CustomAllreduce is disabled: {'; '.join(reasons)}")
            self.close()

    def finalize_p2p(self):
        """Nothing is left to do: the constructor has tried the peers' memory."""

    def should_custom_ar(self, inp):
        """Whether all ranks reduce this tensor here: by its size, type and layout alone."""
        return (
            not self.disabled
            and inp.is_contiguous()
            and inp.dtype in known_types()
            and 0 < inp.numel() * inp.element_size() <= self.max_size
        )

    def all_reduce(self, inp, *, out=None, registered=False):
        """The sum over all ranks, in `out` or in a new tensor. `registered` makes no difference:
        symwin knows its windows."""
        if out is None:
            return _ops.allreduce(inp, comm_id(self._comm))
        _ops.allreduce_out(inp, out, comm_id(self._comm))
        return out

    def custom_all_reduce(self, input):
        """The sum over all ranks in a new tensor, or None: then the engine has to do it."""
        return self.all_reduce(input) if self.should_custom_ar(input) else None

    @contextmanager
    def capture(self):
        """Around the capture of graphs."""
        yield
        self.register_graph_buffers()

    def register_graph_buffers(self):
        """Captured calls have connected their buffers; this raises why the communicator has failed,
        if it has."""
        if self._comm is not None:
            self._comm.check()

    def close(self):
        """Destroys the communicator, after this rank's calls; a second time it does nothing. Graphs
        with its calls must not be replayed afterwards."""
        comm, self._comm, self.disabled = self._comm, None, True
        if comm is not None:
            comm.destroy()

    def __del__(self):
        if getattr(self, "_comm", None) is not None:
            self.close()


_side_streams = weakref.WeakKeyDictionary()


def ddp_hook(state, bucket):
    """For DistributedDataParallel.register_comm_hook(state, ddp_hook): averages the gradients of a
    bucket beside the backward pass. state: a communicator, or a group (None: all ranks), whose
    communicator the first bucket makes."""
    comm = state if isinstance(state, Communicator) else communicator(state)
    gradients = bucket.buffer()
    if gradients.device.type != "cuda":
        _ops.allreduce_(gradients, comm_id(comm), "avg")
        future = torch.futures.Future()
        future.set_result(gradients)
        return future
    if comm not in _side_streams:
        _side_streams[comm] = torch.cuda.Stream(gradients.device)
    future, side = torch.futures.Future(devices=[gradients.device]), _side_streams[comm]
    side.wait_stream(torch.cuda.current_stream(gradients.device))
    with torch.cuda.stream(side):
        _ops.allreduce_(gradients, comm_id(comm), "avg")
        future.set_result(gradients)  # whoever waits for it waits for the side stream
    return future
