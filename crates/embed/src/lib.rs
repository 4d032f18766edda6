//! For build scripts: builds a library that is loaded into other programs (`LD_PRELOAD`), so that it can be
//! embedded in ours. Cargo installs programs only, and a program cannot rely on a library beside its own
//! file.
//!
//! The library is a member of the workspace, built by an inner cargo: a dependency's `cdylib` has no path
//! that a dependent may rely on. It is always optimized, because it runs inside of other programs.
//!
//! All build scripts and profiles of one target directory share the inner cargo's directory, so the library
//! is built once and not for each kind of build. Target directories are also copied between checkouts, by
//! hard links too. So each checkout has an inner directory of its own, the library's sources are named
//! relative to its package, and the embedded file is replaced and never written in place.

mod parts;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library to build.
#[derive(Debug)]
pub struct Embedded<'a> {
    /// The directory of its crate.
    pub member: &'a str,
    /// Its file.
    pub file: &'a str,
    /// The variable by which the crate's source finds it: `include_bytes!(env!(…))`. The file is empty where
    /// there is nothing to load into programs. The same with `_HASH` behind it gives the bytes a name: a
    /// program need not go through all of them for that.
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
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let is_glibc = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let to = output.join(library.file);
    let bytes = if is_glibc {
        let crates = package.parent().expect("members of the workspace lie side by side");
        let built = compile(library, crates, &output, &variable("TARGET"));
        let parts = parts::of(&built).expect("cargo lists what a library is made of");
        for part in parts {
            println!("cargo::rerun-if-changed={}", parts::relative(&package, &part).display());
        }
        std::fs::read(&built).expect("the library was built")
    } else {
        println!("cargo::rerun-if-changed=build.rs");
        Vec::new()
    };
    replace(&to, &bytes).expect("the output directory can be written");
    println!("cargo::rustc-env={}={}", library.variable, to.display());
    println!("cargo::rustc-env={}_HASH={:016x}", library.variable, hash(&bytes));
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A new file in the place of one that may have other names, too.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::write(path, bytes),
    }
}

/// Returns the directory of the inner cargo for this checkout, below the target directory that `output`
/// belongs to.
fn inner_directory(output: &Path, checkout: &Path, flags: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    checkout.hash(&mut hasher);
    flags.hash(&mut hasher);
    // TARGET/PROFILE/build/PACKAGE/out, with one more level where a target triple was asked for.
    let build = output.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build"));
    let target = build.and_then(|build| build.parent()?.parent()).unwrap_or(output);
    target.join(format!("embedded-{:016x}", hasher.finish()))
}

fn compile(library: &Embedded<'_>, crates: &Path, output: &Path, target: &str) -> PathBuf {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let directory = inner_directory(output, crates, &flags);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_of_one_target_directory_share_the_inner_directory_and_checkouts_do_not() {
        let inner = |output: &str, checkout: &str, flags: &str| {
            inner_directory(Path::new(output), Path::new(checkout), flags)
        };
        let one = inner("/t/debug/build/cli-1/out", "/one/crates", "");
        assert!(one.starts_with("/t") && !one.starts_with("/t/debug"), "{}", one.display());
        assert_eq!(inner("/t/release/build/record-2/out", "/one/crates", ""), one);
        assert_ne!(inner("/t/debug/build/cli-1/out", "/other/crates", ""), one);
        assert_ne!(inner("/t/debug/build/cli-1/out", "/one/crates", "--cfg\u{1f}x"), one);
    }

    #[test]
    fn a_file_with_another_name_elsewhere_keeps_its_bytes_there() {
        let folder = tempfile::tempdir().expect("a directory");
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        replace(&here, b"of the other checkout").expect("written");
        std::fs::hard_link(&here, &there).expect("linked");
        replace(&here, b"ours").expect("written");
        assert_eq!(std::fs::read(&here).expect("read"), b"ours");
        assert_eq!(std::fs::read(&there).expect("read"), b"of the other checkout");
    }
}
