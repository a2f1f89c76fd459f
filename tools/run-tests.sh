#!/bin/sh
# Runs tests that are built already. Needs no compiler and no make, so it also works on a machine to
# which the build folder was copied.
#
#   usage: tools/run-tests.sh BUILD test|gpu [NAME...]
#
# A test is tests/ROOM/test_<name>.c or .cc, built as BUILD/tests/test_<name>, or a script
# tests/ROOM/test_<name>.t. Tests of the kind gpu are tests/gpu/gpu_<name>, and the programs that
# tests/gpu/both.txt names. SYMWIN_TEST_TIMEOUT limits each (seconds); SYMWIN_TEST_JOBS run at a
# time.
# tests/least.txt has the fewest checks that each test must make: three quarters of those it made
# when the file was written. For that, SYMWIN_TEST_CHECKS=FILE appends each test's name and number
# of checks to FILE.
set -eu

if [ $# -lt 2 ]; then
    sed -n 's/^# \{0,1\}//; 5,14p' "$0" >&2
    exit 2
fi
build=$1
kind=$2
shift 2
cd "$(dirname "$0")/.."

want() { # the test's name, then the wanted names; no names: all
    name=$1
    shift
    [ $# -eq 0 ] && return 0
    for n; do
        [ "$n" = "$name" ] && return 0
    done
    return 1
}

sanitized=$(grep -s -o -m 1 -e '-fsanitize=[a-z]*' "$build/flags" | head -n 1) || true

# The longest tests begin first, so that the others run beside them.
list=
names=
first="cut_off kill system_faults race multicast_faults nccl_scenes nccl_calls own_kernel
    own_faults stand_in send_receive nccl_faults far faults reduce_scatterv perf abort allreduce
    collectives_registered alltoallv send_receive_large differ leave multicast credentials
    exchange perf_collectives collectives hosts info fast_allreduce collectives_refused order
    comm rails_ends"
both=
[ "$kind" != gpu ] || both=$(sed 's|.*|tests/*/&.c|' tests/gpu/both.txt)
# shellcheck disable=SC2046,SC2086 # patterns
for file in $(for name in $first; do echo tests/*/"$kind"_"$name".*; done) $both \
    tests/*/"$kind"_*.c tests/*/"$kind"_*.cc tests/*/"$kind"_*.t; do
    [ -e "$file" ] || continue
    name=$(basename "${file%.*}")
    want "$name" "$@" || continue
    case $#$file in
    0tests/top/*.t) [ -z "$sanitized" ] || continue ;; # they read sources, or install
    esac
    names="$names $name"
    case $file in
    *.t) runs=$file ;;
    *) runs=$build/tests/$name ;;
    esac
    case " $list " in
    *" $runs "*) ;;
    *) list="$list $runs" ;;
    esac
done
for name; do
    case "$names " in
    *" $name "*) ;;
    *)
        echo "no such test: $name" >&2
        list=
        ;;
    esac
done
if [ -z "$list" ]; then
    echo "nothing was run" >&2
    exit 1
fi

export SYMWIN_BUILD="$build"
case $kind in
gpu)
    # Tests that share GPUs must not run concurrently: kernels that wait for each other would also
    # wait for another test's kernels to end.
    export SYMWIN_DRIVER=cuda
    # For ranks that share a GPU: as many concurrent streams as the hardware has queues.
    export CUDA_DEVICE_MAX_CONNECTIONS=32
    jobs=1
    ;;
*)
    export SYMWIN_DRIVER=emu
    # Tests make fewer checks under sanitizers.
    [ -n "$sanitized" ] || export SYMWIN_TEST_LEAST=tests/least.txt
    # More than the two cores: many tests wait for processes that they stopped or killed. Under
    # ThreadSanitizer they compute.
    jobs=5
    [ "$sanitized" != -fsanitize=thread ] || jobs=4
    jobs=${SYMWIN_TEST_JOBS:-$jobs}
    ;;
esac

export ASAN_OPTIONS="abort_on_error=0:detect_stack_use_after_return=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
# Ranks as processes are forked, from parents that may have a thread. At exit ThreadSanitizer waits
# for threads of the process; the default, a second, would be most of the time of most tests.
export TSAN_OPTIONS="second_deadlock_stack=1:die_after_fork=0:atexit_sleep_ms=50:${TSAN_OPTIONS:-}"

# ThreadSanitizer of gcc 12 does not start if the kernel randomises more address bits than it
# supports.
runner=
if [ "$sanitized" = -fsanitize=thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then
    runner="setarch $(uname -m) -R"
fi

if [ -n "$sanitized" ]; then
    timeout=${SYMWIN_TEST_TIMEOUT:-300}
elif [ "$kind" = gpu ]; then # where a process takes a second to start
    timeout=${SYMWIN_TEST_TIMEOUT:-300}
else
    timeout=${SYMWIN_TEST_TIMEOUT:-180}
fi

# Removing this folder removes what killed ranks leave behind. Socket names require a short path.
TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/sw.XXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# prove shows which tests failed, but not their output. It is kept, and printed last.
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
