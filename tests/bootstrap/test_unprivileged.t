#!/bin/sh
# Ranks as processes without privileges: not root, no capability and no way to gain one (so no
# ptrace of processes that are not descendants), and only a folder for files in the environment.
build=${SYMWIN_BUILD:-build}
user=$(id -u)
n=0

ok() { # status, name
    n=$((n + 1))
    [ "$1" = 0 ] || printf 'not '
    echo "ok $n - $2"
}

# Owned by the user, unlike the tests' folder.
place=$(TMPDIR=/tmp mktemp -d)
trap 'rm -rf "$place"' EXIT
cp "$build/allreduce_sm" "$place/program"
mkdir "$place/tmp"
chmod 755 "$place" "$place/program"

[ "$user" != 0 ] || user=65534
without="env -i SYMWIN_DRIVER=emu TMPDIR=$place/tmp"
if [ "$(id -u)" = 0 ]; then
    if ! command -v setpriv >/dev/null; then
        echo "1..0 # SKIP as root this needs setpriv of util-linux"
        exit 0
    fi
    chown "$user:$user" "$place/tmp"
    without="setpriv --reuid $user --regid $user --clear-groups --no-new-privs \
        --inh-caps=-all --bounding-set=-all $without"
fi

cd "$place" || exit 1
for nproc in 2 4; do
    # shellcheck disable=SC2086 # a list of words
    output=$($without timeout 60 ./program --nproc "$nproc" 64K 2>&1)
    ok $? "$nproc processes without rights"
    printf '%s\n' "$output" | grep -q 'All resources cleaned up successfully'
    ok $? "$nproc processes: their sums are right, and they clean up"
    [ "$(find tmp -mindepth 1)" = "tmp/symwin-$user" ]
    ok $? "$nproc processes: the user's folder is left in TMPDIR, and nothing in it"
done
echo "1..$n"
