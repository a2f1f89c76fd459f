"""DLPack 1.x by ctypes: https://dmlc.github.io/dlpack/latest/c_api.html"""

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_uint8, c_uint16
from ctypes import c_uint32, c_uint64, c_void_p, py_object, pythonapi

from .errors import invalid

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

# The short name of a type -> code and bits of DLPack.
CODES = {
    "f64": (2, 64), "f32": (2, 32), "f16": (2, 16), "bf16": (4, 16), "e4m3": (10, 8),
    "e5m2": (12, 8), "i8": (0, 8), "u8": (1, 8), "i32": (0, 32), "u32": (1, 32), "i64": (0, 64),
    "u64": (1, 64),
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}


class _Device(Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    pass


class _Versioned(Structure):
    pass


_DELETER = CFUNCTYPE(None, c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _DELETER)]
_Versioned._fields_ = [
    ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", _DELETER),
    ("flags", c_uint64), ("tensor", _Tensor),
]  # fmt: skip

_new = pythonapi.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
_is_valid = pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [py_object, c_char_p]
_pointer = pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [py_object, c_char_p]

# What consumers hold, by the address of its struct. A consumer calls the deleter when it is done,
# in any thread, also while the interpreter ends.
_held = {}


@_DELETER
def _delete(address, _held=_held):  # its own reference: modules may be empty by then
    held = _held.pop(address, None)
    if held is not None:
        held[2]()


_NAME, _NEW_NAME = b"dltensor", b"dltensor_versioned"


# For a capsule that is being destroyed, which is no Python object any more.
_is_valid_raw = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", pythonapi))
_pointer_raw = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", pythonapi))


@ctypes.PYFUNCTYPE(None, c_void_p)
def _destructor(capsule, _valid=_is_valid_raw, _pointer=_pointer_raw, _delete=_delete):
    """Of a capsule that nobody has consumed; one that was has another name."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _valid(capsule, name):
            _delete(_pointer(capsule, name))


def export(address, device, dtype, shape, release, versioned):
    """A capsule for consumers. `release` is called once, when the consumer is done. `versioned`:
    by the struct of DLPack 1.0; consumers take the memory of the older one as read-only."""
    managed = _Versioned(major=1) if versioned else _Managed()
    dims = (c_int64 * max(len(shape), 1))(*shape)
    steps, step = [], 1
    for length in reversed(shape):
        steps.insert(0, step)
        step *= length
    strides = (c_int64 * max(len(shape), 1))(*steps)
    tensor = managed.tensor
    tensor.data, tensor.device = address, _Device(*device)
    tensor.ndim, (tensor.code, tensor.bits), tensor.lanes = len(shape), CODES[dtype], 1
    tensor.shape, tensor.strides, tensor.byte_offset = dims, strides, 0
    managed.deleter = _delete
    key = ctypes.addressof(managed)
    _held[key] = (managed, (dims, strides), release)
    return _new(key, _NEW_NAME if versioned else _NAME, ctypes.cast(_destructor, c_void_p))


def describe(owner, stream):
    """(address, (device type, id), dtype name, shape) of an object with __dlpack__(), and what
    keeps it alive. The name is "strided" if it is not contiguous, None if symwin lacks the type."""
    capsule = owner.__dlpack__(stream=stream) if stream is not None else owner.__dlpack__()
    if not _is_valid(capsule, _NAME):
        raise invalid(f"__dlpack__() of a {type(owner).__name__} gave no unused capsule 'dltensor'")
    managed = ctypes.cast(_pointer(capsule, _NAME), POINTER(_Managed)).contents
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    name = NAMES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    step = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and shape[i] > 1 and tensor.strides[i] != step:
            name = "strided"
        step *= shape[i]
    address = (tensor.data or 0) + tensor.byte_offset
    return address, (tensor.device.type, tensor.device.id), name, shape, capsule
