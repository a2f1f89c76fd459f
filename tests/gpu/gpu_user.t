#!/bin/sh
# tests/user on real GPUs: a program on the CUDA runtime with two files of kernels, as nvcc made it.
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
