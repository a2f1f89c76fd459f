"""Device memory: buffers, and arrays on them that other libraries take.

A Buffer is an allocation of symwin_mem_alloc(), which can become a window. An Array is a typed,
contiguous part of a buffer. Both speak DLPack and `__cuda_array_interface__`; on the emulated
driver, whose memory is host memory, also `__array_interface__`, so that numpy works on it.
"""

import ctypes
import functools
import math
import operator
import sys
import threading

from . import _api, _dlpack
from ._extension import fast
from ._library import ask, check, lib
from .errors import Status, SymwinInvalid, error, invalid, number
from .streams import handle_of

TYPES = {name: lib.symwin_type_bytes(value) for name, value in _api.TYPE_NAMES.items()}

_NUMPY = {
    "f64": "<f8", "f32": "<f4", "f16": "<f2", "i8": "|i1", "u8": "|u1", "i32": "<i4", "u32": "<u4",
    "i64": "<i8", "u64": "<u8",
}  # fmt: skip
_ALIASES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "half": "f16",
    "float": "f32", "double": "f64", "int8": "i8", "uint8": "u8", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
    "longlong": "i64", "ulonglong": "u64",
}  # fmt: skip
_known, _NUMBERS = {}, _api.TYPE_NAMES
_MOST = (1 << 63) - 1  # bytes


def dtype_name(dtype):
    """The short name, such as "bf16", of a type: a name of ours or numpy's, or a dtype of numpy,
    torch or ml_dtypes."""
    try:
        return _known[dtype]
    except (KeyError, TypeError):
        pass
    text = getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or str(dtype)
    text = text.rpartition(".")[2]
    name = text if text in TYPES else _ALIASES.get(text)
    if name is None:
        raise invalid(f"dtype is {dtype}; symwin has {', '.join(TYPES)}")
    try:
        _known[dtype] = name
    except TypeError:
        pass
    return name


@functools.cache
def is_emulated():
    """Whether the emulated driver is in use, whose device memory is host memory."""
    return ask(lib.symwin_driver_query, _api.symwin_driver_info)["name"] == "emu"


def shape_of(shape, least=0):
    """A shape as a tuple of ints: of a number or a sequence, numpy's integers too."""
    try:
        dims = tuple(map(operator.index, shape if hasattr(shape, "__iter__") else (shape,)))
    except TypeError:
        dims = None
    if dims is None or any(length < least for length in dims):
        raise invalid(f"shape is {shape!r}; pass numbers of elements, {least} or more")
    return dims


class Buffer:
    """`nbytes` bytes of memory of `device`, which peers can map. Freed by free(), at the end of a
    `with` block, or with the last reference.

    Raises SymwinInvalid (bytes, device) and SymwinMemory.
    """

    def __init__(self, nbytes, device=0, flags=0):
        pointer = ctypes.c_void_p()
        nbytes, device = number(nbytes, "nbytes", 1, _MOST), number(device, "device", -1)
        check(
            lib.symwin_mem_alloc(device, nbytes, number(flags, "flags"), ctypes.byref(pointer))
        )
        self._address, self._views = pointer.value, 0
        self._lock = threading.Lock()
        self.nbytes, self.device = nbytes, device

    @property
    def ptr(self):
        """The device address. Raises SymwinInvalid if the buffer was freed."""
        if self._address is None:
            raise self._was_freed()
        return self._address

    def _was_freed(self):
        return invalid(f"a buffer of {self.nbytes} bytes on device {self.device} was freed")

    def _hold(self):
        with self._lock:
            address = self.ptr
            self._views += 1
        return address

    def _release(self):
        with self._lock:
            self._views -= 1

    def free(self):
        """Frees the memory; a second time it does nothing. Call it when the work that uses the
        memory is done, the peers' work too if it was a window.

        Raises SymwinError with Status.BUSY, and frees nothing, while other libraries hold views of
        it (DLPack, `__array_interface__`), or it is in a window."""
        with self._lock:
            if self._address is None:
                return
            if self._views:
                raise error(
                    Status.BUSY,
                    f"a buffer of {self.nbytes} bytes has {self._views} views in other libraries; "
                    "delete those arrays first",
                )
            check(lib.symwin_mem_free(self._address))
            self._address = None

    def array(self, shape, dtype="f32", offset=0):
        """An Array of `shape` and `dtype` from byte `offset` on."""
        return Array(self, shape, dtype, offset)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()

    def __del__(self, _free=lib.symwin_mem_free):
        if getattr(self, "_address", None) is not None:
            _free(self._address)

    def __repr__(self):
        state = "freed" if self._address is None else f"at {self._address:#x}"
        return f"<symwin.Buffer of {self.nbytes} bytes on device {self.device}, {state}>"


