"""What Python adds to a call's host time: calls without elements, which C returns from at once.

    python tests/python/cost.py     (the wheel installed, or PYTHONPATH and SYMWIN_LIBRARY set)
"""

import time

import symwin
from symwin.comm import lib


def microseconds(call, calls=40000, runs=5):
    """The shortest of some runs, for one call."""
    best = float("inf")
    for _ in range(runs):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


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
            for name, call in rows:
                print(f"{name:30} {microseconds(call):5.2f} us")


if __name__ == "__main__":
    main()
