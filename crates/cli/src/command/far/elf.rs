//! Whether a program can have a library put before its own: what cannot is refused here, as its loader would say nothing.

use anyhow::{Result, bail};
use object::Endianness;
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Interpreters of interpreters are followed so far, as the kernel does.
const DEPTH: usize = 4;
/// A script's first line is no longer.
const LINE: usize = 256;
const SET_ID: u32 = 0o6000;

/// Refuses a program that would run without the library. What cannot be found or read is left to the kernel to say.
pub(super) fn check(program: &OsStr) -> Result<()> {
    let mut path = find(program);
    for _ in 0..DEPTH {
        let Some(here) = path else { return Ok(()) };
        path = check_file(&here)?;
    }
    Ok(())
}

/// As the shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// Returns a script's interpreter, which is to be looked at next.
fn check_file(path: &Path) -> Result<Option<PathBuf>> {
    let Ok(found) = fs::metadata(path) else { return Ok(None) };
    let Ok(mut file) = fs::File::open(path) else { return Ok(None) };
    let mut head = Vec::new();
    if file.by_ref().take(LINE as u64).read_to_end(&mut head).is_err() {
        return Ok(None);
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(interpreter(line));
    }
    if !head.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    if found.mode() & SET_ID != 0 {
        bail!("{} is set-user-id or set-group-id: its loader takes no library from us", path.display());
    }
    let bytes = fs::read(path)?;
    match loader(&bytes) {
        Some(loader) if loader.contains("musl") => {
            bail!("{} uses the C library musl, and far memory needs the GNU one", path.display())
        }
        Some(_) => Ok(None),
        None => bail!(
            "{} is statically linked, or not for this machine: no library can be loaded into it",
            path.display()
        ),
    }
}

fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let program = words.next()?;
    let is_env = program.ends_with(b"/env");
    let named =
        if is_env { words.find(|word| !word.starts_with(b"-") && !word.contains(&b'=')) } else { None };
    let name = OsString::from_vec(named.unwrap_or(program).to_vec());
    find(&name)
}

/// The loader that a dynamically linked 64-bit program names.
fn loader(bytes: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = header.program_headers(endian, bytes).ok()?;
    let interp = headers.iter().find(|header| header.p_type(endian) == PT_INTERP)?;
    let name = interp.data(endian, bytes).ok()?;
    Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_that_would_run_without_the_library_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str, bytes: &[u8], mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.into_os_string()
        };
        let ours = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(loader(&ours).is_some_and(|loader| loader.contains("ld-linux")));
        check(&make("plain", &ours, 0o755)).unwrap();
        let said = |path: &OsStr| check(path).unwrap_err().to_string();
        assert!(said(&make("set", &ours, 0o4755)).contains("set-user-id"));
        // A header and nothing else: no loader is named.
        let mut still = ours[..64].to_vec();
        still[56..58].copy_from_slice(&[0, 0]);
        let still = make("static", &still, 0o755);
        assert!(said(&still).contains("statically linked"));
        let script = make("script", [b"#! ", still.as_bytes(), b" -x\n"].concat().as_slice(), 0o755);
        assert!(said(&script).contains("statically linked"));
        check(&make("other", b"#!/usr/bin/env -S A=1 sh\n", 0o755)).unwrap();
        check(&make("text", b"neither nor", 0o755)).unwrap();
        check(OsStr::new("/no/such/program")).unwrap();
        check(&make("cut", &ours[..70], 0o755)).unwrap_err();
    }
}