class _View:
    """What numpy and others keep as the owner of memory: lets go of the buffer with the last
    reference."""

    def __init__(self, array, key, interface):
        self._array = array
        self._buffer = array.buffer
        self._buffer._hold()
        setattr(self, key, interface)

    def __del__(self):
        buffer = getattr(self, "_buffer", None)
        if buffer is not None:
            buffer._release()


class Array:
    """A contiguous array in a buffer: `shape` in elements of `dtype`, in C order."""

    __slots__ = (
        "buffer", "offset", "shape", "dtype", "count", "nbytes", "type", "device", "__weakref__",
    )  # fmt: skip

    def __init__(self, buffer, shape, dtype="f32", offset=0):
        shape, offset = shape_of(shape), number(offset, "offset", most=_MOST)
        self.dtype = dtype_name(dtype)
        self.type, size = _api.TYPE_NAMES[self.dtype], TYPES[self.dtype]
        self.buffer, self.offset, self.shape, self.device = buffer, offset, shape, buffer.device
        self.count = math.prod(shape)
        self.nbytes = self.count * size
        if offset % size:
            raise invalid(f"offset is {offset}; {self.dtype} needs a multiple of {size} bytes")
        if offset + self.nbytes > buffer.nbytes:
            raise invalid(
                f"an array of shape {shape} and dtype {self.dtype} from byte {offset} on needs "
                f"{offset + self.nbytes} bytes; the buffer has {buffer.nbytes}"
            )

    @property
    def ptr(self):
        """The device address of the first element."""
        address = self.buffer._address
        if address is None:
            raise self.buffer._was_freed()
        return address + self.offset

    def view(self, shape, dtype=None, offset=0):
        """An array of another shape or type on the same memory, from byte `offset` of it on."""
        offset = number(offset, "offset", most=_MOST)
        part = Array(self.buffer, shape, dtype or self.dtype, self.offset + offset)
        if offset + part.nbytes > self.nbytes:
            raise invalid(f"a view of {part.nbytes} bytes at {offset} passes {self.nbytes} bytes")
        return part

    def part(self, begin, end):
        """Elements begin to end - 1, in memory order, as an array of one dimension."""
        if not 0 <= begin <= end <= self.count:
            raise invalid(f"part {begin} to {end}: the array has {self.count} elements")
        return Array(
            self.buffer, end - begin, self.dtype, self.offset + begin * TYPES[self.dtype]
        )

    # ---- copies ----

    def numpy(self, stream=None):
        """A copy in host memory. Waits for the stream. Types that numpy lacks (bf16, fp8) come as
        unsigned integers with their bits."""
        import numpy

        kind = _NUMPY.get(self.dtype, f"<u{TYPES[self.dtype]}")
        host = numpy.empty(self.shape, dtype=kind)
        self._copy(host.ctypes.data, self.ptr, stream)
        check(lib.symwin_stream_synchronize(self.device, handle_of(stream, self.device)))
        return host

    def copy_from(self, host, stream=None):
        """Copies a host array of this type and number of elements here, in stream order. Unsigned
        integers of the same size are taken as bits. Returns self."""
        import numpy

        host = numpy.asarray(host)
        host = numpy.ascontiguousarray(host, dtype=host.dtype.newbyteorder("="))
        kind, whole = host.dtype.kind, self.dtype[0] in "iu"
        if host.nbytes != self.nbytes:
            raise invalid(
                f"a host array of shape {host.shape} and dtype {host.dtype} has {host.nbytes} "
                f"bytes; this one, {self.shape} of {self.dtype}, has {self.nbytes}"
            )
        if host.dtype.itemsize != TYPES[self.dtype]:
            raise invalid(f"elements of {host.dtype} do not fit {self.dtype}")
        if not (
            kind == "u" or (whole and kind in "bi") or dtype_name(host.dtype) == self.dtype
        ):
            raise invalid(f"elements of {host.dtype} are no {self.dtype}; convert them by astype()")
        self._copy(self.ptr, host.ctypes.data, stream)
        return self

    def _copy(self, to, source, stream):
        if self.nbytes:
            check(
                lib.symwin_memcpy(
                    self.device, to, source, self.nbytes, handle_of(stream, self.device)
                )
            )

    # ---- for other libraries ----

    def __dlpack_device__(self):
        return (_dlpack.CPU, 0) if is_emulated() else (_dlpack.CUDA, self.device)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"symwin's arrays are exported where they are: {self!r}")
        versioned = max_version is not None and max_version[0] >= 1
        address = self.buffer._hold() + self.offset
        return _dlpack.export(
            address, self.__dlpack_device__(), self.dtype, self.shape, self.buffer._release,
            versioned,
        )  # fmt: skip

    def _interface(self):
        if self.dtype not in _NUMPY:
            raise AttributeError(f"numpy and CUDA array interfaces have no type {self.dtype}")
        return {
            "shape": self.shape,
            "typestr": _NUMPY[self.dtype],
            "data": (self.ptr if self.count else 0, False),
            "strides": None,
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self):
        if is_emulated():
            raise AttributeError("memory of the emulated driver is host memory")
        return self._interface()

    def __array__(self, dtype=None, copy=None):
        """numpy.asarray(): on the emulated driver without a copy."""
        import numpy

        if not is_emulated():
            raise TypeError(f"{self!r} is not host memory; copy it by numpy()")
        host = numpy.asarray(_View(self, "__array_interface__", self._interface()))
        if dtype is not None and host.dtype != dtype:
            return host.astype(dtype)
        return host.copy() if copy else host

    def __len__(self):
        return self.shape[0] if self.shape else 0

    def __repr__(self):
        state = ", freed" if self.buffer._address is None else ""
        return f"<symwin.Array {self.shape} of {self.dtype} on device {self.device}{state}>"


