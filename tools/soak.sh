#!/bin/sh
# The long runs: kill a rank at nearly every step, and make every call fail. No time limit.
#
#   usage: tools/soak.sh BUILD [KILL_STRIDE [FAULT_STRIDE]]
#
# Results are kept in BUILD/soak. Fails if a test fails, or if there were too few kills or faults:
# then the tests have fewer steps than before, and smaller strides are needed.
set -eu

if [ $# -lt 1 ]; then
    sed -n 's/^# \{0,1\}//; 4p' "$0" >&2
    exit 2
fi
build=$1
kill_stride=${2:-2}
fault_stride=${3:-1}
least_kills=2000
least_faults=20000
failed=0

export SYMWIN_DRIVER=emu
mkdir -p "$build/soak"

soak() { # a test, its stride
    "$build/tests/$1" "$2" >"$build/soak/$1" 2>&1 || : >"$build/soak/failed"
    cat "$build/soak/$1"
}

rm -f "$build/soak/failed"
soak test_flood 10000 # connections held while a job starts; prints the delay
if [ "$(nproc)" -ge 8 ]; then # enough for both, and for their ranks
    soak test_kill "$kill_stride" &
    soak test_system_faults "$fault_stride"
    wait
else
    soak test_kill "$kill_stride"
    soak test_system_faults "$fault_stride"
fi
soak test_multicast_faults soak
[ ! -e "$build/soak/failed" ] || failed=1

kills=$(sed -n 's/^\(not \)\{0,1\}ok .*: \([0-9]*\) of [0-9]* runs hit.*/\2/p' \
    "$build/soak/test_kill" | awk '{ n += $1 } END { print n + 0 }')
multicast=$(sed -n 's/.* \([0-9]*\) of [0-9]* kills ended well/\1/p' \
    "$build/soak/test_multicast_faults" | awk '{ n += $1 } END { print n + 0 }')
faults=$(sed -n 's/^# \([0-9]*\) faults in .*/\1/p' "$build/soak/test_system_faults")
echo "soak: multicast: $multicast ranks killed, $(sed -n 's/^# \([0-9]*\) faults.*/\1/p' \
    "$build/soak/test_multicast_faults") faults"
echo "soak: $kills ranks ended, ${faults:=0} faults injected$([ $failed = 0 ] || echo '; FAILED')"
if [ $# -eq 1 ] && { [ "$kills" -lt $least_kills ] || [ "$faults" -lt $least_faults ]; }; then
    echo "soak: too few; at least $least_kills and $least_faults are meant" >&2
    failed=1
fi
exit $failed
