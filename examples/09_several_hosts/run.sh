#!/bin/sh
# usage: [HOSTS=2] [RANKS=2] run.sh PROGRAM [ARGUMENT...]
#
# Runs a program as the ranks of several hosts, on this machine: HOSTS hosts of RANKS processes
# each.
# Each process gets what a launcher and a real host would give it: its rank, the address of rank 0,
# the secret of the job, and the name of its host. With a GPU, NCCL gets a host name for each
# process (NCCL_HOSTID), because it refuses two ranks of one host on one GPU.
set -eu

hosts=${HOSTS:-2}
ranks=${RANKS:-2}
if [ $# -eq 0 ]; then
    sed -n 's/^# //; 2p' "$0" >&2
    exit 2
fi
for number in "$hosts" "$ranks"; do
    case $number in
    [1-9] | [1-9][0-9] | [1-9][0-9][0-9]) ;;
    *)
        echo "run.sh: HOSTS is \"$hosts\" and RANKS \"$ranks\": give numbers from 1 to 999" >&2
        exit 2
        ;;
    esac
done

# A port that is free now: the system chooses it.
port=${SYMWIN_PORT:-$(perl -MIO::Socket::INET -e '
    print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport')}
SYMWIN_SECRET=${SYMWIN_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export SYMWIN_SECRET SYMWIN_JOB="several-hosts-$$" SYMWIN_ADDR=127.0.0.1 SYMWIN_PORT="$port"
export SYMWIN_NRANKS=$((hosts * ranks)) SYMWIN_LOCAL_NRANKS="$ranks"

# Ranks end with this script: a shell's processes in the background do not get Ctrl-C.
pids=
end_by() {
    trap - INT TERM HUP
    for pid in $pids; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    kill -s "$1" $$
}
trap 'end_by INT' INT
trap 'end_by TERM' TERM
trap 'end_by HUP' HUP

host=0
while [ "$host" -lt "$hosts" ]; do
    local=0
    while [ "$local" -lt "$ranks" ]; do
        rank=$((host * ranks + local))
        SYMWIN_RANK=$rank SYMWIN_LOCAL_RANK=$local SYMWIN_HOST_ID="host-$host" \
            NCCL_HOSTID="host-$host-$local" "$@" &
        pids="$pids $!"
        local=$((local + 1))
    done
    host=$((host + 1))
done

status=0
for pid in $pids; do
    wait "$pid" || status=$?
done
exit $status
