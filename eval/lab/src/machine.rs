//! Description of a run's machine from Linux; unknown values are `None`.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The machine of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: Option<String>,
    /// Number of cores that the process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Operating system, architecture and kernel release.
    pub system: String,
    /// Type of the data's file system, such as `ext4`.
    pub file_system: Option<String>,
}

impl Machine {
    /// Returns the description of this machine, with data in `dir`.
    #[must_use]
    pub fn here(dir: &Path) -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let system = format!("{} {} {}", std::env::consts::OS, std::env::consts::ARCH, kernel.trim());
        Self {
            cpu: fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| field(&text, "model name")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: fs::read_to_string("/proc/meminfo")
                .ok()
                .and_then(|text| field(&text, "MemTotal"))
                .and_then(|size| size.trim_end_matches("kB").trim().parse::<u64>().ok())
                .map(|kib| kib * 1024),
            system: system.trim().to_owned(),
            file_system: fs::read_to_string("/proc/self/mountinfo")
                .ok()
                .and_then(|mounts| file_system(&mounts, &dir.canonicalize().ok()?)),
        }
    }

    /// Returns processor, cores and system as text for the head of a report.
    #[must_use]
    pub fn in_words(&self) -> String {
        let cpu = self.cpu.as_deref().unwrap_or("unknown processor");
        format!("{cpu}, {} cores, {}", self.cores, self.system)
    }
}

/// Returns the value of the first line `name : value`.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// Returns the type of the file system that contains `dir`: that of the longest mount point above it, and of
/// the last one if there are several.
fn file_system(mountinfo: &str, dir: &Path) -> Option<String> {
    mountinfo
        .lines()
        .filter_map(|line| {
            // Format: "36 35 98:0 /root /mount/point options [optional fields] - type source options"
            let (mount, kind) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?;
            dir.starts_with(point).then(|| (point.len(), kind.split(' ').next().unwrap_or_default()))
        })
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind.to_owned())
}

/// Returns the current time, such as `2026-11-20T09:30:00Z`.
#[must_use]
pub fn utc_now() -> String {
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    utc(seconds)
}

/// Formats seconds since 1970 as a UTC date. The Gregorian calendar repeats every 400 years of 146,097 days.
/// If years begin in March, leap days are at the end of their year.
fn utc(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let since_march_of_0 = days + 719_468;
    let (era, day_of_era) = (since_march_of_0 / 146_097, since_march_of_0 % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3_600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount_point() {
        let mounts = "22 1 254:0 / / rw - ext4 /dev/a rw\n30 22 0:26 / /data rw shared:1 - xfs /dev/b rw\n\
                      31 22 0:27 / /database rw - tmpfs none rw\n";
        assert_eq!(file_system(mounts, Path::new("/data/x")).as_deref(), Some("xfs"));
        assert_eq!(file_system(mounts, Path::new("/dat")).as_deref(), Some("ext4"));
        assert_eq!(file_system(mounts, Path::new("/database")).as_deref(), Some("tmpfs"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotalX: 1 kB\nMemTotal:       24 kB\n";
        assert_eq!(field(text, "MemTotal").as_deref(), Some("24 kB"));
    }
}
