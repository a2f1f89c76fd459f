#!/bin/sh
# tests/window/test_register_late.c with ranks as processes.
SYMWIN_TEST_PROCESSES=3 exec "${SYMWIN_BUILD:-build}/tests/test_register_late"
