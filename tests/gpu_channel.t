#!/bin/sh
# symwin/channel.cuh on real GPUs: tests/test_channel.c.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "1..0 # SKIP no GPU: there is no /dev/nvidiactl and no /dev/dxg"
    exit 0
fi
exec "${SYMWIN_BUILD:-build}/tests/test_channel"
