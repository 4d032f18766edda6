#!/usr/bin/env bash
# Builds the Python package and tests it in a new virtual environment: scripts/python.sh [--debug]
# Needs python3 (3.10 or newer, with venv) and a network, or a pip cache, with maturin and pytest.
set -euo pipefail
cd "$(dirname "$0")/../crates/python"
profile=--release
if [ "${1:-}" = --debug ]; then profile=; fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/build"
"$scratch/build/bin/pip" install --quiet 'maturin>=1.7,<2'
# shellcheck disable=SC2086
"$scratch/build/bin/maturin" build $profile --locked --out "$scratch/wheels"
# The wheel alone, in an environment that has nothing else of ours.
python3 -m venv "$scratch/test"
"$scratch/test/bin/pip" install --quiet --no-index "$scratch"/wheels/azekura-*.whl
"$scratch/test/bin/pip" install --quiet pytest
cd "$scratch"
"$scratch/test/bin/python" -m pytest -q "$OLDPWD/tests" -p no:cacheprovider
