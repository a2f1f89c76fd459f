#!/usr/bin/env python3
"""Compares two files that main.py has written: on NCCL alone, and with symwin.

    python3 compare.py ALONE WITH

Exit status 1: a result is further from NCCL's than the order of a sum explains.
"""
import json
import sys

# Relative. Sums of bfloat16 are rounded to 8 bits.
MOST = {"DDP": 1e-5, "FSDP": 1e-5, "inference": 1e-2}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


if len(sys.argv) != 3:
    print("usage: compare.py ALONE WITH", file=sys.stderr)
    sys.exit(2)
try:
    alone, other = read(sys.argv[1]), read(sys.argv[2])
except (OSError, ValueError) as error:
    sys.exit(f"compare.py: {error}")
print(f"{alone['ranks']} ranks on {alone['gpus']} GPU{'s' if alone['gpus'] > 1 else ''}")
print(f"{'part':10} {'results, compared with those of NCCL alone':52} {'NCCL':>10} {'symwin':>10}")
right = True
for part, most in MOST.items():
    expected = [float.fromhex(text) for text in alone["parts"][part]["results"]]
    found = [float.fromhex(text) for text in other["parts"][part]["results"]]
    equal = sum(a == b for a, b in zip(expected, found))
    furthest = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
    if equal == len(expected):
        text = f"all {equal} are equal to the bit"
    elif furthest <= most:
        text = f"{equal} of {len(expected)} equal to the bit, all within {furthest:.0e}"
    else:
        text, right = f"WRONG: {furthest:.0e} away, more than {most:.0e}", False
    times = [run["parts"][part]["ms"] for run in (alone, other)]
    print(f"{part:10} {text:52} {times[0]:7.3f} ms {times[1]:7.3f} ms")
if alone["gpus"] < alone["ranks"]:
    print("Ranks share GPUs, and NCCL sends over sockets: the times mean nothing")
sys.exit(0 if right else 1)
