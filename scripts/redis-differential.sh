#!/usr/bin/env bash
# Sends random commands, including malformed ones, to a real redis-server and to `azekura serve`. Every reply
# must be the same, byte for byte.
#
#   scripts/redis-differential.sh [AZEKURA] [COMMANDS] [SEED]   (target/release/azekura, 200000, random)
#
# scripts/redis-differential/differences.txt lists the intended differences, each with its reason. Needs
# python3 (standard library only) and Debian's redis-server; without them, the script prints a note and
# succeeds. Leaves no files behind. Takes about two minutes. Exit code 0: no other difference; 1: the first
# differences are shown, with the commands that led to them.
set -euo pipefail
export LC_ALL=C

here=$(realpath "$(dirname "$0")")
azekura=$(realpath "${1:-$here/../target/release/azekura}")
commands=${2:-200000}
seed=${3:-$RANDOM$RANDOM}
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
for program in python3 redis-server; do
    command -v "$program" >/dev/null || { echo "skipped the comparison: no $program here"; exit 0; }
done
dir=$(mktemp -d "${TMPDIR:-/tmp}/redis-differential.XXXXXX")
pids=()
cleanup() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --appendonly no --databases 1 --dir "$dir" \
    --rdbcompression no >"$dir/redis.log" 2>&1 &
pids+=($!)
: >"$dir/azekura.out" # exists before the server writes to it
"$azekura" serve "$dir/db" --listen 127.0.0.1:0 >"$dir/azekura.out" 2>"$dir/azekura.err" &
pids+=($!)
port=
for _ in $(seq 1200); do
    port=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/azekura.out")
    [ -n "$port" ] && [ -S "$dir/redis.sock" ] && break
    sleep 0.05
done
[ -n "$port" ] || { echo "the server does not start: $(cat "$dir/azekura.err")" >&2; exit 1; }
[ -S "$dir/redis.sock" ] || { echo "redis-server does not start: $(tail -n 3 "$dir/redis.log")" >&2; exit 1; }
python3 "$here/redis-differential/compare.py" "$dir/redis.sock" "$port" "$commands" "$seed"
