#!/bin/sh
# Runs one test for tools/run-tests.sh: passes on its output, and keeps it if the test fails. A test
# passes only if it makes at least one check, and as many as the file $SYMWIN_TEST_LEAST requires
# (lines "name checks"). Otherwise a loop over a table or a file list that became empty would pass.
#
#   usage: tools/run-one.sh SECONDS TEST
name=$(basename "$2")
log=$SYMWIN_TEST_LOGS/$name

timeout -k 5 "$1" "$2" >"$log" 2>&1
status=$?
cat "$log"
if [ $status -eq 0 ] && ! grep -q '^not ok' "$log" && ! grep -qi '^1\.\.0 *# *skip' "$log"; then
    checks=$(grep -c '^ok ' "$log")
    least=$(sed -n "s/^${name%.t} //p" "${SYMWIN_TEST_LEAST:-/dev/null}")
    if [ "$checks" -lt "${least:-1}" ]; then
        echo "not ok - it made $checks checks and not ${least:-1}: a loop found nothing," \
            "or correct tests/least.txt" | tee -a "$log"
        status=1
    fi
    [ -z "${SYMWIN_TEST_CHECKS:-}" ] || echo "${name%.t} $checks" >>"$SYMWIN_TEST_CHECKS"
fi
if [ $status -eq 0 ] && ! grep -q '^not ok' "$log"; then
    rm "$log"
else
    mv "$log" "$log.failed"
fi
exit $status
