//! The inputs of a library: the source files that cargo reports, and the files that configure its build.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Returns the files that determine the library: its sources, from the list that cargo writes next to it,
/// their manifests, and the workspace's manifest and lock file. Cargo writes the list, so it is always
/// complete.
pub(crate) fn of(library: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let list = library.with_extension("d");
    let sources = sources(&std::fs::read_to_string(&list)?);
    if sources.is_empty() {
        return Err(io::Error::other(format!("{} names no source", list.display())));
    }
    let mut parts = BTreeSet::new();
    for source in sources {
        parts.extend(source.ancestors().skip(1).flat_map(settings));
        parts.insert(source);
    }
    Ok(parts)
}

/// Returns the manifest and the lock file in a directory. Only directories of packages and workspaces have
/// them.
fn settings(directory: &Path) -> impl Iterator<Item = PathBuf> {
    ["Cargo.toml", "Cargo.lock"].into_iter().map(|name| directory.join(name)).filter(|file| file.is_file())
}

/// Parses the prerequisites of a make rule: separated by spaces, with escaped spaces inside names.
fn sources(rules: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in rules.lines() {
        let Some((_, names)) = line.split_once(": ") else { continue };
        let mut name = String::new();
        for word in names.split(' ') {
            match word.strip_suffix('\\') {
                Some(start) => name.extend([start, " "]),
                None => found.push(PathBuf::from(std::mem::take(&mut name) + word)),
            }
        }
    }
    found.retain(|name| !name.as_os_str().is_empty());
    found
}

/// Returns the relative path from a directory to a file. It is also valid in another checkout to which the
/// output was copied.
pub(crate) fn relative(from: &Path, to: &Path) -> PathBuf {
    let (mut from, mut way) = (from.components().peekable(), to.components().peekable());
    let mut common = 0;
    while from.peek().is_some() && from.peek() == way.peek() {
        from.next();
        way.next();
        common += 1;
    }
    // Only the root is common, so the file is outside of the checkout.
    if common < 2 {
        return to.into();
    }
    from.map(|_| Component::ParentDir).chain(way).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_from_the_rule_with_spaces_in_their_names() {
        let rules = "/out/libx.so: /w/a/src/lib.rs /w/my\\ b/src/c.rs /w/a/src/d.rs\n";
        let expected = ["/w/a/src/lib.rs", "/w/my b/src/c.rs", "/w/a/src/d.rs"].map(PathBuf::from);
        assert_eq!(sources(rules), expected);
        assert_eq!(sources("/out/libx.so:\n"), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_way_goes_up_to_what_is_common_and_down() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to));
        assert_eq!(way("/w/crates/cli", "/w/crates/far/src/lib.rs"), Path::new("../far/src/lib.rs"));
        assert_eq!(way("/w/crates/cli", "/w/Cargo.toml"), Path::new("../../Cargo.toml"));
        assert_eq!(way("/w/crates/cli", "/elsewhere/lib.rs"), Path::new("/elsewhere/lib.rs"));
    }

    #[test]
    fn a_library_is_made_of_sources_manifests_and_lock_and_without_its_list_of_nothing_known() {
        let folder = tempfile::tempdir().expect("a directory");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("w/a/src")).expect("directories");
        for name in ["w/Cargo.toml", "w/Cargo.lock", "w/a/Cargo.toml", "w/a/src/lib.rs"] {
            std::fs::write(at(name), "").expect("a file");
        }
        let library = at("libx.so");
        assert!(of(&library).is_err());
        std::fs::write(library.with_extension("d"), "x:\n").expect("a list");
        assert!(of(&library).expect_err("nothing").to_string().contains("names no source"));
        let rule = format!("x: {}\n", at("w/a/src/lib.rs").display());
        std::fs::write(library.with_extension("d"), rule).expect("a list");
        let parts = of(&library).expect("a list");
        let expected = ["w/Cargo.lock", "w/Cargo.toml", "w/a/Cargo.toml", "w/a/src/lib.rs"].map(at);
        assert!(expected.iter().all(|part| parts.contains(part)), "{parts:?}");
    }
}
