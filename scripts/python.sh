#!/usr/bin/env bash
# Builds the Python package and tests it in a new virtual environment:
# scripts/python.sh [--debug | --bench | --types | --diskcache]
# Needs python3 (3.10 or newer, with venv), and network access or a pip cache with maturin and pytest.
# PYTHON=/path/to/python takes another interpreter.
# --bench compares the package with lmdb, sqlite3 and diskcache instead, and prints a table.
# --types compares the stubs with the package (stubtest of mypy) instead.
# --diskcache also runs the tests of diskcache 5.6.3 on `azekura.cache`, from its source package.
set -euo pipefail
cd "$(dirname "$0")/../crates/python"
profile=--release
if [ "${1:-}" = --debug ]; then profile=; fi
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install --quiet 'maturin>=1.7,<2'
# shellcheck disable=SC2086
"$scratch/build/bin/maturin" build $profile --locked --interpreter "$scratch/build/bin/python" \
    --out "$scratch/wheels"
# The wheel is tested in an environment with no other package of this repository.
"$python" -m venv "$scratch/test"
"$scratch/test/bin/pip" install --quiet --no-index "$scratch"/wheels/azekura-*.whl
if [ "${1:-}" = --bench ]; then
    "$scratch/test/bin/pip" install --quiet lmdb diskcache
    cd "$scratch"
    "$scratch/test/bin/python" "$OLDPWD/bench/acceptance.py" --wheel "$scratch"/wheels/azekura-*.whl
    exit
fi
if [ "${1:-}" = --types ]; then
    "$scratch/test/bin/pip" install --quiet mypy
    cd "$scratch"
    "$scratch/test/bin/python" -m mypy.stubtest azekura --ignore-missing-stub --ignore-disjoint-bases
    exit
fi
"$scratch/test/bin/pip" install --quiet pytest hypothesis
if [ "${1:-}" = --diskcache ]; then
    "$scratch/test/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$scratch" diskcache==5.6.3
    tar -xf "$scratch"/diskcache-5.6.3.tar.gz -C "$scratch"
    export AZEKURA_DISKCACHE_TESTS="$scratch/diskcache-5.6.3/tests"
fi
cd "$scratch"
"$scratch/test/bin/python" -m pytest -q "$OLDPWD/tests" -p no:cacheprovider
