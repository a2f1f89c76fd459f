#!/bin/sh
# tests/gpu/gpu_copies.c with ranks as processes. SYMWIN_TEST_RANKS: how many; default: as many as
# there are GPUs.
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
SYMWIN_TEST_PROCESSES=${SYMWIN_TEST_RANKS:-$gpus} exec "${SYMWIN_BUILD:-build}/tests/gpu_copies"
