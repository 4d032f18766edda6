//! Rejects programs that cannot load the library, before they run.

use crate::error::RecordError;
use crate::kernel::program;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Number of nested script interpreters that are followed, as in the kernel.
const SCRIPTS: u32 = 4;

/// Returns an error if the program that `command` names cannot be recorded.
///
/// # Errors
///
/// [`RecordError::NotRecordable`], with the reason. A program that cannot be found or read is no error here:
/// starting it will fail.
pub(crate) fn check(command: &Path) -> Result<(), RecordError> {
    let Ok(mut path) = program(command) else { return Ok(()) };
    if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux")) {
        return Ok(()); // the loader is static, but it loads the library into the program that it starts
    }
    for _ in 0..SCRIPTS {
        match reason(&path) {
            Ok(Found::Script(interpreter)) => path = interpreter,
            Ok(Found::Reason(reason)) => return Err(RecordError::NotRecordable { path, reason }),
            Ok(Found::Nothing) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The result of examining a file.
enum Found {
    Nothing,
    Script(PathBuf),
    Reason(&'static str),
}

const OTHER_RIGHTS: &str = concat!(
    "it runs with the rights of another user or group, so the loader preloads no library into it; ",
    "run the recorder as that user",
);
const STATIC: &str =
    "it is statically linked, so no library can be loaded into it; record it from outside with --pid";
const GO: &str = concat!(
    "it is a Go program: its locks are part of its own runtime and never call the C library; ",
    "use the profiles of runtime/pprof (mutex, block), or --pid",
);
const OTHER_C_LIBRARY: &str = concat!(
    "its C library is not glibc, for which the library is built (musl, for example); ",
    "record it from outside with --pid",
);
const OTHER_MACHINE: &str =
    "it is for another kind of processor, or has 32 bits; record it from outside with --pid";

fn reason(path: &Path) -> io::Result<Found> {
    let file = File::open(path)?;
    let mut start = Vec::new();
    (&file).take(256).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let name = line.trim_ascii_start().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        return Ok(Found::Script(PathBuf::from(OsStr::from_bytes(name))));
    }
    Ok(match Elf::read(&file, &start)? {
        _ if has_other_rights(&file, path)? => Found::Reason(OTHER_RIGHTS),
        None => Found::Nothing,
        Some(elf) => elf.reason().map_or(Found::Nothing, Found::Reason),
    })
}

/// Returns `true` if the kernel gives the program rights that its caller does not have.
fn has_other_rights(file: &File, path: &Path) -> io::Result<bool> {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010;
    let metadata = file.metadata()?;
    let (mode, user) = (metadata.mode(), rustix::process::getuid());
    let sets_user = mode & SET_USER != 0 && metadata.uid() != user.as_raw();
    let sets_group = mode & SET_GROUP == SET_GROUP && metadata.gid() != rustix::process::getgid().as_raw();
    let mut value = [0_u8; 64];
    let has_capabilities = rustix::fs::getxattr(path, c"security.capability", &mut value).is_ok();
    Ok(sets_user || sets_group || (has_capabilities && !user.is_root()))
}

/// The facts about an executable file that decide whether it can be recorded.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    is_ours: bool,
    interpreter: Option<Vec<u8>>,
    is_go: bool,
}

/// Largest size of a part of the file that is read.
const MOST_BYTES: usize = 1 << 16;

impl Elf {
    /// Returns `None` if the file is not an ELF file, or if its parts are not where they should be.
    fn read(file: &File, start: &[u8]) -> io::Result<Option<Self>> {
        const BITS_64: u8 = 2;
        const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        const INTERPRETER: u64 = 3;
        const NOTES: u64 = 4;
        let number = |bytes: &[u8], at: usize, len: usize| {
            let field = bytes.get(at..at + len)?;
            Some(field.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        if !start.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let is_ours = start.get(4) == Some(&BITS_64) && number(start, 18, 2) == Some(MACHINE.into());
        let mut elf = Self { is_ours, interpreter: None, is_go: false };
        if !is_ours {
            return Ok(Some(elf));
        }
        let fields = [(32, 8), (54, 2), (56, 2)].map(|(at, len)| number(start, at, len).unwrap_or(0));
        let [table, size, count] = fields;
        let Some(table) = part(file, table, size * count)? else { return Ok(None) };
        for header in table.chunks_exact((size as usize).max(1)) {
            let [kind, offset, len] =
                [(0, 4), (8, 8), (32, 8)].map(|(at, len)| number(header, at, len).unwrap_or(0));
            if kind == INTERPRETER {
                elf.interpreter = part(file, offset, len)?;
            } else if kind == NOTES
                && let Some(notes) = part(file, offset, len)?
            {
                elf.is_go |= has_go_note(&notes);
            }
        }
        Ok(Some(elf))
    }

    fn reason(&self) -> Option<&'static str> {
        let is_glibc = |name: &Vec<u8>| name.windows(8).any(|part| part == b"ld-linux");
        match &self.interpreter {
            _ if !self.is_ours => Some(OTHER_MACHINE),
            _ if self.is_go => Some(GO),
            None => Some(STATIC),
            Some(name) if !is_glibc(name) => Some(OTHER_C_LIBRARY),
            Some(_) => None,
        }
    }
}

/// Returns `true` if one of the notes is Go's build id: type 4, owner `Go`. In a program with cgo, the notes
/// of the C linker precede it.
fn has_go_note(notes: &[u8]) -> bool {
    const HEAD: usize = 12;
    let mut rest = notes;
    while rest.len() >= HEAD {
        let number = |at: usize| rest[at..at + 4].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let [owner, content] = [0, 4].map(|at| number(at).next_multiple_of(4));
        if rest[8..HEAD] == *b"\x04\0\0\0" && rest[HEAD..].starts_with(b"Go\0") {
            return true;
        }
        match rest.get(HEAD.saturating_add(owner).saturating_add(content)..) {
            Some(next) => rest = next,
            None => return false,
        }
    }
    false
}

/// Reads a part of a file. Returns `None` if the part is larger than in any valid program, or exceeds the
/// file.
fn part(file: &File, offset: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= MOST_BYTES) else { return Ok(None) };
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Builds an ELF file with these parts; its program headers of 56 bytes begin at offset 64.
    fn program_of(machine: u16, parts: &[(u32, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * parts.len()];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = parts.len() as u8;
        for (index, (kind, content)) in parts.iter().enumerate() {
            let (at, offset) = (64 + 56 * index, bytes.len() as u64);
            bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            bytes[at + 32..at + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
        }
        bytes
    }

    #[test]
    fn programs_that_cannot_be_recorded_are_refused_with_the_reason() {
        let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        let directory = tempfile::tempdir().unwrap();
        let report = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            match check(&path) {
                Ok(()) => "",
                Err(RecordError::NotRecordable { reason, .. }) => reason,
                Err(error) => panic!("{error}"),
            }
        };
        let go: &[u8] = b"\x04\0\0\0\x02\0\0\0\x04\0\0\0Go\0\0id";
        let (glibc, musl): (&[u8], &[u8]) = (b"/lib64/ld-linux-x86-64.so.2\0", b"/lib/ld-musl-x86_64.so.1\0");
        assert_eq!(report("static", &program_of(machine, &[(1, b"code")])), STATIC);
        assert_eq!(report("go", &program_of(machine, &[(4, go)])), GO);
        assert_eq!(report("cgo", &program_of(machine, &[(3, glibc), (4, go)])), GO);
        // The notes of the C linker, then Go's note.
        let many = [b"\x04\0\0\0\x05\0\0\0\x05\0\0\0GNU\0abcde\0\0\0", go].concat();
        assert_eq!(report("cgo, linked outside", &program_of(machine, &[(3, glibc), (4, &many)])), GO);
        let endless = [0xff; 64];
        assert_eq!(report("rubbish in notes", &program_of(machine, &[(3, glibc), (4, &endless)])), "");
        assert_eq!(report("musl", &program_of(machine, &[(3, musl)])), OTHER_C_LIBRARY);
        assert_eq!(report("other", &program_of(3, &[(3, glibc)])), OTHER_MACHINE);
        assert_eq!(report("glibc", &program_of(machine, &[(4, b"short"), (3, glibc)])), "");
        let script = format!("#! {}/static -x\n", directory.path().display());
        assert_eq!(report("script", script.as_bytes()), STATIC);
        assert_eq!(report("cut", &program_of(machine, &[(3, musl)])[..80]), "");
        assert_eq!(report("no program", b"text"), "");
        assert!(check(Path::new("/bin/sh")).is_ok() && check(Path::new("/nowhere/at/all")).is_ok());
    }

    #[test]
    fn a_program_of_another_user_s_rights_is_refused() {
        if !rustix::process::getuid().is_root() {
            return; // only root can give a file to another user
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::copy("/bin/true", &path).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
        match check(&path) {
            Err(RecordError::NotRecordable { reason, .. }) => assert_eq!(reason, OTHER_RIGHTS),
            other => panic!("{other:?}"),
        }
    }
}
