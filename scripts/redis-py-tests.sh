#!/usr/bin/env bash
# redis-py's own tests of commands, unmodified, against `azekura serve`, with RESP2 and RESP3.
#
#   scripts/redis-py-tests.sh [AZEKURA]            target/release/azekura unless given
#   scripts/redis-py-tests.sh --update [AZEKURA]   writes the list of the tests that pass; read its diff
#
# Downloads redis-py's source archive and pytest from PyPI into a temporary directory, as listed in
# scripts/redis-py/requirements.txt. PIP_INDEX_URL and the like are passed to pip. Without python3 or PyPI,
# the script prints a note and succeeds. Leaves no files behind. Takes about a minute.
#
# scripts/redis-py/expected.txt: tests that must pass, by file and class, after the versions of the protocol.
# scripts/redis-py/deviations.txt: tests that are not run, each with the reason.
# scripts/redis-py/verdict.py: distinguishes "uses an unsupported feature" from "wrong".
#
# Some of these tests measure time. A failed test is run up to three more times, without the other tests, and
# the last result counts. Exit code 0: all results are as expected.
set -euo pipefail
export LC_ALL=C

update=0
if [ "${1:-}" = --update ]; then update=1; shift; fi
lists=$(realpath "$(dirname "$0")/redis-py")
azekura=$(realpath "${1:-$(dirname "$0")/../target/release/azekura}")
[ -x "$azekura" ] || { echo "no command $azekura: cargo build --release -p azekura-cli" >&2; exit 2; }
dir=$(mktemp -d "${TMPDIR:-/tmp}/redis-py-tests.XXXXXX")
pids=()
cleanup() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap cleanup EXIT

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
skip() { printf 'skipped redis-py'"'"'s own tests: %s\n' "$*"; exit 0; }

fetch() {
    command -v python3 >/dev/null || skip "no python3 here"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "python3 is older than 3.10"
    python3 -m venv "$dir/venv" >"$dir/log" 2>&1 ||
        skip "python3 makes no environments: $(tail -n 1 "$dir/log")"
    local pip=("$dir/venv/bin/pip" --quiet --disable-pip-version-check --retries 1 --timeout 20)
    "${pip[@]}" install -r "$lists/requirements.txt" >"$dir/log" 2>&1 ||
        skip "no PyPI: $(tail -n 1 "$dir/log")"
    "${pip[@]}" download --no-deps --no-binary redis -d "$dir" \
        "$(grep '^redis==' "$lists/requirements.txt")" \
        >"$dir/log" 2>&1 || skip "no PyPI: $(tail -n 1 "$dir/log")"
    mkdir "$dir/redis-py"
    tar xzf "$dir"/redis-*.tar.gz -C "$dir/redis-py" --strip-components 1
}

# Test files that send commands; the other tests of redis-py are about the client itself, clusters, or
# modules.
files=(tests/test_commands.py tests/test_pipeline.py tests/test_connection_pool.py tests/test_encoding.py
    tests/test_multiprocessing.py)
files+=(tests/test_asyncio/test_commands.py tests/test_asyncio/test_pipeline.py
    tests/test_asyncio/test_connection_pool.py)
files+=(tests/test_asyncio/test_encoding.py)

# run VERSION: runs the tests against a server of their own.
run() {
    local version=$1 port=
    "$azekura" serve "$dir/db$version" --listen 127.0.0.1:0 >"$dir/out$version" 2>"$dir/err$version" &
    local server=$!
    for _ in $(seq 1200); do
        port=$(sed -n 's/^serving .*:\([0-9]*\)$/\1/p' "$dir/out$version")
        [ -n "$port" ] && break
        sleep 0.05
    done
    [ -n "$port" ] || fail "the server does not start: $(cat "$dir/err$version")"
    local code=0
    # redis-py requires -s; its paths are relative to its own directory.
    (cd "$dir/redis-py" && PYTHONPATH="$lists" PYTHONDONTWRITEBYTECODE=1 AZEKURA_LISTS="$lists" \
        AZEKURA_WRONG="$dir/wrong$version" \
        AZEKURA_PASSED="$([ "$update" = 1 ] && echo "$dir/passed$version")" \
        "$dir/venv/bin/python" -m pytest -p verdict -p no:cacheprovider -q --tb=no -rN -W ignore \
        -m "not onlycluster and not redismod and not ssl and not replica" \
        --redis-url="redis://127.0.0.1:$port/0" \
        --protocol="$version" "${files[@]}") >"$dir/tests$version" 2>&1 || code=$?
    kill "$server" && wait "$server" || true
    rm -rf "$dir/db$version"
    return "$code"
}

judge() {
    local version=$1
    run "$version" || for _ in 1 2 3; do
        [ -s "$dir/wrong$version" ] || break
        grep -E '^(WRONG|RESP)' "$dir/tests$version" | sed 's/^/once more: /' || true
        run "$version" && break
    done || true
    # Without a verdict, pytest itself failed.
    grep -q '^RESP' "$dir/tests$version" || cp "$dir/tests$version" "$dir/broken$version"
    grep -E '^(WRONG|RESP)' "$dir/tests$version" || tail -n 30 "$dir/tests$version"
    [ ! -e "$dir/broken$version" ] && [ ! -s "$dir/wrong$version" ]
}

fetch
judge 2 >"$dir/verdict2" & pids+=($!)
second=$!
code=0
judge 3 >"$dir/verdict3" || code=1
wait "$second" || code=1
cat "$dir/verdict2" "$dir/verdict3"
if [ "$update" = 1 ]; then
    {
        sed -n '/^#/p' "$lists/expected.txt"
        comm -12 "$dir/passed2" "$dir/passed3" | sed 's/^/23 /'
        comm -23 "$dir/passed2" "$dir/passed3" | sed 's/^/2 /'
        comm -13 "$dir/passed2" "$dir/passed3" | sed 's/^/3 /'
    } | awk '
        # TEST is FILE::CLASS::NAME: a heading for each FILE::CLASS, then its tests.
        /^#/ { print; next }
        { at = match($2, /::[^:]*$/); group = substr($2, 1, at - 1) }
        group != last { print "[" group "]"; last = group }
        { print $1, substr($2, at + 2) }' >"$dir/expected"
    cp "$dir/expected" "$lists/expected.txt"
fi
exit "$code"
