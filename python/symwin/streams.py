"""Streams: what calls take as `stream`, and streams of symwin's own."""

import ctypes

from ._library import check, lib
from .errors import invalid, number


def handle_of(stream, device=None):
    """The cudaStream_t of a stream as an int.

    None is the legacy default stream; an int is a handle; other objects have `__cuda_stream__()`,
    which returns (0, handle), or, as torch's, an int `cuda_stream`. A stream of another device than
    `device` is refused if it tells its device.
    """
    if stream is None:
        return 0
    if isinstance(stream, int):
        if not 0 <= stream < 1 << 64:
            raise invalid(f"stream is {stream}; pass a cudaStream_t as an int, or None")
        return stream
    own = getattr(stream, "device_index", None)
    if own is None:
        own = getattr(getattr(stream, "device", None), "index", None)
    if device is not None and isinstance(own, int) and own != device:
        raise invalid(f"stream is of device {own}, and the communicator of device {device}")
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        return handle_of(pair[1])
    if isinstance(getattr(stream, "cuda_stream", None), int):
        return handle_of(stream.cuda_stream)
    raise invalid(
        f"stream is a {type(stream).__name__}; pass None, a cudaStream_t as an int, or an object "
        "with __cuda_stream__()"
    )


class Stream:
    """A stream of `device` that does not wait for the legacy default stream.

    A context manager. It has `__cuda_stream__()`, so that other libraries take it.
    """

    def __init__(self, device=0):
        handle, device = ctypes.c_void_p(), number(device, "device", -1)
        check(lib.symwin_stream_create(device, ctypes.byref(handle)))
        self._handle, self.device_index = handle.value, device

    def __cuda_stream__(self):
        if self._handle is None:
            raise invalid("the stream was destroyed")
        return 0, self._handle

    def synchronize(self):
        """Waits until all work in the stream has ended."""
        check(lib.symwin_stream_synchronize(self.device_index, self.__cuda_stream__()[1]))

    def destroy(self):
        """Destroys the stream; a second time it does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            check(lib.symwin_stream_destroy(self.device_index, handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.destroy()

    def __repr__(self):
        return f"<symwin.Stream of device {self.device_index}, handle {self._handle}>"


def synchronize(device=0, stream=None):
    """Waits until all work in `stream` of `device` has ended."""
    device = number(device, "device", -1)
    check(lib.symwin_stream_synchronize(device, handle_of(stream, device)))
