//! For build scripts: builds a library that is loaded into other programs (`LD_PRELOAD`), so that it can be part of ours: cargo
//! installs programs only, and a program that looked for a library beside itself would not find it there.
//!
//! The library is a workspace member of its own, built by a cargo of its own into the output directory: a dependency's `cdylib` has no place
//! that a dependent may rely on. It is always optimised: it runs inside of other programs.
//!
//! Output directories are copied between checkouts, by links too. So what a library depends on is named relative to its package; the inner cargo has a
//! directory of its own for each checkout, or it would believe the other's notes of what is fresh; and what is embedded is never written in place: the
//! other end of a link belongs to another checkout.

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
    /// The variable by which the crate's source finds it: `include_bytes!(env!(…))`. The file is empty where there is nothing to load into programs. The
    /// same with `_HASH` behind it gives the bytes a name: a program need not go through all of them for that.
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

/// Where the inner cargo works for this checkout; what it left for another one is taken away.
fn workplace(output: &Path, member: &str, checkout: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    checkout.hash(&mut hasher);
    let ours = output.join(format!("{member}-{:016x}", hasher.finish()));
    for entry in std::fs::read_dir(output)? {
        let path = entry?.path();
        let is_a_workplace =
            path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(member));
        if is_a_workplace && path != ours {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(ours)
}

fn compile(library: &Embedded<'_>, crates: &Path, output: &Path, target: &str) -> PathBuf {
    let directory = workplace(output, library.member, crates).expect("the output directory can be read");
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
    fn each_checkout_has_a_workplace_of_its_own_and_leaves_none_of_others() {
        let folder = tempfile::tempdir().expect("a directory");
        let place = |checkout: &str| {
            let place = workplace(folder.path(), "lib", Path::new(checkout)).expect("a place");
            std::fs::create_dir_all(place.join("release")).expect("made");
            std::fs::write(folder.path().join("lib.so"), "").expect("written");
            place
        };
        let (one, other) = (place("/one/crates"), place("/other/crates"));
        assert!(one != other && !one.exists() && other.exists());
        assert_eq!(place("/other/crates"), other);
        assert!(other.join("release").exists() && folder.path().join("lib.so").exists());
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
