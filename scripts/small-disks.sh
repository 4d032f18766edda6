#!/usr/bin/env bash
# Tests a store on a full file system and on one that is mounted read-only. Also tests repeated openings by
# the command, some of them killed. Needs the right to mount; without it, the parts that mount are skipped.
#   scripts/small-disks.sh AZEKURA [OPENINGS]
set -euo pipefail
azekura=$1 openings=${2:-300}
scratch=$(mktemp -d)
mounted=
clean_up() { if [ -n "$mounted" ]; then umount "$scratch/disk"; fi; rm -rf "$scratch"; }
trap clean_up EXIT
fail() { echo "small-disks: $*" >&2; exit 1; }
size() { du -sk --apparent-size "$1" | cut -f1; }
files() { find "$1" -type f | wc -l; }

# Openings leave nothing behind: except for the rows, the store has the size and the number of files that it
# had after the third.
for n in $(seq "$openings"); do
    "$azekura" put "$scratch/db" t "k$n" v
    if [ "$n" = 3 ]; then kept="$(size "$scratch/db") $(files "$scratch/db")"; fi
    if [ $((n % 5)) = 0 ]; then
        "$azekura" serve "$scratch/db" --listen 127.0.0.1:0 >/dev/null 2>&1 &
        server=$!
        sleep 0.2
        kill -9 "$server"
        wait "$server" 2>/dev/null || true
    fi
done
rows=$("$azekura" tables "$scratch/db" --count | grep '^t' | cut -f4)
[ "$rows" = "$openings" ] || fail "$rows rows of $openings are there"
now="$(size "$scratch/db") $(files "$scratch/db")"
echo "after 3 openings: $kept (KiB, files); after $openings: $now"
[ "${now%% *}" -le 1024 ] || fail "the store has grown"
[ "${now##* }" -le "$((${kept##* } + 1))" ] || fail "there are more files"

mkdir "$scratch/disk"
if ! mount -t tmpfs -o size=24m tmpfs "$scratch/disk" 2>/dev/null; then
    echo "no right to mount: the full disk and the read-only mount are left out"
    exit 0
fi
mounted=yes
db=$scratch/disk/db
digits=0123456789012345678901234567890123456789
seq -f "%.0f	$digits" 1000000 >"$scratch/rows.tsv"
"$azekura" load "$db" t "$scratch/rows.tsv" >/dev/null 2>&1 && fail "24 MB took what needs more"
head -n 500 "$scratch/rows.tsv" | "$azekura" load "$db" t - >/dev/null ||
    fail "a small load fails on a disk that is nearly full"
dd if=/dev/zero of="$scratch/disk/ballast" bs=4k 2>/dev/null || true
for command in "get $db t 1" "tables $db" "check $db" "stats $db --json"; do
    # shellcheck disable=SC2086
    "$azekura" $command >/dev/null || fail "$command fails on a full disk"
done
"$azekura" dump "$db" t >"$scratch/dump.tsv" || fail "dump fails on a full disk"
rm "$scratch/disk/ballast"
"$azekura" delete "$db" t 1 >/dev/null || fail "delete fails when there is room again"
mount -o remount,ro "$scratch/disk"
for command in "get $db t 2" "tables $db" "check $db" "stats $db --json"; do
    # shellcheck disable=SC2086
    "$azekura" $command >/dev/null || fail "$command fails on a read-only mount"
done
echo "small disks: clean"
