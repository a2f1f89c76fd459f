#!/bin/sh
# Builds the fuzzers under <build>/fuzz and runs each for some seconds, starting from the kept
# corpus. With "keep", also starts from inputs of earlier runs, and keeps new inputs in
# <build>/corpus. With "minimise", leaves out kept inputs that reach nothing new instead. With
# "build", only builds.
#
#   fuzz/run.sh <build> <seconds> [keep | minimise | build]
#
# Uses clang's libFuzzer if there is one, else fuzz/main.c under gcc's AddressSanitizer.
set -eu
build=$1 seconds=$2 keep=${3:-}
make=${MAKE:-make}

scratch=$(mktemp -d) # also removes the sockets of a fuzzer that died
trap 'rm -rf "$scratch"' EXIT
libfuzzer=
if echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return !d && n; }' |
    clang -x c -fsanitize=fuzzer,address,undefined -o "$scratch/probe" - 2>/dev/null; then
    libfuzzer=1
fi

if [ -n "$libfuzzer" ]; then
    out=$build/libfuzzer
    $make NVCC= BUILD="$out" CC=clang CXX=clang++ SANITIZE=address,undefined LIBFUZZER=1 fuzzers
elif [ -n "$keep" ] && [ "$keep" != build ]; then
    echo "this needs clang with libFuzzer; make fuzz-check does without" >&2
    exit 1
else
    out=$build/asan
    $make NVCC= BUILD="$out" SANITIZE=address,undefined fuzzers
fi
[ "$keep" != build ] || exit 0

# Never use a GPU.
SYMWIN_DRIVER=emu TMPDIR=$scratch
export SYMWIN_DRIVER TMPDIR

fuzz() { # name
    name=$1
    echo "fuzz: $name, $seconds s"
    kept=fuzz/corpus/$name
    if [ -z "$libfuzzer" ]; then
        "$out/fuzz/$name" -seconds "$seconds" "$kept"
        return
    fi
    work=$build/corpus/$name
    [ -n "$keep" ] || work=$build/corpus.check/$name
    [ -n "$keep" ] || rm -rf "$work"
    mkdir -p "$work"
    log=$build/fuzz-$name.log
    # The value profile (operands of comparisons) helps with frames, not with scripts.
    profile=1
    case $name in calls | stream) profile=0 ;; esac
    if ! "$out/fuzz/$name" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=9000 \
        -use_value_profile=$profile -print_final_stats=1 -artifact_prefix="$build/$name-" \
        "$work" "$kept" >"$log" 2>&1; then
        { tail -n 60 "$log" && grep -E -B 1 'ERROR: |^Base64: ' "$log"; } >"$scratch/$name.failed"
        return 1
    fi
    grep -E 'number_of_executed_units|average_exec_per_sec' "$log" | sed "s/^/$name: /"
}

# How many inputs a folder has, and what they reach: edges (cov), and with the numbers of passes
# (ft). Fails if one of them does.
reached() { # name folder
    "$out/fuzz/$1" -runs=0 -max_len=9000 "$2" >"$log" 2>&1 &&
        sed -n "s/.*INITED *\(cov.*\) corp.*/$(find "$2" -type f | wc -l) inputs, \1/p" "$log"
}

# Keeps the fewest inputs that reach what all reach. An input that is not named by a hash was a
# fault once, or was written by hand, and stays.
minimise() { # name
    kept=fuzz/corpus/$1 small=$scratch/$1.small log=$build/fuzz-$1.log
    # How often threads pass an edge differs from run to run. A few edges are passed in some runs
    # only, so a second minimising may leave out a few more inputs.
    counters=1
    case $1 in calls) counters=0 ;; esac
    mkdir "$small"
    for input in "$kept"/*; do
        case ${input##*/} in *[!0-9a-f]*) cp "$input" "$small" ;; esac
    done
    if ! before=$(reached "$1" "$kept") || ! "$out/fuzz/$1" -set_cover_merge=1 \
        -use_counters=$counters -max_len=9000 "$small" "$kept" >"$log" 2>&1; then
        tail -n 60 "$log" >"$scratch/$1.failed"
        return 1
    fi
    rm "$kept"/*
    mv "$small"/* "$kept"
    echo "$1: $before; minimised $(reached "$1" "$kept")"
}

# Two at a time; a failure of one does not stop the others.
other= failed=
for source in fuzz/*.c; do
    name=$(basename "$source" .c)
    [ "$name" != main ] || continue
    if [ "$keep" = minimise ]; then minimise "$name" & else fuzz "$name" & fi
    [ -z "$other" ] || wait "$other" || failed=1
    other=$!
done
[ -n "$other" ] || { echo "there is no fuzzer" >&2 && exit 1; }
wait "$other" || failed=1
# At the end, which a truncated log still has: the failures in short, with the input.
for found in "$scratch"/*.failed; do
    [ ! -e "$found" ] || { echo "fuzz: $(basename "$found" .failed) found:" && cat "$found"; } >&2
done
[ -z "$failed" ]
