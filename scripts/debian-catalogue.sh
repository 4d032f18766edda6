#!/usr/bin/env bash
# Loads the Debian package catalogue of this machine with the `azekura` command, and compares the results with
# those of sort and awk for the same rows. Then it repeats this with loads that are killed with SIGKILL at
# random times.
#
#   scripts/debian-catalogue.sh [AZEKURA]     the command to test; target/release/azekura unless given
#
# The environment may set SEED, SAMPLE (rows fetched one by one), SCANS (of each kind) and KILLS. Needs
# apt-cache with package lists (`apt-get update` once). Leaves no files behind. Exit code 0: all results are
# as expected.
set -euo pipefail
export LC_ALL=C

azekura=$(realpath "${1:-$(dirname "$0")/../target/release/azekura}")
seed=${SEED:-$(date +%s)}
sample=${SAMPLE:-2000}
scans=${SCANS:-12}
kills=${KILLS:-6}
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/debian-catalogue.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
RANDOM=$((seed % 32768))

say() { printf '%s\n' "$*"; }
fail() { say "FAILED (seed $seed): $*" >&2; exit 1; }
# same WHAT EXPECTED FOUND: fails and shows the first differences if two files differ.
same() {
    cmp -s "$2" "$3" || { diff "$2" "$3" | head -n 10 >&2 || true; fail "$1"; }
}

# Writes raw.tsv: Package, Version, Section, first line of Description, separated by tabs, in the catalogue's
# order. A name can occur several times.
catalogue() {
    apt-cache dumpavail | tr -d '\000-\010\013-\037\177' | awk '
        function flush_row() { if (name != "") print name "\t" version "\t" section "\t" text;
            name = version = section = text = "" }
        /^$/ { flush_row(); next }
        /^Package: / { flush_row(); name = substr($0, 10) }
        /^Version: / { version = substr($0, 10) }
        /^Section: / { section = substr($0, 10) }
        /^Description(-[a-zA-Z_]+)?: / { sub(/^[^:]*: /, ""); gsub(/\t/, " "); text = $0 }
        END { flush_row() }' > raw.tsv
    [ -s raw.tsv ] || fail "apt-cache dumpavail tells nothing; run apt-get update"
}

