# Functions of .ci/run and .ci/full, which source this file. Needs a Rust toolchain and a C compiler.
#
# The output of each step is written to a file. A failing step prints the end of it, and the next steps still
# run. The last line of `finish` has the test counts.
set -uo pipefail
export CARGO_TERM_COLOR=never
# Each build is from a clean checkout: files for later builds would only fill the disk.
export CARGO_INCREMENTAL=0
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$logs"' EXIT
passed=0 failed=0 broken=()
only=("$@") # names of steps: the other ones are left out
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
# A test program that hangs is ended, so that the output names it, and the other steps run.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='timeout --kill-after=10 900'
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER

# counted passed|failed LOG: prints the sum of that number over the "test result:" lines of a log.
counted() {
    awk -v word="$1;" '/^test result:/ { for (i = 1; i < NF; i++) if ($(i + 1) == word) n += $i }
        END { print n + 0 }' "$2"
}

count() { # adds up the "test result:" lines of a log
    local p f
    p=$(counted passed "$1")
    f=$(counted failed "$1")
    passed=$((passed + p)) failed=$((failed + f))
}

step() { # step NAME COMMAND...
    local name=$1 began=$SECONDS
    [[ ${#only[@]} -eq 0 || " ${only[*]} " == *" $name "* ]] || return 0
    shift
    printf '%-28s' "$name"
    if "$@" >"$logs/$name" 2>&1; then
        count "$logs/$name"
        echo "ok ($((SECONDS - began)) s)"
    else
        count "$logs/$name"
        echo "FAILED: $*"
        # The cause may be far above the end.
        grep -E -A 25 '^(---- .* stdout ----|error(\[|:))' "$logs/$name" | head -n 300
        tail -n 100 "$logs/$name"
        broken+=("$name")
    fi
}

# beside FUNCTION: runs the steps of a function at low priority while the next steps run, until `join`.
beside() {
    rm -f "$logs/counts"
    (
        renice --priority 10 $BASHPID >/dev/null
        passed=0 failed=0 broken=()
        "$1"
        printf '%s\n' "$passed" "$failed" "${broken[@]}" >"$logs/counts"
    ) >"$logs/lines" 2>&1 &
}

join() { # waits for the steps of `beside`, prints their output, and counts their results
    local counts=(0 0 beside)
    wait
    cat "$logs/lines"
    if [ -e "$logs/counts" ]; then mapfile -t counts <"$logs/counts"; fi
    passed=$((passed + counts[0])) failed=$((failed + counts[1])) broken+=("${counts[@]:2}")
}

finish() {
    if [ ${#broken[@]} -gt 0 ]; then
        echo "steps that failed: ${broken[*]}"
        echo "$passed passed, $((failed > 0 ? failed : 1)) failed"
        exit 1
    fi
    echo "$passed passed, $failed failed"
}

in_eval() { # a cargo command in the evaluation's workspace; registry crates that are built already are shared
    (cd "$root/eval" && CARGO_TARGET_DIR="$target" "$@")
}

loom_models() { # loom_models CRATE...: the models of these crates, built together
    local crate packages=()
    for crate in "$@"; do
        packages+=(-p "$(sed -n 's/^name = "\(.*\)"/\1/p' "crates/$crate/Cargo.toml" | head -n 1)")
    done
    RUSTFLAGS="--cfg loom" cargo test --quiet --profile loom --target-dir target/loom "${packages[@]}" \
        --test 'loom_*'
}
