#!/bin/sh
# tests/gpu/gpu_allreduce.c with ranks as processes. SYMWIN_TEST_RANKS: how many, default 4.
SYMWIN_TEST_PROCESSES=${SYMWIN_TEST_RANKS:-4} exec "${SYMWIN_BUILD:-build}/tests/gpu_allreduce"
