#!/bin/sh
# tests/rails/test_rails.c with hosts of many ranks.
exec "${SYMWIN_BUILD:-build}/tests/test_rails" large