# Reads raw.tsv; writes the inputs of `load` (load.tsv, load.jsonl) and the expected contents (expected.*).
inputs() {
    awk -F '\t' '{ value = $2 "\t" $3 "\t" $4; gsub(/\\/, "&&", value); gsub(/\t/, "\\t", value);
        print $1 "\t" value }' \
        raw.tsv > load.tsv
    awk -F '\t' '
        function text(s) { gsub(/\\/, "&&", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
        function field(name, value) { return text(name) ":" text(value) }
        { print "{" field("package", $1) "," field("version", $2) "," field("section", $3) "," \
            field("description", $4) "}" }' \
        raw.tsv > load.jsonl
    paste -d '\t' <(cut -f 1 raw.tsv) <(sed 's/\\/&&/g' load.jsonl) > json.tsv
    local name
    for name in raw load json; do # the last row of a name wins
        awk -F '\t' '{ row[$1] = $0 } END { for (key in row) print row[key] }' "$name.tsv" |
            sort -s -t "$(printf '\t')" -k 1,1 > "expected.$name"
    done
}

check_is_clean() { "$azekura" check "$1" > check.out 2>&1 || { cat check.out >&2; fail "check of $1"; }; }

compare_everything() {
    "$azekura" dump "$1" tsv > found; same "dump of the table loaded from TSV" expected.load found
    "$azekura" dump "$1" json > found; same "dump of the table loaded from JSON lines" expected.json found
    check_is_clean "$1"
}

compare_gets() {
    awk -v seed="$seed" -v wanted="$sample" 'BEGIN { srand(seed) }
        { if (NR <= wanted) row[NR] = $0; else { at = int(rand() * NR) + 1; if (at <= wanted) row[at] = $0 } }
        END { for (i in row) print row[i] }' expected.raw > sampled
    local key value found count=0
    while IFS=$'\t' read -r key value; do
        found=$("$azekura" get "$1" tsv "$key") || fail "get $key: not found"
        [ "$found" = "$value" ] || fail "get $key: found '$found', expected '$value'"
        count=$((count + 1))
    done < sampled
    if "$azekura" get "$1" tsv 'no/such package' > found 2>&1; then
        fail "get found a package that is not there"
    fi
    say "get: $count rows as they must be, and one that is not there"
}

random_key() { sed -n "$(((RANDOM * 32768 + RANDOM) % rows + 1))p" expected.raw | cut -f 1; }

# compare_scan DB CONDITION ARGUMENT..: scans forward, backward and with limits, and compares with the rows
# that awk selects by CONDITION.
compare_scan() {
    local db=$1 condition=$2 limit=$((RANDOM % 40)); shift 2
    awk -F '\t' "$condition" expected.load > chosen
    "$azekura" scan "$db" tsv "$@" > found; same "scan $*" chosen found
    tac chosen > backwards
    "$azekura" scan "$db" tsv "$@" --reverse > found; same "scan $* --reverse" backwards found
    head -n "$limit" chosen > wanted
    "$azekura" scan "$db" tsv "$@" --limit "$limit" > found; same "scan $* --limit $limit" wanted found
    head -n "$limit" backwards | cut -f 1 > wanted
    "$azekura" scan "$db" tsv "$@" --limit "$limit" --reverse --keys-only > found
    same "scan $* --limit $limit --reverse --keys-only" wanted found
    scanned=$((scanned + $(wc -l < chosen)))
}

compare_scans() {
    local i key length
    scanned=0
    for ((i = 0; i < scans; i++)); do
        FROM=$(random_key) TO=$(random_key); export FROM TO # half of these ranges are empty
        compare_scan "$1" '$1 "" >= ENVIRON["FROM"] && $1 "" < ENVIRON["TO"]' --from "$FROM" --to "$TO"
        compare_scan "$1" '$1 "" >= ENVIRON["FROM"]' --from "$FROM"
        key=$(random_key) length=$((RANDOM % 6 + 1)); PREFIX=${key:0:length}; export PREFIX
        compare_scan "$1" 'index($1, ENVIRON["PREFIX"]) == 1' --prefix "$PREFIX"
        compare_scan "$1" 'index($1, ENVIRON["PREFIX"]) == 1 && $1 "" < ENVIRON["TO"]' --prefix "$PREFIX" \
            --to "$TO"
    done
    say "scan: $((scans * 16)) scans of ranges and prefixes, $scanned rows, as sort and awk have them"
}

load_both() {
    "$azekura" load "$1" tsv load.tsv > load.out 2>&1 || { cat load.out >&2; fail "load of TSV"; }
    "$azekura" load "$1" json load.jsonl --key package > load.out 2>&1 ||
        { cat load.out >&2; fail "load of JSON lines"; }
}

# Kills each load at a random time, checks the store, and runs the next load. The last one may finish.
killed_loads() {
    local kill_at loader rows_before=0 rows_after killed=0
    sort -u load.tsv > possible
    for ((i = 0; i < kills; i++)); do
        kill_at=$(awk -v ms="$load_ms" -v at="$RANDOM" 'BEGIN {
            print ms * (0.02 + 0.9 * at / 32768) / 1000 }')
        "$azekura" load killed.db tsv load.tsv > load.out 2>&1 & loader=$!
        sleep "$kill_at"
        kill -9 "$loader" 2> /dev/null || true
        if wait "$loader" 2> /dev/null; then say "  load $i ended before its kill at $kill_at s"
        else killed=$((killed + 1)); fi
        [ -e killed.db/CONTROL ] || continue # killed before there was a store
        check_is_clean killed.db
        "$azekura" tables killed.db > found
        if ! grep -qx tsv found; then rows_before=0; continue; fi
        "$azekura" dump killed.db tsv > found
        sort found | comm -23 - possible > invented
        [ ! -s invented ] || { head -n 5 invented >&2; fail "after kill $i: rows that nobody loaded"; }
        rows_after=$(wc -l < found)
        [ "$rows_after" -ge "$rows_before" ] || fail "after kill $i: $rows_after rows, $rows_before before"
        say "  killed after $kill_at s: $rows_after rows, check clean"
        rows_before=$rows_after
        # When all rows are present, a load only replaces them. So every other time, the store is deleted.
        if [ "$rows_after" -eq "$rows" ] && [ $((i % 2)) = 0 ]; then rm -rf killed.db; rows_before=0; fi
    done
    load_both killed.db
    compare_everything killed.db
    say "kill -9: $killed loads killed, loaded once more, everything as it must be"
}

catalogue
inputs
rows=$(wc -l < expected.raw)
say "seed $seed: $rows packages, $(wc -l < raw.tsv) rows, $(wc -c < load.tsv) bytes of TSV"
began=$(date +%s%N)
"$azekura" load whole.db tsv load.tsv > load.out 2>&1 || { cat load.out >&2; fail "load of TSV"; }
load_ms=$((($(date +%s%N) - began) / 1000000))
load_both whole.db # the table of TSV a second time: every row replaces itself
compare_everything whole.db
say "load: both tables as they must be, check clean; the first load took $load_ms ms"
compare_gets whole.db
compare_scans whole.db
killed_loads
say "all well"
