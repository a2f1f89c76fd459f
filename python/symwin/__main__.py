"""python -m symwin: selftest, info, bench."""

import os
import sys

USAGE = """usage: python -m symwin COMMAND

    selftest      four ranks, every collective against numpy, on whatever driver is there
    info [ARGS]   devices, and which transports they have (symwin-info)
    bench [ARGS]  times of collectives (symwin-perf; bench --help lists its options)
"""


def main(arguments):
    command, *rest = arguments or [""]
    if command == "selftest" and not rest:
        from .selftest import main as selftest

        return selftest()
    if command in ("info", "bench"):
        from ._library import program
        from .errors import SymwinError

        try:
            path = program({"info": "symwin-info", "bench": "symwin-perf"}[command])
        except SymwinError as reason:
            sys.exit(f"symwin: {reason}")
        os.execv(path, [path, *rest])  # so signals end it, and its status is this one's
    print(USAGE, end="", file=sys.stdout if command in ("-h", "--help") else sys.stderr)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
