//! Finds tracepoints of the kernel by name, and the offsets of their fields.

use crate::error::RecordError;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

/// The usual mount points of tracefs.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// A tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tracepoint {
    pub(super) id: u64,
    format: String,
}

impl Tracepoint {
    /// Finds `group/name`.
    pub(super) fn find(name: &str) -> Result<Self, RecordError> {
        let unavailable = |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied => super::watch::refused("tracepoints", source),
            _ => {
                RecordError::Kernel { what: "tracepoints (is it built with CONFIG_FTRACE_SYSCALLS?)", source }
            }
        };
        let (id, format) = read(name).map_err(unavailable)?;
        let id = id.trim().parse().map_err(|e| unavailable(io::Error::other(e)))?;
        Ok(Self { id, format })
    }

    /// Returns the offset of `field` in the raw data.
    pub(super) fn offset(&self, field: &str) -> Option<usize> {
        self.format.lines().find_map(|line| {
            let (declared, rest) = line.trim().strip_prefix("field:")?.split_once(';')?;
            let is_it = declared.rsplit([' ', '*']).next() == Some(field);
            let offset = rest.trim().strip_prefix("offset:")?.split_once(';')?.0;
            is_it.then(|| offset.parse().ok())?
        })
    }
}

fn read(name: &str) -> io::Result<(String, String)> {
    for root in MOUNTED {
        let of = |file: &str| std::fs::read_to_string(format!("{root}/events/{name}/{file}"));
        match (of("id"), of("format")) {
            (Ok(id), Ok(format)) => return Ok((id, format)),
            (Err(error), _) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    // tracefs is not mounted: mount it for this process only, without a path.
    let root = detached()?;
    let of = |file: &str| -> io::Result<String> {
        let path = format!("events/{name}/{file}");
        let mut text = String::new();
        File::from(openat(&root, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    Ok((of("id")?, of("format")?))
}

fn detached() -> io::Result<OwnedFd> {
    let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_and_not_by_part_of_it() {
        let format = "name: sys_enter_futex\nformat:\n\tfield:int __syscall_nr;\toffset:8;\tsize:4;\n\n\
                      \tfield:u32 * uaddr;\toffset:16;\tsize:8;\n\tfield:u32 * \
                          uaddr2;\toffset:48;\tsize:8;\nprint fmt: \"uaddr\"";
        let point = Tracepoint { id: 1, format: format.into() };
        assert_eq!(
            (point.offset("uaddr"), point.offset("uaddr2"), point.offset("addr")),
            (Some(16), Some(48), None)
        );
    }
}
