#!/bin/sh
# tests/user on real GPUs: a CUDA runtime program with two files of kernels, built by nvcc.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "1..0 # SKIP no GPU: there is no /dev/nvidiactl and no /dev/dxg"
    exit 0
fi
program=${SYMWIN_BUILD:-build}/tests/user/ring
if [ ! -x "$program" ]; then
    echo "1..0 # SKIP no $program: nvcc makes it (make gpu-tests)"
    exit 0
fi
exec "$program"
