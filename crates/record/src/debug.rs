//! Files with debug information that are installed apart from their programs. They are searched in the places
//! where gdb searches: by build id, also those that debuginfod has fetched, and by the name in
//! `.gnu_debuglink`.

use crate::elf::Parsed;
use object::Object;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of installed debug information.
const INSTALLED: &str = "/usr/lib/debug";

/// Returns the path of the debug information of `file`, a program or library at `path`, if it is apart.
pub(crate) fn debug_file(path: &Path, file: &Parsed<'_>) -> Option<PathBuf> {
    by_build_id(file).or_else(|| by_link(path, file))
}

fn by_build_id(file: &Parsed<'_>) -> Option<PathBuf> {
    let id = file.build_id().ok()??;
    let (first, rest) = id.split_first()?;
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let installed = Path::new(INSTALLED).join(".build-id").join(hex(&[*first])).join(hex(rest) + ".debug");
    let fetched = debuginfod_cache().map(|cache| cache.join(hex(id)).join("debuginfo"));
    // An empty file of the cache says that the server has none.
    let has_content = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|of| of.is_file() && of.len() > 0);
    [Some(installed), fetched].into_iter().flatten().find(has_content)
}

/// Returns the directory in which debuginfod's clients keep the files that they have fetched.
fn debuginfod_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Some(caches?.join("debuginfod_client"))
    })
}

/// Returns the file that `.gnu_debuglink` names. Its checksum must be the one in the link, because the file
/// may be of another version of the program.
fn by_link(path: &Path, file: &Parsed<'_>) -> Option<PathBuf> {
    let (name, checksum) = file.gnu_debuglink().ok()??;
    let (name, directory) = (Path::new(OsStr::from_bytes(name)), path.parent()?);
    let installed = Path::new(INSTALLED).join(directory.strip_prefix("/").unwrap_or(directory));
    let places = [directory.to_owned(), directory.join(".debug"), installed];
    let is_it = |found: &PathBuf| checksum_of(found).is_ok_and(|of| of == checksum);
    places.map(|place| place.join(name)).into_iter().find(is_it)
}

/// Returns the checksum of a file as in `.gnu_debuglink`.
fn checksum_of(file: &Path) -> io::Result<u32> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into()); // a read of a device may not end
    }
    let mut file = BufReader::with_capacity(1 << 20, File::open(file)?);
    let mut hasher = crc32fast::Hasher::new();
    loop {
        let bytes = file.fill_buf()?;
        if bytes.is_empty() {
            return Ok(hasher.finalize());
        }
        hasher.update(bytes);
        let len = bytes.len();
        file.consume(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_file_of_a_debug_link_is_found_unless_it_is_of_another_version() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("program.c"), "int main(void) { return 0; }").unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).current_dir(place.path()).status();
            assert!(status.expect("a C compiler, as CONTRIBUTING says").success(), "{arguments:?}");
        };
        run("cc", &["-g", "-Wl,--build-id=none", "-o", "program", "program.c"]);
        run("objcopy", &["--only-keep-debug", "program", "program.debug"]);
        run("objcopy", &["--strip-all", "--add-gnu-debuglink=program.debug", "program"]);
        let parts = crate::elf::Parts::open(&at("program")).unwrap();
        let file = parts.parse().unwrap();
        let found = || debug_file(&at("program"), &file);
        assert_eq!(found(), Some(at("program.debug")));
        std::fs::create_dir(at(".debug")).unwrap();
        std::fs::rename(at("program.debug"), at(".debug/program.debug")).unwrap();
        assert_eq!(found(), Some(at(".debug/program.debug")));
        std::fs::write(at(".debug/program.debug"), "of another version").unwrap();
        assert_eq!(found(), None);
    }
}
