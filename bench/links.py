#!/usr/bin/env python3
"""Bytes that NVLink counted while a command ran, on every GPU.

    bench/links.py COMMAND...

When the command has ended, prints a CSV table on stdout: for each GPU, sums over its links in
bytes, sent (tx) and received (rx). `data` is the payload; `raw` is all traffic for it, with packet
headers, requests and answers. Then raw divided by data. The exit status is the command's.

The counters are the driver's (nvidia-smi nvlink -gt d, -gt r; in KiB). They include the traffic of
other programs, so nothing else should run. Needs Python 3 and nvidia-smi.
"""
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from plot import version  # pylint: disable=wrong-import-position

GPU = re.compile(r"GPU (\d+):")
LINK = re.compile(r"\s*Link \d+: (Data|Raw) (Tx|Rx): (\d+) KiB")


def counters():
    """Bytes counted so far: {GPU: {"data_tx": bytes, ...}}."""
    found = {}
    for kind in "d", "r":
        said = subprocess.run(["nvidia-smi", "nvlink", "-gt", kind], stdout=subprocess.PIPE,
                              text=True, check=True)
        words = None
        for line in said.stdout.splitlines():
            gpu, link = GPU.match(line), LINK.match(line)
            if gpu:
                words = found.setdefault(int(gpu.group(1)), {})
            elif link and words is not None:
                name = f"{link.group(1)}_{link.group(2)}".lower()
                words[name] = words.get(name, 0) + int(link.group(3)) * 1024
    return {gpu: words for gpu, words in found.items() if len(words) == 4}


def main():
    if len(sys.argv) < 2:
        return "which command? (bench/links.py COMMAND...)"
    if sys.argv[1:] == ["--version"]:
        print(version("links.py"))
        return 0
    try:
        before = counters()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"nvidia-smi nvlink -gt gives no counters: {error}"
    if not before:
        return "no GPU has links that count"
    try:
        status = subprocess.run(sys.argv[1:]).returncode
    except OSError as error:
        return f"{sys.argv[1]} does not run: {error}"
    after = counters()
    print("gpu,data_tx,data_rx,raw_tx,raw_rx,tx_raw_by_data,rx_raw_by_data")
    for gpu, words in sorted(before.items()):
        moved = {name: after[gpu][name] - words[name] for name in words}
        row = [str(gpu)] + [str(moved[name]) for name in ("data_tx", "data_rx", "raw_tx", "raw_rx")]
        for way in "tx", "rx":
            data = moved["data_" + way]
            row.append(f"{moved['raw_' + way] / data:.4f}" if data else "")
        print(",".join(row))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    result = main()
    if isinstance(result, str):
        sys.exit(f"links.py: {result}")
    sys.exit(result)
