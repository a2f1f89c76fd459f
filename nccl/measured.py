#!/usr/bin/env python3
"""Writes nccl/measured.h: what calls of NCCL's collectives take, by NCCL and by symwin.

    nccl/measured.py CAPABILITY NCCL.csv... -- SYMWIN.csv... > nccl/measured.h

Both sets come from symwin-perf on one machine, in graphs, with buffers of cuMemAlloc():

    LD_PRELOAD=build/libsymwin-nccl.so SYMWIN_NCCL_SERVE=none build/bench/symwin-perf -t 2 \\
        --collective all -b 8 -e 512M -f 2 -d bf16 --window 0 --algo none --against nccl-plain \\
        -G 9 --csv NCCL.csv
    ... SYMWIN_NCCL_SERVE=all ... --csv SYMWIN.csv

Of several files the shortest time counts."""
import csv
import sys

KINDS = {"allreduce": "SW_ALL_REDUCE", "reduce_scatter": "SW_REDUCE_SCATTER",
         "allgather": "SW_ALL_GATHER", "alltoall": "SW_ALL_TO_ALL", "broadcast": "SW_BROADCAST",
         "reduce": "SW_REDUCE", "gather": "SW_GATHER", "scatter": "SW_SCATTER",
         "sendrecv": "SW_SEND"}


def load(paths):
    times, ranks = {}, set()
    for path in paths:
        with open(path) as file:
            for row in csv.DictReader(line for line in file if not line.startswith("#")):
                if row["library"] != "nccl" or row["collective"] not in KINDS:
                    continue
                if int(row["wrong"]) != 0:
                    sys.exit(f"{path}: {row['wrong']} wrong elements of {row['collective']}")
                key = row["collective"], int(row["bytes"])
                times[key] = min(times.get(key, float("inf")), float(row["time_us"]))
                ranks.add(int(row["ranks"]))
    if len(ranks) != 1:
        sys.exit(f"the files are of {sorted(ranks)} ranks; give those of one number")
    return times, ranks.pop()


def main():
    split = sys.argv.index("--")
    capability, nccl_paths, symwin_paths = sys.argv[1], sys.argv[2:split], sys.argv[split + 1:]
    (nccl, ranks), (symwin, others) = load(nccl_paths), load(symwin_paths)
    if ranks != others:
        sys.exit("both sets must be of the same number of ranks")
    print("/* Made by nccl/measured.py from:")
    for path in nccl_paths + symwin_paths:
        print(f" *   {path}")
    print(" */")
    for name, kind in KINDS.items():
        sizes = sorted(b for c, b in nccl if c == name and (c, b) in symwin)
        if not sizes or sizes != [sizes[0] << i for i in range(len(sizes))]:
            sys.exit(f"{name}: the sizes are no powers of two side by side")
        print(f"{{{kind}, {ranks}, {capability}, {sizes[0].bit_length() - 1}, {len(sizes)},")
        for times in symwin, nccl:
            values = ", ".join(f"{times[name, b]:.4g}f" if "." in f"{times[name, b]:.4g}"
                               else f"{times[name, b]:.4g}.0f" for b in sizes)
            lines, line = [], " {"
            for value in values.split(", "):
                if len(line) + len(value) + 2 > 98:
                    lines.append(line.rstrip())
                    line = "  "
                line += value + ", "
            lines.append(line.rstrip(", ") + "}" + ("," if times is symwin else "},"))
            print("\n".join(lines))


main()
