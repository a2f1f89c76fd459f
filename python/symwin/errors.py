"""Exceptions. Each carries the status of symwin.h and its sentence."""

import operator
from enum import IntEnum

from . import _api


class Status(IntEnum):
    """symwin_status: what a caller can do about a failure (symwin.h)."""

    OK = _api.SYMWIN_OK
    INVALID = _api.SYMWIN_INVALID
    MISMATCH = _api.SYMWIN_MISMATCH
    UNSUPPORTED = _api.SYMWIN_UNSUPPORTED
    NO_MEMORY = _api.SYMWIN_NO_MEMORY
    DENIED = _api.SYMWIN_DENIED
    BUSY = _api.SYMWIN_BUSY
    PEER_LOST = _api.SYMWIN_PEER_LOST
    TIMEOUT = _api.SYMWIN_TIMEOUT
    DRIVER = _api.SYMWIN_DRIVER
    ABORTED = _api.SYMWIN_ABORTED
    FORKED = _api.SYMWIN_FORKED


class SymwinError(RuntimeError):
    """A call failed. `status` is a Status; str() is the sentence that says what to do."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = Status(status)

    def __reduce__(self):
        return type(self), (int(self.status), str(self))


class SymwinInvalid(SymwinError, ValueError):
    """SYMWIN_INVALID: an argument is wrong."""


class SymwinMemory(SymwinError, MemoryError):
    """SYMWIN_NO_MEMORY: memory, addresses or another resource ran out."""


class SymwinTimeout(SymwinError, TimeoutError):
    """SYMWIN_TIMEOUT: a rank is late."""


_TYPES = {
    Status.INVALID: SymwinInvalid,
    Status.NO_MEMORY: SymwinMemory,
    Status.TIMEOUT: SymwinTimeout,
}


def error(status, sentence):
    """The exception for a status."""
    return _TYPES.get(Status(status), SymwinError)(status, sentence)


def invalid(sentence):
    return SymwinInvalid(Status.INVALID, sentence)


def number(value, what, least=0, most=0x7FFFFFFF):
    """A whole number as an int, numpy's too, or the exception."""
    try:
        found = operator.index(value)
    except TypeError:
        found = least - 1
    if not least <= found <= most:
        raise invalid(f"{what} is {value!r}; pass a whole number from {least} to {most}")
    return found
