"""The extension for CPython (_fast.c), which makes calls without ctypes. All works without it."""

import os
import sys

fast = None
if (
    sys.implementation.name == "cpython"
    and "t" not in getattr(sys, "abiflags", "")  # free-threaded: the stable ABI is another one
    and os.environ.get("SYMWIN_PYTHON_EXTENSION") != "0"
):
    try:
        from . import _fast as fast
    except ImportError:  # it was not built, or another interpreter of this process has it
        pass


def has_extension():
    """Whether calls are made by the extension, or else by ctypes. SYMWIN_PYTHON_EXTENSION=0 in the
    environment turns it off."""
    return fast is not None
