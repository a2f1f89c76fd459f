#!/bin/sh
# Windows on several physical allocations against the real driver: tests/test_span.c.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "1..0 # SKIP no GPU: there is no /dev/nvidiactl and no /dev/dxg"
    exit 0
fi
exec "${SYMWIN_BUILD:-build}/tests/test_span"
