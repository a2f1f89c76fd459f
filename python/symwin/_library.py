"""libsymwin.so: found, loaded and checked once."""

import ctypes
import os
from pathlib import Path

from . import _api
from .errors import error

_HERE = Path(__file__).resolve().parent


def _load():
    named = os.environ.get("SYMWIN_LIBRARY")
    beside = _HERE / "lib" / "libsymwin.so.0"
    path = named or (str(beside) if beside.exists() else "libsymwin.so.0")
    try:
        library = ctypes.CDLL(path)
    except OSError as reason:
        raise ImportError(
            f"symwin: cannot load {path} ({reason}); install the wheel, or set SYMWIN_LIBRARY to "
            "libsymwin.so"
        ) from None
    for name, (returned, arguments) in _api.PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"symwin: {path} has no {name}(): it is of another version") from None
        function.restype, function.argtypes = returned, arguments
    loaded = library.symwin_version().decode()
    if loaded != _api.SYMWIN_VERSION:
        raise ImportError(
            f"symwin: {path} is version {loaded}, this package {_api.SYMWIN_VERSION}; use one of "
            "them from one build"
        )
    return path, library


_path, lib = _load()


def library_path():
    """The path of the libsymwin.so that is loaded."""
    return _path


def nccl_library_path():
    """The path of libsymwin-nccl.so, for LD_PRELOAD or VLLM_NCCL_SO_PATH."""
    return str(Path(_path).resolve().parent / "libsymwin-nccl.so")


def include_path():
    """The folder of symwin.h and of the headers for kernels."""
    return str(_HERE / "include")


def program(name):
    """The path of a program of the wheel, or of the build in SYMWIN_BUILD."""
    build = os.environ.get("SYMWIN_BUILD")
    places = [_HERE / "bin" / name]
    places += [Path(build) / name, Path(build) / "bench" / name] if build else []
    for place in places:
        if place.exists():
            return str(place)
    raise error(
        _api.SYMWIN_UNSUPPORTED,
        f"no {name} here; install the wheel, or set SYMWIN_BUILD to a build folder",
    )


def last_error():
    return lib.symwin_last_error().decode(errors="replace")


def check(status):
    """Raises the exception of a status that is not SYMWIN_OK."""
    if status:
        raise error(status, last_error())


def ask(function, struct, *arguments):
    """What a query writes into its last argument, a struct, as a dict; texts are str."""
    info = struct()
    check(function(*arguments, ctypes.byref(info)))
    fields = {name: getattr(info, name) for name, _ in struct._fields_}
    return {name: v.decode() if isinstance(v, bytes) else v for name, v in fields.items()}
