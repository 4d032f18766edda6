//! Builds the library that is loaded into recorded programs, so that it can be part of this crate: cargo installs programs
//! only, and a program that looked for a library beside itself would not find it there.
//!
//! The library is a workspace member of its own, built by a cargo of its own into our output directory: a dependency's
//! `cdylib` has no place that a dependent may rely on. It is always optimised: it runs inside of what is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = "libazekura_preload.so";

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let output = PathBuf::from(variable("OUT_DIR"));
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for part in ["preload", "trace", "base"] {
        for file in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", crates.join(part).join(file).display());
        }
    }
    let is_glibc = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let library = output.join(FILE);
    if is_glibc {
        std::fs::copy(build(&crates, &output, &variable("TARGET")), &library).expect("the library was built");
    } else {
        // There is nothing to load into programs here; the recorder says so.
        std::fs::write(&library, []).expect("the output directory can be written");
    }
    println!("cargo::rustc-env=AZEKURA_PRELOAD_BUILT={}", library.display());
}

fn build(crates: &Path, output: &Path, target: &str) -> PathBuf {
    let directory = output.join("preload");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--lib", "--target", target, "--manifest-path"])
        .arg(crates.join("preload").join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Clippy and its like check the library where it is a member, not here.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().expect("cargo runs, as it runs this");
    assert!(status.success(), "the library for recorded programs does not build");
    directory.join(target).join("release").join(FILE)
}
