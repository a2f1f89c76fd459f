#!/bin/sh
# usage: bed.sh FILE
#
# Measures what the simulation is compared with: two "hosts" on this machine, each a process whose
# ranks are threads, and NCCL between the two. Host h has GPU h, if there are two. Writes one table:
#
#   inside   a host alone: the steps inside
#   rail     NCCL's calls of a rail, as many rails at the same time as hosts have ranks
#   lanes    the same with four communicators for each rail
#   whole    all-reduces of all ranks, by one exchange and by rails in 1 to 16 pieces
#
# RANKS is the number of ranks of a host; 2. LARGEST is the largest size, CALLS are options of
# symwin-perf for how often.
# SYMWIN_NCCL names NCCL's library. `bench/scale/scale.py --bed FILE` compares.
set -eu

[ $# -eq 1 ] || { sed -n 's/^# //; 2p' "$0" >&2; exit 2; }
file=$1 ranks=${RANKS:-2}
here=$(cd "$(dirname "$0")/../.." && pwd)
build=${SYMWIN_BUILD:-$here/build}
perf=$build/bench/symwin-perf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
small=2K
options="-e ${LARGEST:-256M} -f 4 ${CALLS:--n 4 -w 2 -G 7} -d bf16 --timeout 60"

# Runs symwin-perf as two hosts; the first host's output is that of all.
hosts() {
    HOSTS=2 RANKS=1 timeout 300 "$here/examples/09_several_hosts/run.sh" sh -c '
        gpus=${BED_GPUS:-1}
        [ "$gpus" -lt 2 ] || export CUDA_VISIBLE_DEVICES=$SYMWIN_RANK
        exec "$@"' sh "$perf" $options "$@" >>"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
}

# The same in so many jobs at once. Each writes a table of its own, $scratch/NAME.JOB. Contexts with
# many queues each have no room on one GPU.
jobs() {
    name=$1 count=$2
    pids=
    job=0
    while [ "$job" -lt "$count" ]; do
        CUDA_DEVICE_MAX_CONNECTIONS=8 hosts -t 1 -b "$small" --algo nccl \
            --csv "$scratch/$name.$job" &
        pids="$pids $!"
        job=$((job + 1))
    done
    for pid in $pids; do wait "$pid"; done
}

BED_GPUS=$(nvidia-smi -L 2>/dev/null | grep -c GPU || true)
export BED_GPUS
timeout 300 env CUDA_VISIBLE_DEVICES=0 "$perf" $options -t "$ranks" -b "$small" \
    --collective allreduce,reduce_scatter,allgather --csv "$scratch/inside.0" >"$scratch/log"
jobs rail "$ranks"
jobs lanes $((4 * ranks))
hosts -t "$ranks" -b 64K --algo oneshot --csv "$scratch/whole.0"
for pieces in 1 2 4 8 16; do
    hosts -t "$ranks" -b 64K --algo rails --blocks "$pieces" --csv "$scratch/whole.$pieces"
done
for table in inside rail lanes whole; do
    for part in "$scratch/$table".*; do
        echo "# bed: $table"
        sed "s, --csv [^ ]*,," "$part"
    done
done >"$scratch/all"
mv "$scratch/all" "$file"
