//! For build scripts: builds a library that is loaded into other programs (`LD_PRELOAD`), so that it can be part of ours: cargo
//! installs programs only, and a program that looked for a library beside itself would not find it there.
//!
//! The library is a workspace member of its own, built by a cargo of its own into the output directory: a dependency's `cdylib` has no place
//! that a dependent may rely on. It is always optimised: it runs inside of other programs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A library to build.
#[derive(Debug)]
pub struct Embedded<'a> {
    /// The directory of its crate.
    pub member: &'a str,
    /// Directories of the crates that it is made of, itself included: it is built anew when one of them changes.
    pub parts: &'a [&'a str],
    /// Its file.
    pub file: &'a str,
    /// The variable by which the crate's source finds it: `include_bytes!(env!(…))`. The file is empty where there is nothing to load into programs.
    pub variable: &'a str,
}

/// Builds a library for the crate whose build script calls this.
///
/// # Panics
///
/// If it cannot be built: so does the crate.
pub fn build(library: &Embedded<'_>) {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let output = PathBuf::from(variable("OUT_DIR"));
    let crates = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for part in library.parts {
        for file in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", crates.join(part).join(file).display());
        }
    }
    let is_glibc = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let to = output.join(library.file);
    if is_glibc {
        let built = compile(library, &crates, &output, &variable("TARGET"));
        std::fs::copy(built, &to).expect("the library was built");
    } else {
        std::fs::write(&to, []).expect("the output directory can be written");
    }
    println!("cargo::rustc-env={}={}", library.variable, to.display());
}

fn compile(library: &Embedded<'_>, crates: &Path, output: &Path, target: &str) -> PathBuf {
    let directory = output.join(library.member);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--lib", "--target", target, "--manifest-path"])
        .arg(crates.join(library.member).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Clippy and its like check the library where it is a member, not here.
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().expect("cargo runs, as it runs this");
    assert!(status.success(), "{} does not build", library.file);
    directory.join(target).join("release").join(library.file)
}
