"""Symmetric memory and collectives between GPUs, on CUDA's virtual memory management.

    import symwin

    comm = symwin.Communicator(id, nranks, rank, device)    # or .from_env(), .from_torch()
    x = comm.empty((1024,), "f32")
    with comm.window(x):
        comm.allreduce(x)                                   # in stream order, as NCCL's
    comm.destroy()

`python -m symwin selftest` shows whether it works here, on whatever driver is there. Exceptions are
SymwinError, with a status and a sentence that says what to do.
"""

from ._extension import has_extension
from ._library import include_path, library_path, nccl_library_path
from .comm import Channel, Communicator, Registration, Window
from .comm import device, device_count, driver, group, launch
from .comm import unique_id, unique_id_from_env, unique_id_release
from .errors import Status, SymwinError, SymwinInvalid, SymwinMemory, SymwinTimeout
from .memory import Array, Buffer, empty, from_host, is_emulated
from .streams import Stream, synchronize
from ._api import SYMWIN_VERSION as __version__

__all__ = [
    "Array", "Buffer", "Channel", "Communicator", "Registration", "Status", "Stream",
    "SymwinError", "SymwinInvalid", "SymwinMemory", "SymwinTimeout", "Window", "__version__",
    "device", "device_count", "driver", "empty", "from_host", "group", "has_extension",
    "include_path", "is_emulated", "launch", "library_path", "nccl_library_path", "synchronize",
    "unique_id", "unique_id_from_env", "unique_id_release",
]  # fmt: skip
