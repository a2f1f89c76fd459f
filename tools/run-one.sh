#!/bin/sh
# Runs one test for tools/run-tests.sh: passes on what it says, and keeps it if the test fails.
#
#   usage: tools/run-one.sh SECONDS TEST
log=$SYMWIN_TEST_LOGS/$(basename "$2")

timeout -k 5 "$1" "$2" >"$log" 2>&1
status=$?
cat "$log"
if [ $status -eq 0 ] && ! grep -q '^not ok' "$log"; then
    rm "$log"
else
    mv "$log" "$log.failed"
fi
exit $status
