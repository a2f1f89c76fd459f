#!/bin/sh
# tests/channel/test_channel_host.c with ranks as processes.
SYMWIN_TEST_PROCESSES=4 exec "${SYMWIN_BUILD:-build}/tests/test_channel_host"
