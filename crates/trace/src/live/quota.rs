//! CPU quotas of control groups: the quota, and the time for which the kernel throttled a group. Read at the
//! start and the end of a recording, never by a probe.

use crate::file::CpuQuota;
use azekura_base::cgroup::{self, CgroupVersion};
use azekura_base::sync::machine::simulated;
use std::fs;
use std::path::{Path, PathBuf};

/// The control groups with a CPU quota that contain a process.
#[derive(Debug, Default)]
pub struct CpuQuotas(Vec<Group>);

#[derive(Debug)]
struct Group {
    /// The file with the group's throttled time.
    stat: PathBuf,
    millis: u64,
    /// The throttled time at the first and at the last reading, in nanoseconds.
    throttled_ns: (u64, u64),
}

impl CpuQuotas {
    /// Returns the groups of a process, and reads their throttled times; `None` stands for this process. A
    /// simulated machine has no groups.
    #[must_use]
    pub fn of(process: Option<u32>) -> Self {
        if simulated().is_some() {
            return Self::default();
        }
        let process = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        Self::in_files(&groups, |path| fs::read_to_string(path).ok())
    }

    /// Returns the groups as [`CpuQuotas::of`] does. `groups` is the text of the process's `cgroup` file, and
    /// `read` returns the text of a file.
    fn in_files(groups: &str, read: impl Fn(&Path) -> Option<String>) -> Self {
        let mut found = Vec::new();
        for (directory, version) in cgroup::directories(groups, "cpu") {
            let stat = directory.join("cpu.stat");
            if let Some(millis) = quota(&directory, version, &read)
                && let Some(now) = read(&stat).and_then(|stat| throttled_ns(&stat))
            {
                found.push(Group { stat, millis, throttled_ns: (now, now) });
            }
        }
        Self(found)
    }

    /// Reads the throttled times again. A group that was removed keeps its last reading.
    pub fn read(&mut self) {
        self.read_by(|path| fs::read_to_string(path).ok());
    }

    fn read_by(&mut self, read: impl Fn(&Path) -> Option<String>) {
        for group in &mut self.0 {
            let now = read(&group.stat).and_then(|stat| throttled_ns(&stat));
            group.throttled_ns.1 = now.unwrap_or(0).max(group.throttled_ns.1);
        }
    }

    /// Returns the quota of the group that was throttled for the longest time between the first and the last
    /// reading; the smallest quota if none was throttled.
    #[must_use]
    pub fn strictest(&self) -> Option<CpuQuota> {
        let quotas = self.0.iter().map(|group| {
            let (first, last) = group.throttled_ns;
            CpuQuota { millis: group.millis, throttled_ns: last - first }
        });
        quotas.max_by_key(|quota| (quota.throttled_ns, std::cmp::Reverse(quota.millis)))
    }
}

/// Returns the CPU quota of a group in thousandths of a processor; `None` if it has none.
fn quota(directory: &Path, version: CgroupVersion, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok(); // "max" and -1 are no quota
    let of_file = |name: &str| number(&read(&directory.join(name))?);
    let (quota, period) = match version {
        CgroupVersion::One => (of_file("cpu.cfs_quota_us")?, of_file("cpu.cfs_period_us")?),
        CgroupVersion::Two => {
            let text = read(&directory.join("cpu.max"))?;
            let (quota, period) = text.trim().split_once(' ')?;
            (number(quota)?, number(period)?)
        }
    };
    quota.checked_mul(1000)?.checked_div(period)
}

/// Returns the throttled time in the text of a group's `cpu.stat`: microseconds in version 2, nanoseconds in
/// version 1.
fn throttled_ns(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let value: u64 = value.trim().parse().ok()?;
        match name {
            "throttled_usec" => value.checked_mul(1000),
            "throttled_time" => Some(value),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    type Files = HashMap<&'static str, &'static str>;

    fn read(files: &Files) -> impl Fn(&Path) -> Option<String> {
        move |path: &Path| files.get(path.to_str()?).map(|text| (*text).to_owned())
    }

    #[test]
    fn the_quota_that_throttled_most_is_found_in_version_two() {
        let mut files = Files::from([
            ("/sys/fs/cgroup/pod/cpu.max", "200000 100000\n"),
            ("/sys/fs/cgroup/pod/cpu.stat", "usage_usec 9\nnr_throttled 1\nthrottled_usec 70\n"),
            ("/sys/fs/cgroup/pod/app/cpu.max", "50000 100000\n"),
            ("/sys/fs/cgroup/pod/app/cpu.stat", "usage_usec 9\nthrottled_usec 5\n"),
            ("/sys/fs/cgroup/cpu.stat", "throttled_usec 1000\n"),
        ]);
        let mut quotas = CpuQuotas::in_files("1:name=systemd:/x\n0::/pod/app\n", read(&files));
        assert_eq!(quotas.strictest(), Some(CpuQuota { millis: 500, throttled_ns: 0 }));
        files.insert("/sys/fs/cgroup/pod/cpu.stat", "throttled_usec 71\n");
        files.insert("/sys/fs/cgroup/pod/app/cpu.stat", "throttled_usec 3005\n");
        quotas.read_by(read(&files));
        let throttled = Some(CpuQuota { millis: 500, throttled_ns: 3_000_000 });
        assert_eq!(quotas.strictest(), throttled);
        quotas.read_by(|_| None); // the group is removed at the end of its last process
        assert_eq!(quotas.strictest(), throttled);
        // A container in which the process's group is the root of the mount.
        let container = Files::from([
            ("/sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/cpu.stat", "throttled_usec 1\n"),
        ]);
        let quotas = CpuQuotas::in_files("0::/\n", read(&container));
        assert_eq!(quotas.strictest(), Some(CpuQuota { millis: 1500, throttled_ns: 0 }));
    }

    #[test]
    fn quotas_of_version_one_are_found_and_none_is_none() {
        let mut files = Files::from([
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "25000\n"),
            ("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/job/cpu.stat", "nr_periods 4\nnr_throttled 2\nthrottled_time 30\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time 7\n"),
        ]);
        let groups = "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n";
        let mut quotas = CpuQuotas::in_files(groups, read(&files));
        files.insert("/sys/fs/cgroup/cpu/job/cpu.stat", "throttled_time 90\n");
        quotas.read_by(read(&files));
        assert_eq!(quotas.strictest(), Some(CpuQuota { millis: 500, throttled_ns: 60 }));
        let unlimited = Files::from([
            ("/sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/cpu.stat", "throttled_usec 0\n"),
        ]);
        assert_eq!(CpuQuotas::in_files("0::/\n", read(&unlimited)).strictest(), None);
    }
}
