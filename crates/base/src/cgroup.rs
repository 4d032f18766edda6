//! Control groups: the directories of the groups that contain a process.

use std::path::{Path, PathBuf};

/// A version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy for each controller.
    One,
    /// One hierarchy for all controllers.
    Two,
}

/// Returns the directories under which the groups of a controller (`memory`, `cpu`) are mounted: version 2,
/// version 2 beside version 1, version 1.
#[must_use]
pub fn mounts(controller: &str) -> Vec<(PathBuf, CgroupVersion)> {
    let root = Path::new("/sys/fs/cgroup");
    let mut mounts = vec![
        (root.to_path_buf(), CgroupVersion::Two),
        (root.join("unified"), CgroupVersion::Two),
        (root.join(controller), CgroupVersion::One),
    ];
    if controller == "cpu" {
        mounts.push((root.join("cpu,cpuacct"), CgroupVersion::One));
    }
    mounts
}

/// Returns the directories of the process's groups for a controller, each followed by its ancestors up to the
/// mount, because a limit of an ancestor also applies to the group. `groups` is the text of
/// `/proc/PID/cgroup`. Some of the directories may not exist. In a container the path of the group may lie
/// outside of the mounted part; then the mount itself is the group.
#[must_use]
pub fn directories(groups: &str, controller: &str) -> Vec<(PathBuf, CgroupVersion)> {
    let of_mount = |(mount, version): (PathBuf, CgroupVersion)| {
        let group = Path::new(group_of(groups, controller, version).unwrap_or_default());
        group.ancestors().map(|part| (mount.join(part), version)).collect::<Vec<_>>()
    };
    mounts(controller).into_iter().flat_map(of_mount).collect()
}

/// Returns the path of the process's group, relative to the mount.
fn group_of<'g>(groups: &'g str, controller: &str, version: CgroupVersion) -> Option<&'g str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_ours = match version {
            CgroupVersion::One => controllers.split(',').any(|name| name == controller),
            CgroupVersion::Two => number == "0" && controllers.is_empty(),
        };
        is_ours.then(|| path.trim_start_matches('/'))
    })
}
