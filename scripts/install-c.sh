#!/usr/bin/env bash
# Builds the C library and installs it: scripts/install-c.sh PREFIX [--debug]
# Needs a Rust toolchain and nothing else. The layout is that of cargo-c: PREFIX/lib has libazekura.a, the
# shared library with its soname and links, and pkgconfig/azekura.pc; PREFIX/include/azekura has the header.
set -euo pipefail
if [ $# = 0 ]; then sed -n '2,4s/^# //p' "$0"; exit 2; fi
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# As cargo-c does: below 1.0 each minor version is an interface of its own.
soname=libazekura.so.${version%.*}
if [ "${version%%.*}" != 0 ]; then soname=libazekura.so.${version%%.*}; fi
profile=release options=(--release)
if [ "${2:-}" = --debug ]; then profile=debug options=(); fi
cargo rustc --quiet --package azekura-capi --lib --crate-type cdylib,staticlib "${options[@]}" -- \
    -C "link-arg=-Wl,-soname,$soname"
built=${CARGO_TARGET_DIR:-target}/$profile
install -d "$prefix/lib/pkgconfig" "$prefix/include/azekura"
install -m 755 "$built/libazekura_c.so" "$prefix/lib/libazekura.so.$version"
ln -sf "libazekura.so.$version" "$prefix/lib/$soname"
ln -sf "libazekura.so.$version" "$prefix/lib/libazekura.so"
install -m 644 "$built/libazekura_c.a" "$prefix/lib/libazekura.a"
install -m 644 crates/capi/include/azekura.h "$prefix/include/azekura/azekura.h"
cat >"$prefix/lib/pkgconfig/azekura.pc" <<EOF
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: azekura
Description: C interface of the Azekura store
Version: $version
Libs: -L\${libdir} -lazekura
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}/azekura
EOF
