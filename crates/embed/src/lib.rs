//! For build scripts: builds a library that is loaded into other programs (`LD_PRELOAD`), so that it can be
//! embedded in an Azekura program. Cargo installs only programs, and a program cannot rely on a library next
//! to its own file.
//!
//! An inner cargo builds the library as a `cdylib`, because a dependency's `cdylib` has no path that a
//! dependent may rely on. The package itself is an `rlib`: cargo names the files of a package with a `cdylib`
//! without a hash, so that builds with other features would overwrite them. The build is always optimized,
//! because the library runs inside other programs.
//!
//! The library's package is next to the package of the caller. In the workspace it has the name of its
//! directory; where cargo stores the packages of a registry it has its name and version. For the latter case
//! the caller has the library's package among its dependencies.
//!
//! Documentation builds (`DOCS_RS`) have no network, and a package that is verified before its first
//! publication cannot be built with its own dependencies (`AZEKURA_EMBED=none`). Both embed no bytes.
//!
//! All build scripts and profiles of one target directory share the inner cargo's directory, so the library
//! is built once and not for each kind of build. Target directories are also copied between checkouts, even
//! by hard links. So each checkout has its own inner directory, the library's sources are named relative to
//! its package, and the embedded file is replaced and never written in place.

mod parts;

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library to build.
#[derive(Debug)]
pub struct Embedded<'a> {
    /// Directory of the library's crate in the workspace. The package's name is `azekura-` and this name.
    pub member: &'a str,
    /// File name of the library.
    pub file: &'a str,
    /// Environment variable with the path of the embedded file, for `include_bytes!(env!(…))` in the crate's
    /// source. The file is empty if the target supports no such library, and in a build without the library.
    /// The variable with the suffix `_HASH` has a hash of the bytes, so that a program can name them without
    /// reading all of them.
    pub variable: &'a str,
}

/// Builds a library for the crate of the calling build script.
///
/// # Panics
///
/// Panics if the library cannot be built, so the crate is not built either.
pub fn build(library: &Embedded<'_>) {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let output = PathBuf::from(variable("OUT_DIR"));
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let is_glibc = variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let to = output.join(library.file);
    println!("cargo::rerun-if-env-changed=AZEKURA_EMBED");
    let is_left_out = !variable("DOCS_RS").is_empty() || variable("AZEKURA_EMBED") == "none";
    let bytes = if is_glibc && !is_left_out {
        let beside = package.parent().expect("a package lies in a directory");
        let Some(source) = source_of(library.member, beside, &variable("CARGO_PKG_VERSION")) else {
            panic!("no package azekura-{} lies beside {}", library.member, package.display());
        };
        let built = compile(library, &source, &output, &variable("TARGET"));
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

/// Returns the package of a library: in a workspace, in a registry's directory, or among vendored packages.
fn source_of(member: &str, beside: &Path, version: &str) -> Option<PathBuf> {
    let names = [member.to_owned(), format!("azekura-{member}-{version}"), format!("azekura-{member}")];
    names.iter().map(|name| beside.join(name)).find(|source| source.join("Cargo.toml").is_file())
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Writes a new file in place of one that may have further hard links.
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
    // `TARGET/PROFILE/build/PACKAGE/out`, with one more level if a target triple was requested.
    let build = output.ancestors().find(|path| path.file_name().is_some_and(|name| name == "build"));
    let target = build.and_then(|build| build.parent()?.parent()).unwrap_or(output);
    target.join(format!("embedded-{:016x}", hasher.finish()))
}

fn is_setting_of_release(variable: &OsStr) -> bool {
    variable.as_encoded_bytes().starts_with(b"CARGO_PROFILE_RELEASE_")
}

fn compile(library: &Embedded<'_>, source: &Path, output: &Path, target: &str) -> PathBuf {
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let checkout = source.parent().expect("a package lies in a directory");
    let directory = inner_directory(output, checkout, &flags);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Settings for the profile of the outer build would build the library again.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting_of_release(name)) {
        cargo.env_remove(name);
    }
    cargo
        .args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--target", target])
        .arg("--manifest-path")
        .arg(source.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        // Link-time optimization is off, as in the published measurements of these libraries.
        .env("CARGO_PROFILE_RELEASE_LTO", "false")
        // Clippy and similar tools check the library as a member of the workspace, not here.
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
    fn a_package_is_found_in_a_workspace_a_registry_and_among_vendored_packages() {
        let folder = tempfile::tempdir().expect("a directory");
        let make = |name: &str| {
            let package = folder.path().join(name);
            std::fs::create_dir(&package).expect("created");
            std::fs::write(package.join("Cargo.toml"), "").expect("written");
            package
        };
        let found = || source_of("preload", folder.path(), "1.2.3");
        std::fs::create_dir(folder.path().join("preload")).expect("created"); // no package
        make("azekura-preload-1.2.2");
        assert_eq!(found(), None);
        for name in ["azekura-preload", "azekura-preload-1.2.3"] {
            let package = make(name);
            assert_eq!(found(), Some(package));
        }
        std::fs::write(folder.path().join("preload/Cargo.toml"), "").expect("written");
        assert_eq!(found(), Some(folder.path().join("preload")));
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
