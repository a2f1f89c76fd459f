#!/bin/sh
# symwin/copy.cuh on real GPUs: tests/test_copy.c.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "1..0 # SKIP no GPU: there is no /dev/nvidiactl and no /dev/dxg"
    exit 0
fi
exec "${SYMWIN_BUILD:-build}/tests/test_copy"
