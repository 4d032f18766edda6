//! The memory that this process may use: that of the machine, or of its control group if that is less; and
//! the settings that follow it by default. The whole process stays within three quarters of a limit of 64 MiB
//! and more.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use azekura_base::page;
use azekura_wal::default_log_buffer_count;

use crate::options::MIN_FRAMES;

/// Directories under which control groups are mounted: version 2, version 2 beside version 1, version 1.
const MOUNTS: [(&str, Version); 3] = [
    ("sys/fs/cgroup", Version::Two),
    ("sys/fs/cgroup/unified", Version::Two),
    ("sys/fs/cgroup/memory", Version::One),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    const fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }
}

/// Returns the bytes of memory that this process may use; `None` if the system does not say.
///
/// The first call reads a few small files below `/proc` and `/sys/fs/cgroup`; later calls return its result.
pub(crate) fn memory_limit() -> Option<u64> {
    static LIMIT: OnceLock<Option<u64>> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        #[cfg(test)]
        if let Some(limit) = peak_tests::limit_of_child() {
            return Some(limit);
        }
        limit_below(Path::new("/"))
    })
}

/// Largest default capacity of the page cache.
const DEFAULT_CACHE_BYTES: u64 = 256 << 20;
/// The default cache takes at most this part of the memory that the process may use. Most of its pages are in
/// the system's page cache too, which has the rest. Measured in control groups of 64 MiB, uniform reads, rows
/// of half the memory: bytes read from the device per byte asked for are 0.0 with an eighth, 0.4 with a
/// quarter, and 6.5 with half and direct pages. Rows of 2 and 8 times the memory, random inserts: an eighth
/// writes 1.05 times the bytes of a quarter.
const DEFAULT_CACHE_SHARE: u64 = 8;
/// Memory per log buffer: with the default size of 512 KiB, the buffers take a sixteenth of the memory. A
/// flush takes them while their successors fill, and copies them into one chunk: four times as much in all.
const MEMORY_PER_LOG_BUFFER: u64 = 8 << 20;

/// The default capacity of the page cache under this limit on the process's memory.
pub(crate) fn default_cache_bytes(limit: Option<u64>) -> usize {
    let share = limit.map_or(DEFAULT_CACHE_BYTES, |limit| limit / DEFAULT_CACHE_SHARE);
    // At least the frames that a store with the largest pages needs.
    let least = (MIN_FRAMES * page::MAX_PAGE_SIZE) as u64;
    usize::try_from(share.clamp(least, DEFAULT_CACHE_BYTES)).unwrap_or(usize::MAX)
}

/// The default number of log buffers under this limit on the process's memory.
pub(crate) fn default_log_buffers(limit: Option<u64>) -> usize {
    let most = limit.map_or(u64::MAX, |limit| limit / MEMORY_PER_LOG_BUFFER);
    default_log_buffer_count().min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// Does the same for a file system root, which tests choose.
fn limit_below(root: &Path) -> Option<u64> {
    let machine = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total(&text));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = MOUNTS.into_iter().flat_map(|(mount, version)| {
        let group = group_of(&groups, version).unwrap_or_default();
        ancestors(&root.join(mount), &group).into_iter().filter_map(move |directory| {
            fs::read_to_string(directory.join(version.limit_file())).ok()?.trim().parse().ok()
        })
    });
    limits.chain(machine).min()
}

/// `MemTotal` of /proc/meminfo in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The group of this process by /proc/self/cgroup, as a relative path.
fn group_of(groups: &str, version: Version) -> Option<PathBuf> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match version {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        is_ours.then(|| PathBuf::from(path.trim_start_matches('/')))
    })
}

/// The group's directory and those of its ancestors up to the mount. A limit of an ancestor holds for the
/// group, and in a container the group's own path may lie outside of what is mounted.
fn ancestors(mount: &Path, group: &Path) -> Vec<PathBuf> {
    group.ancestors().map(|part| mount.join(part)).collect()
}

#[cfg(test)]
mod peak_tests;

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemFree:  1 kB\nMemTotal:       1024 kB\n");

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        limit_below(root(files).path())
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
        // A container that sees its own group as the mount's root.
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
    fn the_default_cache_follows_a_small_limit_of_memory() {
        let of = |limit: u64| default_cache_bytes(Some(limit)) as u64;
        assert_eq!(of(24 << 30), 256 << 20);
        assert_eq!(of(256 << 20), 32 << 20);
        assert_eq!(of(64 << 20), 8 << 20);
        assert_eq!(of(1 << 20), 24 * 65536, "a store must open at all");
        assert_eq!(default_cache_bytes(None), 256 << 20);
    }

    #[test]
    fn the_default_number_of_log_buffers_follows_a_small_limit_of_memory() {
        assert_eq!(default_log_buffers(Some(1 << 20)), 1);
        assert_eq!(default_log_buffers(Some(64 << 20)), 8);
        assert_eq!(default_log_buffers(Some(64 << 30)), default_log_buffer_count());
        assert_eq!(default_log_buffers(None), default_log_buffer_count());
    }
}
