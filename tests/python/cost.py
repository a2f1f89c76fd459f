"""What Python adds to a call's host time: calls without elements, which C returns from at once.
With torch also what its operators add. On the CPU they wait for their result, so it is a copy of
the operator that makes the call as on CUDA. The second column is without the extension.

    python tests/python/cost.py     (the wheel installed, or PYTHONPATH and SYMWIN_LIBRARY set)
"""

import functools
import time

import symwin
from symwin.comm import by_ctypes, lib


class ByCtypes:
    """The class's calls are those by ctypes, inside."""

    def __enter__(self):
        self.calls = {name: getattr(symwin.Communicator, name) for name in by_ctypes}
        self.set(by_ctypes)

    def __exit__(self, *_):
        self.set(self.calls)

    def set(self, calls):
        for name, call in calls.items():
            setattr(symwin.Communicator, name, call)


def microseconds(call, calls=1000, runs=200):
    """The shortest of many short runs, for one call: others may use the processor too."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def torch_rows(comm):
    try:
        import torch
    except ImportError:
        return []
    import symwin._torch_operators as operators
    import symwin.torch as st

    library = torch.library.Library("symwin_cost", "DEF")
    library.define("allreduce_(Tensor(a!) tensor, int comm, str op='sum') -> ()")

    def run(comm, call, output, arguments):
        call(comm, 0, output, *arguments)

    kernel = operators._in_place_kernel(operators._allreduce_)
    library.impl("allreduce_", functools.partial(kernel, run), "CPU")
    x, id = torch.empty(0), st.comm_id(comm)
    rows = [
        ("allreduce(tensor)", lambda: comm.allreduce(x)),
        ("torch.ops allreduce_", lambda: torch.ops.symwin_cost.allreduce_(x, id)),
    ]
    if torch.cuda.is_available():
        y = torch.empty(0, device=f"cuda:{comm.device}")
        rows += [
            ("torch.ops.symwin.allreduce_", lambda: torch.ops.symwin.allreduce_(y, id)),
            ("torch.ops.symwin.allreduce", lambda: torch.ops.symwin.allreduce(y, id)),
        ]
    return [*rows, (library, None)]


def main():
    with symwin.Communicator(symwin.unique_id(), 1, 0) as comm:
        x, y = comm.empty(0), comm.empty(0)
        with symwin.Stream(comm.device) as stream:
            address, handle, options = x.ptr, comm._handle, comm._default
            rows = [
                (
                    "ctypes alone",
                    lambda: lib.symwin_allreduce_with(
                        handle, address, address, 0, x.type, 0, options, 0
                    ),
                ),
                ("allreduce(x)", lambda: comm.allreduce(x)),
                ("allreduce(x, y)", lambda: comm.allreduce(x, y)),
                ("allreduce(x, stream=stream)", lambda: comm.allreduce(x, stream=stream)),
                ("allgather(x, y)", lambda: comm.allgather(x, y)),
            ]
            print(f"{'':30} {'extension' if symwin.has_extension() else '':>9}    ctypes")
            for name, call in rows + torch_rows(comm):
                if call is not None:
                    made = f"{microseconds(call):6.2f} us" if symwin.has_extension() else ""
                    with ByCtypes():
                        print(f"{name:30} {made:>9} {microseconds(call):6.2f} us")


if __name__ == "__main__":
    main()
