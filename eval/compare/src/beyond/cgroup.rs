//! A control group that limits the memory of one engine, including its share of the system's page cache.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Usual mount point of the control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// A control group that is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Creates a group with this memory limit: version 2, or version 1 if the memory controller is attached
    /// to it.
    ///
    /// # Errors
    ///
    /// The reason why no group can be created: no memory controller, or no permission.
    pub(super) fn create(limit_bytes: u64) -> Result<Self> {
        let own = std::fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        Self::create_under(Path::new(ROOT), &own, limit_bytes)
    }

    fn create_under(root: &Path, own: &str, limit_bytes: u64) -> Result<Self> {
        let name = format!("azekura-beyond-cache-{}", std::process::id());
        let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if controllers.split_whitespace().any(|controller| controller == "memory") {
            let control = root.join("cgroup.subtree_control");
            std::fs::write(&control, "+memory").with_context(|| {
                format!(
                    "enable the memory controller in {}: run as root, outside a container",
                    control.display()
                )
            })?;
            let group = Self::make(root.join(name))?;
            group.set("memory.max", limit_bytes)?;
            // The file does not exist if the kernel has no swap accounting; swap is then not limited.
            let _ = group.set("memory.swap.max", 0);
            return Ok(group);
        }
        let of_memory = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|controller| controller == "memory").then_some(path)
        });
        let Some(path) = of_memory else {
            bail!(
                "beyond-cache limits memory by a control group, and {} has no memory controller",
                root.display()
            );
        };
        let parent = root.join("memory").join(path.trim_start_matches('/'));
        let group = Self::make(parent.join(name))?;
        group.set("memory.limit_in_bytes", limit_bytes)?;
        Ok(group)
    }

    fn make(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir(&dir).with_context(|| {
            format!("create the control group {}: beyond-cache needs to run as root", dir.display())
        })?;
        Ok(Self { dir })
    }

    fn set(&self, name: &str, value: u64) -> Result<()> {
        let path = self.dir.join(name);
        std::fs::write(&path, value.to_string()).with_context(|| format!("write {}", path.display()))
    }

    /// Returns the file through which a process is moved into the group.
    pub(super) fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while a process is in the group; the error about that process has the reason.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_a_memory_controller_is_refused_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let refused = |own: &str| format!("{:#}", Cgroup::create_under(root.path(), own, 1).unwrap_err());
        assert!(refused("0::/\n").contains("no memory controller"), "{}", refused("0::/\n"));
        assert!(refused("4:memory:/there\n").contains("needs to run as root"));
        std::fs::write(root.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        std::fs::create_dir(root.path().join("cgroup.subtree_control")).unwrap();
        assert!(refused("0::/\n").contains("enable the memory controller"));
    }

    #[test]
    fn a_group_gets_its_limit_and_is_removed_at_the_end() {
        let root = tempfile::tempdir().unwrap();
        let parent = root.path().join("memory/there");
        std::fs::create_dir_all(&parent).unwrap();
        let group = Cgroup::create_under(root.path(), "4:memory:/there\n", 77).unwrap();
        let limit = group.dir.join("memory.limit_in_bytes");
        assert_eq!(std::fs::read_to_string(&limit).unwrap(), "77");
        std::fs::remove_file(limit).unwrap(); // in a real group, the files are removed with the directory
        drop(group);
        assert_eq!(std::fs::read_dir(parent).unwrap().count(), 0);
    }
}
