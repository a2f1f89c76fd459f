#!/bin/sh
# Runs tests that are built already; needs no compiler and no make, so that it also serves a machine
# to which the build folder was carried.
#
#   usage: tools/run-tests.sh BUILD test|gpu [NAME...]
#
# A test is tests/ROOM/test_<name>.c or .cc, built as BUILD/tests/test_<name>, or a script
# tests/ROOM/test_<name>.t; of the kind gpu, gpu_<name> in tests/gpu, and the programs that
# tests/gpu/both.txt names. SYMWIN_TEST_TIMEOUT bounds each (seconds), SYMWIN_TEST_JOBS runs so many at
# the same time. tests/least.txt has how many checks each makes at the least: three quarters of those that there were
# when it was written, by SYMWIN_TEST_CHECKS=FILE, to which each test's name and number of checks are added.
set -eu

if [ $# -lt 2 ]; then
    sed -n 's/^# \{0,1\}//; 5,11p' "$0" >&2
    exit 2
fi
build=$1
kind=$2
shift 2
cd "$(dirname "$0")/.."

want() { # the test's name, then the names asked for; none asked for: all
    name=$1
    shift
    [ $# -eq 0 ] && return 0
    for n; do
        [ "$n" = "$name" ] && return 0
    done
    return 1
}

# What takes longest begins first, so that the others run beside it.
list=
first="system_faults kill faults allreduce perf example hosts fast_allreduce with_nccl user_buffers
    memory_channel race own_kernel"
both=
[ "$kind" != gpu ] || both=$(sed 's|.*|tests/*/&.c|' tests/gpu/both.txt)
# shellcheck disable=SC2046,SC2086 # patterns
for file in $(for name in $first; do echo tests/*/"$kind"_"$name".*; done) $both \
    tests/*/"$kind"_*.c tests/*/"$kind"_*.cc tests/*/"$kind"_*.t; do
    [ -e "$file" ] || continue
    name=$(basename "${file%.*}")
    want "$name" "$@" || continue
    case $file in
    *.t) runs=$file ;;
    *) runs=$build/tests/$name ;;
    esac
    case " $list " in
    *" $runs "*) ;;
    *) list="$list $runs" ;;
    esac
done
if [ -z "$list" ]; then
    echo "no such tests: $kind $*" >&2
    exit 1
fi

export SYMWIN_BUILD="$build"
case $kind in
gpu)
    # Tests that share GPUs must not run side by side: kernels that wait for each other would wait
    # for another test's to leave.
    export SYMWIN_DRIVER=cuda
    # Ranks that share a GPU: as many streams at the same time as the hardware has queues for.
    export CUDA_DEVICE_MAX_CONNECTIONS=32
    jobs=1
    ;;
*)
    export SYMWIN_DRIVER=emu
    # What sanitizers run is thinned out.
    grep -qs -e -fsanitize= "$build/flags" || export SYMWIN_TEST_LEAST=tests/least.txt
    # For two cores: many wait for what they have stopped or killed.
    jobs=${SYMWIN_TEST_JOBS:-3}
    ;;
esac

export ASAN_OPTIONS="abort_on_error=0:detect_stack_use_after_return=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# Ranks as processes are forked, from parents that may have a thread. A process with threads at its end waits for
# what they may still do; a second, which is the default, would be the most of most tests' time.
export TSAN_OPTIONS="second_deadlock_stack=1:die_after_fork=0:atexit_sleep_ms=50:${TSAN_OPTIONS:-}"

# ThreadSanitizer of gcc 12 does not start where the kernel randomises more address bits than it
# knows of.
runner=
if grep -qs -e -fsanitize=thread "$build/flags" && setarch "$(uname -m)" -R true 2>/dev/null; then
    runner="setarch $(uname -m) -R"
fi

if grep -qs -e -fsanitize= "$build/flags"; then
    timeout=${SYMWIN_TEST_TIMEOUT:-300}
else
    timeout=${SYMWIN_TEST_TIMEOUT:-120}
fi

# What killed ranks leave behind goes with this folder. Its name is short, as a socket's has to be.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/sw.XXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# prove shows which tests failed, and not what they said. That is kept, and printed last.
export SYMWIN_TEST_LOGS="$TMPDIR/logs"
mkdir "$SYMWIN_TEST_LOGS"
status=0
# shellcheck disable=SC2086 # lists of words
$runner prove --timer -j "$jobs" --exec "tools/run-one.sh $timeout" $list || status=$?
for log in "$SYMWIN_TEST_LOGS"/*.failed; do
    [ -e "$log" ] || continue
    printf '\n---- %s, the end of what it said\n' "$(basename "$log" .failed)"
    grep -v '^ok ' "$log" | tail -n 60
done
exit $status
