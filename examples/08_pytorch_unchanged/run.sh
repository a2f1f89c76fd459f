#!/bin/sh
# Runs main.py on NCCL alone, then with libsymwin-nccl.so preloaded, and compares the results.
#
#   usage: [SYMWIN_NCCL_SERVE=all] run.sh [RANKS [FOLDER]]
#
# RANKS: one for each GPU, at least 2. FOLDER has libsymwin-nccl.so: ../../build.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null) || gpus=0
if [ "$gpus" -eq 0 ]; then
    echo "run.sh: python3 has no PyTorch that finds a GPU" >&2
    exit 77
fi
ranks=${1:-$((gpus > 1 ? gpus : 2))}
folder=$(cd "${2:-$here/../../build}" && pwd)
library=$folder/libsymwin-nccl.so
if [ ! -e "$library" ]; then
    echo "run.sh: no $library: run make at the top, or name the folder" >&2
    exit 1
fi
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# What a run says is shown if it fails. NAME=VALUE... are for its environment.
run() {
    name=$1
    shift
    env "$@" python3 -m torch.distributed.run --nproc-per-node "$ranks" \
        --master-addr 127.0.0.1 --master-port "${MASTER_PORT:-29641}" \
        "$here/main.py" "$results/$name" >"$results/said" 2>&1 || {
        cat "$results/said" >&2
        exit 1
    }
}

run alone
run with "LD_PRELOAD=$library" "SYMWIN_NCCL_SERVE=${SYMWIN_NCCL_SERVE:-all}" SYMWIN_NCCL_REPORT=1
echo "What served rank 0's calls:"
awk '/^symwin: +comm/ && !n++ || /^symwin:/ && $3 == "0"' "$results/said"
python3 "$here/compare.py" "$results/alone" "$results/with"
