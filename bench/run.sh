#!/bin/sh
# Runs every benchmark that is built and keeps what it prints in bench/results, under the date and the
# machine, with driver, GPUs and commit at the top.
#
#   usage: bench/run.sh BUILD
set -eu

build=${1:-build}
cd "$(dirname "$0")/.."
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /' | tr '\n' ' ' | sed 's/ *$//')
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
machine=$(echo "${gpus:-emulated}" | tr -c 'A-Za-z0-9\n' '-' | tr -s - | tr 'A-Z' 'a-z')
mkdir -p bench/results
for program in "$build"/bench/*; do
    [ -x "$program" ] || continue
    file=bench/results/$(date +%F)-$machine-$(basename "$program").csv
    {
        echo "# ${gpus:-emulated driver}; driver ${driver:-none}; $(date +%F); commit $commit"
        "$program"
    } >"$file.new"
    mv "$file.new" "$file"
    echo "$file"
done