def usage(device=0):
    """symwin_mem_usage of this process's pools on a device as a dict."""
    return ask(lib.symwin_mem_stats, _api.symwin_mem_usage, number(device, "device", -1))


def empty(shape, dtype="f32", device=0):
    """A new array in a buffer of its own. An array without elements takes a byte."""
    dims = shape_of(shape)
    nbytes = math.prod(dims) * TYPES[dtype_name(dtype)]
    return Array(Buffer(max(nbytes, 1), device), dims, dtype)


def from_host(host, dtype=None, device=0, stream=None):
    """A copy of a host array (anything that numpy takes) on `device`."""
    import numpy

    host = numpy.asarray(host)
    return empty(host.shape, dtype or host.dtype, device).copy_from(host, stream)


class Operand:
    """Memory of others that a call takes: address, elements, type, device, and what keeps it
    alive. An Array has the first four too."""

    __slots__ = ("ptr", "count", "type", "device", "keep")

    def __init__(self, ptr, count, type, device, keep):
        self.ptr, self.count, self.type = ptr, count, type
        self.device, self.keep = device, keep


def _text(value):
    shape = getattr(value, "shape", None)
    dtype, device = getattr(value, "dtype", None), getattr(value, "device", None)
    return f"a {type(value).__name__} of shape {shape}, dtype {dtype}, device {device}"


def _named(value, name):
    try:
        return dtype_name(value.dtype)
    except SymwinInvalid as reason:
        raise invalid(f"{name} is {_text(value)}: {reason}") from None


_told = set()


