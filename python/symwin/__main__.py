"""python -m symwin: selftest, info, bench."""

import os
import subprocess
import sys
from pathlib import Path

USAGE = """usage: python -m symwin COMMAND

    selftest      four ranks, every collective against numpy, on whatever driver is there
    info [ARGS]   devices, and which transports they have (symwin-info)
    bench [ARGS]  times of collectives (symwin-perf; bench --help lists its options)
"""


def program(name):
    """The path of a program of the wheel, or of the build in SYMWIN_BUILD."""
    beside = Path(__file__).resolve().parent / "bin" / name
    build = os.environ.get("SYMWIN_BUILD")
    places = [beside] + ([Path(build) / name, Path(build) / "bench" / name] if build else [])
    for place in places:
        if place.exists():
            return str(place)
    sys.exit(f"symwin: no {name} here; install the wheel, or set SYMWIN_BUILD to a build folder")


def main(arguments):
    command, *rest = arguments or [""]
    if command == "selftest" and not rest:
        from .selftest import main as selftest

        return selftest()
    if command in ("info", "bench"):
        name = {"info": "symwin-info", "bench": "symwin-perf"}[command]
        return subprocess.call([program(name), *rest])
    print(USAGE, end="", file=sys.stdout if command in ("-h", "--help") else sys.stderr)
    return 0 if command in ("-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
