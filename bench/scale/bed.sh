#!/bin/sh
# usage: bed.sh FILE
#
# Measures what the simulation is compared with: two "hosts" on this machine, each a process with
# half of the GPUs, a rank on each, and NCCL between the two. Writes one table:
#
#   inside   a host alone: the steps inside
#   rail     NCCL's calls of a rail, on all rails at the same time (lanes.py, with PyTorch)
#   pairs    the same with two communicators for each rail
#   lanes    with four
#   whole    all-reduces of all ranks, by one exchange and by rails in 1 to 16 pieces
#
# All in graphs, with CUDA_DEVICE_MAX_CONNECTIONS=32.
#
# LARGEST is the largest size. SYMWIN_NCCL names NCCL's library. It needs an even number of GPUs:
# NCCL refuses ranks of a host that share one, and processes that share one take turns.
# `bench/scale/scale.py --bed FILE` compares.
set -eu

[ $# -eq 1 ] || { sed -n 's/^# //; 2p' "$0" >&2; exit 2; }
file=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
perf=${SYMWIN_BUILD:-$here/build}/bench/symwin-perf
ranks=$(($(nvidia-smi -L 2>/dev/null | grep -c GPU || true) / 2))
[ "$ranks" -gt 0 ] || { echo "bed.sh: it needs two GPUs, or another even number" >&2; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
sizes="-e ${LARGEST:-256M} -f 4"
options="$sizes -t $ranks -d bf16 -w 2 -G 7 --timeout 60"
# A graph of calls in pieces has more branches than a device takes at a time by default.
export CUDA_DEVICE_MAX_CONNECTIONS=32

# Runs a command; what it says is shown if it fails.
quiet() {
    "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
}

# symwin-perf as one host, and as two.
# shellcheck disable=SC2086 # lists of words
host() {
    quiet timeout 300 env CUDA_VISIBLE_DEVICES="$(seq -s , 0 $((ranks - 1)))" "$perf" $options "$@"
}
# shellcheck disable=SC2016,SC2086 # the inner shell expands; lists of words
hosts() {
    quiet env HOSTS=2 RANKS=1 timeout 300 "$here/examples/09_several_hosts/run.sh" sh -c '
        ranks=$1 first=$((SYMWIN_RANK * $1)) && shift
        CUDA_VISIBLE_DEVICES=$(seq -s , "$first" $((first + ranks - 1)))
        export CUDA_VISIBLE_DEVICES
        exec "$@"' sh "$ranks" "$perf" $options -b 64K -n 20 "$@"
}
# shellcheck disable=SC2086 # lists of words
lanes() { # the table's name, then the communicators of a rail
    NCCL_NVLS_ENABLE=0 timeout 300 python3 -m torch.distributed.run \
        --nproc-per-node $((2 * ranks)) "$here/bench/scale/lanes.py" $sizes -b 2K -n "$2" \
        >"$scratch/$1.0" 2>"$scratch/log" ||
        { cat "$scratch/log" >&2; exit 1; }
}

host -b 2K --collective allreduce,reduce_scatter,allgather --csv "$scratch/inside.0"
lanes rail 1
lanes pairs 2
lanes lanes 4
hosts --algo oneshot --csv "$scratch/whole.0"
for pieces in 1 2 4 8 16; do
    hosts --algo rails --blocks "$pieces" --csv "$scratch/whole.$pieces"
done
for table in inside rail pairs lanes whole; do
    for part in "$scratch/$table".*; do
        echo "# bed: $table"
        sed "s, --csv [^ ]*,," "$part"
    done
done >"$scratch/all"
mv "$scratch/all" "$file"
