#!/bin/sh
# tests/window/test_register.c with ranks as processes.
SYMWIN_TEST_PROCESSES=4 exec "${SYMWIN_BUILD:-build}/tests/test_register"
