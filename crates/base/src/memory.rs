//! The memory that this process may use.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, CgroupVersion};

/// Limits of the process, in bytes, by their names in /proc/self/limits.
const PROCESS_LIMITS: [&str; 2] = ["Max address space", "Max data size"];

/// Returns the name of the file with the limit of a control group's memory.
#[must_use]
pub const fn limit_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::One => "memory.limit_in_bytes",
        CgroupVersion::Two => "memory.max",
    }
}

/// Returns the number of bytes of memory that this process may use: the least of the machine's memory, the
/// limits of the process's control groups, and the process's own limits of addresses and of data (`ulimit
/// -v`, `ulimit -d`). If the system does not overcommit memory (`vm.overcommit_memory` is 2), its limit of
/// promised memory counts too. `None` if the system reports none of them.
///
/// Reads a few small files below `/proc` and `/sys/fs/cgroup`.
#[must_use]
pub fn limit() -> Option<u64> {
    limit_in(|path| fs::read_to_string(path).ok())
}

/// Returns the limit as [`limit`] does. `read` returns the text of a file; `None` if it cannot be read.
fn limit_in(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let read_or_empty = |path: &str| read(Path::new(path)).unwrap_or_default();
    let groups = read_or_empty("/proc/self/cgroup");
    let of_group =
        |(group, version): (PathBuf, _)| read(&group.join(limit_file(version)))?.trim().parse().ok();
    let limits = cgroup::directories(&groups, "memory").into_iter().filter_map(of_group);
    let process = read_or_empty("/proc/self/limits");
    let own = PROCESS_LIMITS.into_iter().filter_map(|name| soft_limit(&process, name));
    let machine = read_or_empty("/proc/meminfo");
    let overcommits = read_or_empty("/proc/sys/vm/overcommit_memory").trim() != "2";
    let promised = if overcommits { None } else { entry(&machine, "CommitLimit:") };
    limits.chain(entry(&machine, "MemTotal:")).chain(promised).chain(own).min()
}

/// Returns the soft limit with this name in /proc/self/limits, unless it is unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns an entry of /proc/meminfo in bytes.
fn entry(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemFree:  1 kB\nMemTotal:       1024 kB\n");

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        limit_in(|path| {
            let found = files.iter().find(|(name, _)| path == Path::new("/").join(name));
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    #[test]
    fn without_groups_the_machine_is_the_limit() {
        assert_eq!(limit(&[MACHINE]), Some(1 << 20));
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[("proc/meminfo", "MemTotal: lots\n")]), None);
    }

    #[test]
    fn the_least_limit_of_a_group_and_its_ancestors_counts() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let own = ("sys/fs/cgroup/a/b/memory.max", "4096\n");
        let parent = ("sys/fs/cgroup/a/memory.max", "2048\n");
        let none = ("sys/fs/cgroup/a/memory.max", "max\n");
        assert_eq!(limit(&[MACHINE, group, own, none]), Some(4096));
        assert_eq!(limit(&[MACHINE, group, own, parent]), Some(2048));
        // A container in which the process's group is the root of the mount.
        assert_eq!(limit(&[MACHINE, group, ("sys/fs/cgroup/memory.max", "512\n")]), Some(512));
    }

    #[test]
    fn version_one_counts_too_and_its_huge_number_for_no_limit_does_not() {
        let group = ("proc/self/cgroup", "5:cpu:/c\n4:memory:/x\n0::/\n");
        let file = "sys/fs/cgroup/memory/x/memory.limit_in_bytes";
        assert_eq!(limit(&[MACHINE, group, (file, "8192\n")]), Some(8192));
        assert_eq!(limit(&[MACHINE, group, (file, "9223372036854771712\n")]), Some(1 << 20));
    }

    #[test]
    fn promised_memory_is_a_limit_only_without_overcommitment() {
        let memory = ("proc/meminfo", "MemTotal: 1024 kB\nCommitLimit: 512 kB\n");
        let limit_of = |mode| limit(&[memory, ("proc/sys/vm/overcommit_memory", mode)]);
        assert_eq!(limit_of("0\n"), Some(1 << 20));
        assert_eq!(limit_of("1\n"), Some(1 << 20));
        assert_eq!(limit_of("2\n"), Some(512 << 10));
    }

    #[test]
    fn limits_of_the_process_count_too() {
        let limits = |data: &str, addresses: &str| {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data:<20} unlimited            bytes     \n\
                 Max address space         {addresses:<20} 4096                 bytes     \n"
            );
            limit(&[MACHINE, ("proc/self/limits", text.as_str())])
        };
        assert_eq!(limits("unlimited", "unlimited"), Some(1 << 20));
        assert_eq!(limits("8192", "unlimited"), Some(8192));
        assert_eq!(limits("8192", "6144"), Some(6144));
    }
}
