#!/bin/sh
# The emulated driver's conformance suite against the real driver, multicast rules aside.
# SYMWIN_CONFORMANCE_CSV names a file for what each rule expected and got.
exec "${SYMWIN_BUILD:-build}/tests/test_emu_memory"
