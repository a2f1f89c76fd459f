#!/bin/sh
# Runs every benchmark that is built and keeps its output in bench/results, in files named by date
# and machine, with driver, GPUs and commit at the top: memory, pool, registration, startup, and the
# standard tables of symwin-perf (graph replays and stream launches of the all-reduce and of all
# collectives, with NCCL and PyTorch if they are found; types; grids of few blocks). Then
# bench/report.py makes docs/performance.md and its pictures from them. Results of the emulated
# driver are only drawn.
#
#   usage: bench/run.sh BUILD
#
#   PERF="-d f16 -e 64M"   additional options for symwin-perf
#   RANKS=2                ranks of symwin-perf; default: one per GPU
#   ONLY="memory startup"  only these: memory, pool, registration, startup, perf (all tables of
#                          symwin-perf), or a table by the last words of its file's name
set -eu

# No program here may create a multicast object (docs/hardware.md).
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1

build=${1:-build}
cd "$(dirname "$0")/.."
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /' | tr '\n' ' ' | sed 's/ *$//')
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null |
    head -n 1 || true)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
machine=$(echo "${gpus:-emulated}" | tr -c 'A-Za-z0-9\n' '-' | tr -s - | tr 'A-Z' 'a-z')
results=bench/results/$(date +%F)-$machine
mkdir -p bench/results

wanted() { # one of these names
    [ -n "${ONLY:-}" ] || return 0
    for name in "$@"; do
        case " $ONLY " in *" $name "*) return 0 ;; esac
    done
    return 1
}

for program in memory pool registration startup; do
    wanted $program && [ -x "$build/bench/$program" ] || continue
    file=$results-$program.csv
    {
        echo "# ${gpus:-emulated driver}; driver ${driver:-none}; $(date +%F); commit $commit"
        "$build/bench/$program"
    } >"$file.new"
    mv "$file.new" "$file"
    echo "$file"
done

tables="perf-graph perf-stream perf-types collectives-graph collectives-stream perf-sms"
# shellcheck disable=SC2086 # a list of words
wanted perf $tables && [ -x "$build/bench/symwin-perf" ] || exit 0

# Runs one table; a wrong result ends the script. PERF comes last, because the last option counts.
# shellcheck disable=SC2086 # lists of words
run() { # the file, then options
    file=$1
    shift
    "$build/bench/symwin-perf" ${RANKS:+-t $RANKS} --csv "$file" "$@" ${PERF:-} >&2
}

perf() { # the file's last words, then options
    wanted perf "$1" || return 0
    table=$results-${RANKS:+$RANKS-ranks-}$1.csv
    shift
    run "$table.new" "$@"
    mv "$table.new" "$table"
    echo "$table"
}

# The number of ranks that PERF, RANKS and the devices give: links need two.
# shellcheck disable=SC2086
ranks=$("$build/bench/symwin-perf" ${RANKS:+-t $RANKS} ${PERF:-} -b 1K -e 1K -n 1 -G 1 |
    sed -n 's/^# ranks: \([0-9]*\) .*/\1/p')
link=
[ "${ranks:-0}" -lt 2 ] || link=--link

# Whether a rival can be run with PERF's options; otherwise it prints why not.
# shellcheck disable=SC2086
can() {
    [ -n "$gpus" ] && "$build/bench/symwin-perf" ${RANKS:+-t $RANKS} ${PERF:-} -b 1K -e 1K -d bf16 \
        -n 1 -G 1 --algo none --against "$1" >/dev/null
}
rivals=
! can nccl || rivals=nccl,nccl-window
# PyTorch's two-shot works in place only, so with it stream launches cover both placements.
stream_places=0
! can torch || { rivals=$rivals${rivals:+,}torch && stream_places=both; }
rivals=${rivals:+--against $rivals}
if [ -n "$gpus" ]; then
    sizes="-b 8 -e 1G -f 2 -d bf16"
    type_sizes="-b 64K -e 64M -f 4"
    large_sizes="-b 16M -e 256M -f 4 -d bf16"
else # the emulated driver: only tests that it works
    sizes="-b 1K -e 16K -f 4 -d bf16"
    type_sizes="-b 1K -e 4K -f 4"
    large_sizes="-b 16K -e 64K -f 4 -d bf16"
fi
# shellcheck disable=SC2086
{
    perf perf-graph $sizes --algo all --in-place both $link $rivals
    perf perf-stream $sizes -G 0 --in-place $stream_places --launch $rivals
    perf perf-types $type_sizes -d f32,f16,bf16,e4m3,e5m2,i32
    perf collectives-graph $sizes --collective all --in-place both $rivals
    perf collectives-stream $sizes --collective all -G 0 --in-place both $rivals
}

# One run per limit, all in one file. --sm-limit holds for all kernels of the communicator, also for
# the sums of the copies, and for any selection; --blocks would request it for each call.
if wanted perf perf-sms; then
    table=$results-${RANKS:+$RANKS-ranks-}perf-sms.csv
    : >"$table.new"
    for limit in 4 8 16 32; do
        # shellcheck disable=SC2086
        run "$table.part" $large_sizes \
            --algo auto,twoshot,twoshot_push,twoshot_put,copies,twoshot_bulk --sm-limit $limit
        cat "$table.part" >>"$table.new"
    done
    rm "$table.part"
    mv "$table.new" "$table"
    echo "$table"
fi

command -v python3 >/dev/null || exit 0
if [ -n "$gpus" ]; then
    python3 bench/report.py
    exit
fi
for mode in graph stream; do
    wanted perf perf-$mode || continue
    file=$results-${RANKS:+$RANKS-ranks-}perf-$mode
    python3 bench/plot.py --output "$file.svg" "$file.csv"
    echo "$file.svg"
done
