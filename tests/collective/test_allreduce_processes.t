#!/bin/sh
# tests/collective/test_allreduce.c with ranks as processes.
SYMWIN_TEST_PROCESSES=4 exec "${SYMWIN_BUILD:-build}/tests/test_allreduce"
