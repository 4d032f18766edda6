//! Resolves function names to the file offsets at which the kernel inserts probes.

use crate::error::RecordError;
use crate::symbols;
use perf_event::events::{Event, EventData};
use perf_event_open_sys::bindings::perf_event_attr;
use rustix::fs::{Access, access};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A function of which each call is recorded as an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name, as the user wrote it.
    pub name: String,
    /// The program or library that contains the function.
    pub file: PathBuf,
    /// Offsets in the file at which the function begins; more than one if several functions have the name.
    pub(super) offsets: Vec<u64>,
}

impl Function {
    /// Finds `asked`, a symbol or a demangled name, in the program, or in another file:
    /// `name@/path/to/library.so`.
    ///
    /// The offsets are those in the file, so the file may be loaded at any address, or later. Functions that
    /// the compiler inlined into all their callers are not found.
    ///
    /// # Errors
    ///
    /// [`RecordError::NoFunction`], [`RecordError::Program`].
    pub fn find(asked: &str, program: &Path) -> Result<Self, RecordError> {
        let (name, file) = match asked.split_once('@') {
            Some((name, file)) => (name, Path::new(file)),
            None => (asked, program),
        };
        let file =
            file.canonicalize().map_err(|source| RecordError::Program { path: file.into(), source })?;
        let found = symbols::functions(&file, name)
            .map_err(|source| RecordError::Program { path: file.clone(), source })?;
        match found {
            Ok(offsets) => Ok(Self { name: name.to_owned(), file, offsets }),
            Err(alike) => Err(RecordError::NoFunction { name: name.to_owned(), file, alike }),
        }
    }
}

/// Returns the file that a shell would run for `command`.
///
/// # Errors
///
/// [`RecordError::Program`]: there is no such file.
pub fn program(command: &Path) -> Result<PathBuf, RecordError> {
    if command.components().count() > 1 {
        return Ok(command.to_owned());
    }
    let none = || RecordError::Program { path: command.into(), source: std::io::ErrorKind::NotFound.into() };
    in_path(&std::env::var_os("PATH").unwrap_or_default(), command).ok_or_else(none)
}

/// Returns the first executable file of this name in the directories of `path`.
fn in_path(path: &OsStr, name: &Path) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| file.is_file() && access(file.as_path(), Access::EXEC_OK).is_ok();
    std::env::split_paths(path).map(|directory| directory.join(name)).find(is_executable)
}

/// A probe: the kernel records each thread that reaches the offset in the file, or that returns from the
/// function there.
///
/// (`perf-event2` has such an event, but its builder does not accept it.)
#[derive(Debug, Clone)]
pub(super) struct Probe {
    kind: u32,
    file: CString,
    offset: u64,
    returns: bool,
}

impl Probe {
    pub(super) fn new(file: &Path, offset: u64, returns: bool) -> io::Result<Self> {
        let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
        let kind = kind.trim().parse().map_err(io::Error::other)?;
        Ok(Self { kind, file: CString::new(file.as_os_str().as_bytes())?, offset, returns })
    }
}

impl Event for Probe {
    fn update_attrs(self, attr: &mut perf_event_attr) {
        attr.type_ = self.kind;
        attr.config = u64::from(self.returns);
        attr.probe_offset = self.offset;
    }

    fn update_attrs_with_data(self, attr: &mut perf_event_attr) -> Option<Arc<dyn EventData>> {
        // The kernel reads the name when the event is opened. The builder keeps the returned value until
        // then.
        let file = Arc::new(self.file.clone());
        attr.kprobe_func = file.as_ptr().addr() as u64;
        self.update_attrs(attr);
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_that_is_not_executable_is_not_the_program_of_its_name() {
        let [first, second] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::write(place.path().join("program"), "").unwrap();
            std::fs::set_permissions(place.path().join("program"), Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(in_path(&path, Path::new("program")), Some(second.path().join("program")));
    }
}
