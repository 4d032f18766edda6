#!/usr/bin/env bash
# Installs the C library into an empty directory and the Python wheel into an empty virtual environment, each
# by one command, and runs a program of each there: scripts/bindings.sh [--release]
# Needs a Rust toolchain and a C compiler. The wheel also needs python3 (3.10 or newer) with venv, and a pip
# that can install maturin; the output names each part that is left out for lack of a program.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
debug=--debug
if [ "${1:-}" = --release ]; then debug=; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "== C: scripts/install-c.sh PREFIX"
# shellcheck disable=SC2086
scripts/install-c.sh "$scratch/c" $debug
export PKG_CONFIG_PATH=$scratch/c/lib/pkgconfig
if command -v pkg-config >/dev/null; then
    shared=$(pkg-config --cflags --libs azekura)
    static="$(pkg-config --cflags azekura) $scratch/c/lib/libazekura.a -lpthread -ldl -lm"
else
    echo "left out: no pkg-config here; the flags of azekura.pc are written out instead"
    shared="-I$scratch/c/include/azekura -L$scratch/c/lib -lazekura"
    static="-I$scratch/c/include/azekura $scratch/c/lib/libazekura.a -lpthread -ldl -lm"
fi
cp crates/capi/examples/shop.c "$scratch/"
cd "$scratch"
for kind in shared static; do
    # shellcheck disable=SC2086
    "${CC:-cc}" -std=c99 -Wall -Wextra -Werror shop.c ${!kind} -o "shop-$kind"
    mkdir "data-$kind"
done
[ "$(LD_LIBRARY_PATH=$scratch/c/lib ./shop-shared data-shared)" = well ]
[ "$(./shop-static data-static)" = well ]
if command -v valgrind >/dev/null; then
    mkdir data-valgrind
    [ "$(valgrind --quiet --error-exitcode=9 --fair-sched=yes ./shop-static data-valgrind)" = well ]
else
    echo "left out: no valgrind here, which checks the memory accesses of the C program"
fi
mkdir data-none
if ./shop-shared data-none 2>/dev/null; then
    echo "the program with the shared library runs without it: it was linked with another one"
    exit 1
fi
echo "a C program runs with the installed shared library and with the static one"

echo "== Python: pip install WHEEL"
if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "left out: no python3 of version 3.10 or newer with venv here"
    exit
fi
python3 -m venv build
cd "$root/crates/python"
# The store's workspace has the same profiles and dependencies, so its products are used again.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
if ! timeout 60 "$scratch/build/bin/pip" install --quiet --retries 0 'maturin>=1.7,<2'; then
    echo "left out: pip cannot install maturin here"
    exit
fi
release=--release
if [ -n "$debug" ]; then release=; fi
# shellcheck disable=SC2086
"$scratch/build/bin/maturin" build $release --locked --quiet --out "$scratch/wheels"
cd "$scratch"
python3 -m venv empty
empty/bin/pip install --quiet --no-index wheels/azekura-*.whl
empty/bin/python -I - <<'PYTHON'
import azekura

with azekura.open("shop.azk") as db:
    stock = db.table("stock", key=str, value=int)
    stock["rice"] = 120
    with db.begin() as tx:
        tx[stock]["rice"] -= 5
    with db.snapshot() as snap:
        assert list(snap[stock].items()) == [("rice", 115)], list(snap[stock].items())
    db.backup("copy")
azekura.restore("copy", "restored.azk")
with azekura.open("restored.azk") as db:
    assert db.table("stock", key=str, value=int)["rice"] == 115
print("a Python program runs with the installed wheel")
PYTHON