def _tell(kind):
    """Tells the extension of a class of tensors. Not of subclasses, which may have methods of their
    own; nor of those of a PyTorch without DLPack's table of functions (before 2.10)."""
    _told.add(kind)
    torch = sys.modules.get("torch")
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    if kind is getattr(torch, "Tensor", None) or kind is parameter:
        fast.tensor_class(kind, getattr(kind, "__dlpack_c_exchange_api__", None))


def operand(value, name, device):
    """The Operand of an argument, or itself if it is an Array. `name` is the argument's, for
    messages; `device` that of the communicator."""
    if type(value) is Array:
        if value.device == device:
            return value
        found = value
    elif hasattr(value, "data_ptr") and hasattr(value, "is_contiguous"):  # torch's
        if fast and type(value) not in _told:
            _tell(type(value))
        if not value.is_contiguous():
            raise invalid(f"{name} is {_text(value)}, not contiguous; pass {name}.contiguous()")
        if value.is_neg():  # its memory has the numbers with the other sign
            raise invalid(f"{name} is {_text(value)}, a negated view; pass {name}.resolve_neg()")
        if value.is_cuda:
            index = value.get_device()
        elif value.is_cpu and is_emulated():
            index = device
        else:
            raise invalid(f"{name} is {_text(value)}; expected memory of cuda:{device}")
        try:
            kind = _known[value.dtype]
        except KeyError:
            kind = _named(value, name)
        found = Operand(value.data_ptr(), value.numel(), _NUMBERS[kind], index, value)
        if found.count and (
            not found.ptr
            or value.untyped_storage().nbytes()
            < value.storage_offset() * value.element_size() + value.nbytes
        ):
            raise invalid(f"{name} is {_text(value)}, whose memory was freed")
    elif hasattr(value, "__cuda_array_interface__"):
        found = _of_interface(value, name, device)
    elif hasattr(value, "__dlpack__"):
        found = _of_dlpack(value, name, device)
    else:
        raise invalid(
            f"{name} is {_text(value)}; expected a symwin array, a torch tensor, or an object with "
            "__cuda_array_interface__ or __dlpack__()"
        )
    if found.device != device:
        raise invalid(f"{name} is {_text(value)}; the communicator is of device {device}")
    return found


def _of_interface(value, name, device):
    interface = value.__cuda_array_interface__
    shape, kind = tuple(interface["shape"]), interface["typestr"]
    known = {text[1:]: short for short, text in _NUMPY.items()}
    if kind[1:] not in known or (kind[0] == ">" and kind[2] != "1"):
        raise invalid(f"{name} is {_text(value)}: no type of symwin's has typestr {kind}")
    dtype, step = known[kind[1:]], TYPES[known[kind[1:]]]
    for length, stride in reversed(list(zip(shape, interface.get("strides") or ()))):
        if length > 1 and stride != step:
            raise invalid(f"{name} is {_text(value)}, not contiguous")
        step *= length
    address, is_read_only = interface["data"]
    address = address or 0
    if is_read_only and name == "output":
        raise invalid(f"{name} is {_text(value)}, read-only; pass memory that the call may write")
    info = _api.symwin_mem_info()
    place = device
    if address and lib.symwin_mem_query(address, ctypes.byref(info)) == 0:
        place = info.device
    return Operand(address, _count(shape, value, name), _api.TYPE_NAMES[dtype], place, value)


def _count(shape, value, name):
    count = math.prod(shape)
    if not 0 <= count < 1 << 63:
        raise invalid(f"{name} is {_text(value)}, of {count} elements; no memory has so many")
    return count


def _of_dlpack(value, name, device):
    address, (kind, index), dtype, shape, keep = _dlpack.describe(value, None)
    if dtype == "strided":
        raise invalid(f"{name} is {_text(value)}, not contiguous")
    if dtype is None:
        raise invalid(f"{name} is {_text(value)}, of a type that symwin has not")
    if kind == _dlpack.CUDA_HOST or (kind == _dlpack.CPU and is_emulated()):
        index = device
    elif kind not in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
        raise invalid(f"{name} is {_text(value)}; expected memory of device {device}")
    count = _count(shape, value, name)
    return Operand(address, count, _api.TYPE_NAMES[dtype], index, (value, keep))
