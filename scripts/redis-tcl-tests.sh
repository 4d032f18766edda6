#!/usr/bin/env bash
# Runs Redis' own test suite (its Tcl units for strings, keys and connections) against `azekura serve`.
#
#   scripts/redis-tcl-tests.sh [AZEKURA] [UNIT...]   target/release/azekura and ten units unless given
#
# A failing test has one of three causes. It needs a command or a setting that the server does not have, as
# the reply says. It is listed with its reason in scripts/redis-tcl/differences.txt. Or it is a defect. Needs
# tclsh, and the source of Redis 7.0 from Debian's source package, which apt-get downloads into
# target/redis-source (or REDIS_SOURCE names an unpacked one). Without them, the script prints a note and
# succeeds. Exit code 0: no defect; 1: the defects are listed. Takes about two minutes.
set -euo pipefail
export LC_ALL=C

here=$(realpath "$(dirname "$0")")
azekura=$(realpath "${1:-$here/../target/release/azekura}")
shift || true
units=("$@")
default_units="type/string type/incr bitops keyspace expire scan multi protocol other introspection"
# shellcheck disable=SC2206
[ ${#units[@]} -gt 0 ] || units=($default_units)
if [ ! -x "$azekura" ]; then
    echo "no command $azekura; cargo build --release -p azekura-cli makes it" >&2
    exit 2
fi
command -v tclsh >/dev/null || { echo "skipped the tests of Redis: no tclsh here"; exit 0; }

kept=$here/../target/redis-source
fetch() { # the source package, by a list of sources of our own: the system's may not have deb-src
    command -v apt-get >/dev/null || return 1
    mkdir -p "$kept/lists/partial"
    local suite
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1 >"$kept/mirror"
    echo "deb-src $(cat "$kept/mirror") $suite main" >"$kept/sources.list"
    local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$kept/sources.list" -o Dir::Etc::sourceparts=-)
    apt+=(-o "Dir::State::lists=$kept/lists")
    cd "$kept" && "${apt[@]}" update && "${apt[@]}" source --download-only redis &&
        tar xzf redis_*.orig.tar.gz
}
source_of_redis() {
    find "${REDIS_SOURCE:-$kept}" -maxdepth 3 -path '*/tests/test_helper.tcl' 2>/dev/null | head -n 1
}
[ -n "$(source_of_redis)" ] || (fetch) >/dev/null 2>&1 || true
helper=$(source_of_redis)
[ -n "$helper" ] || { echo "skipped the tests of Redis: its source package cannot be had here"; exit 0; }

dir=$(mktemp -d "${TMPDIR:-/tmp}/redis-tcl.XXXXXX")
server=
cleanup() {
    [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true; }
    rm -rf "$dir"
}
trap cleanup EXIT
cp -r "$(dirname "$(dirname "$helper")")/tests" "$dir/tests"
mkdir "$dir/src"
# The suite clears functions between tests, which the server does not have. A failing test must not leave its
# connection in MULTI.
sed -i 's/^\( *\)r function flush/\1catch {r function flush}/' "$dir/tests/support/server.tcl"
sed -i '/set assertion \[string match "assertion:\*" $error\]/a if {!$assertion} { catch {r discard} }' \
    "$dir/tests/support/test.tcl"

"$azekura" serve "$dir/db" --listen 127.0.0.1:0 >"$dir/azekura.out" 2>"$dir/azekura.err" &
server=$!
port=
for _ in $(seq 1200); do
    port=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/azekura.out")
    [ -n "$port" ] && break
    sleep 0.05
done
[ -n "$port" ] || { echo "the server does not start: $(cat "$dir/azekura.err")" >&2; exit 1; }

# judge UNIT: runs a unit, and prints its defects and numbers. Fails if there is a defect.
judge() {
    local unit=$1
    (cd "$dir" && timeout 600 tclsh tests/test_helper.tcl --host 127.0.0.1 --port "$port" --singledb \
        --ignore-encoding --ignore-digest --durable --tags -needs:debug --single "unit/$unit") \
        >"$dir/said" 2>&1 || true
    sed -i 's/\x1b\[[0-9;]*m//g' "$dir/said"
    if ! grep -q '^\[ok\]' "$dir/said"; then
        echo "unit/$unit did not run:" >&2
        tail -n 20 "$dir/said" >&2
        exit 1
    fi
    awk -v unit="$unit" '
        FNR == NR { if ($0 !~ /^#/ && NF) { split($0, part, "\t"); reason[part[1]] = part[2] } next }
        function judge() {
            if (name == "") return
            if (detail ~ /n (sub)?command .|is not offered|unsupported/) lacks++
            else if (detail ~ /cannot be changed while the server runs/) lacks++
            else if (name in reason) differs++
            else { wrong++; print "defect: " name ": " substr(detail, 1, 300) }
            name = ""
        }
        /^\[ok\]/ { judge(); good++; next }
        /^\[err\]: / {
            judge()
            name = $0; sub(/^\[err\]: /, "", name); sub(/ in tests\/.*/, "", name)
            detail = ""
            next
        }
        /^\[|^Testing |^Cleanup|^!!! / { judge(); next }
        name != "" { detail = detail " " $0 }
        END {
            judge()
            printf "%-14s %3d passed, %3d lack a command, ", unit, good, lacks
            printf "%2d differ as listed, %d defects\n", differs, wrong
            exit wrong > 0
        }
    ' "$here/redis-tcl/differences.txt" "$dir/said"
}

defects=0
for unit in "${units[@]}"; do
    # Some tests of Redis measure time, so a unit with a defect is run up to three times.
    for turn in 1 2 3; do
        if judge "$unit" >"$dir/verdict"; then break; fi
        if [ "$turn" = 3 ]; then defects=1; else sed 's/^/once more: /' "$dir/verdict"; fi
    done
    cat "$dir/verdict"
done
exit $defects
