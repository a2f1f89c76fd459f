#!/bin/sh
# Channels created by the host on real GPUs: tests/channel/test_channel_host.c with ranks as
# processes.
if [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "1..0 # SKIP no GPU: there is no /dev/nvidiactl and no /dev/dxg"
    exit 0
fi
SYMWIN_TEST_PROCESSES=2 exec "${SYMWIN_BUILD:-build}/tests/test_channel_host"
