#!/bin/sh
# tests/gpu/gpu_allreduce.c with ranks as processes. SYMWIN_TEST_RANKS: how many, default 4. Where
# they share GPUs, these switch between the processes at each call: only every seventh placement.
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ranks=${SYMWIN_TEST_RANKS:-4}
[ "$ranks" -le "$gpus" ] || export SYMWIN_TEST_THIN="${SYMWIN_TEST_THIN:-7}"
SYMWIN_TEST_PROCESSES=$ranks exec "${SYMWIN_BUILD:-build}/tests/gpu_allreduce"
