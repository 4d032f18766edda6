//! The sizes of this machine's caches, as reported by the operating system.

use azekura_sim::Profile;
use azekura_sim::lines::LINE_BYTES;
use std::path::Path;

/// Size, associativity and level of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cache {
    pub(super) bytes: usize,
    pub(super) ways: usize,
    level: usize,
}

impl Cache {
    /// Returns the numbers of lines and ways, in the form of [`Profile::topology`].
    pub(super) const fn lines(self) -> (usize, usize) {
        (self.bytes / LINE_BYTES, self.ways)
    }

    fn of((lines, ways): (usize, usize), level: usize) -> Self {
        Self { bytes: lines * LINE_BYTES, ways, level }
    }
}

/// Returns the largest cache of a single core, or a usual size if the system does not report it.
pub(super) fn own() -> Cache {
    let usual = Cache::of(Profile::two_sockets().topology.private_lines, 2);
    of_this_machine().into_iter().find(|cache| cache.level == usual.level).unwrap_or(usual)
}

/// Returns the last-level cache, or a usual size if the system reports none beyond the cores' private caches.
pub(super) fn last() -> Cache {
    let usual = Cache::of(Profile::two_sockets().topology.shared_lines, 3);
    let last = of_this_machine().into_iter().max_by_key(|cache| cache.level);
    last.filter(|last| last.level > own().level).unwrap_or(usual)
}

fn of_this_machine() -> Vec<Cache> {
    let Ok(caches) = Path::new("/sys/devices/system/cpu/cpu0/cache").read_dir() else { return Vec::new() };
    caches
        .flatten()
        .filter_map(|cache| parsed(|name| std::fs::read_to_string(cache.path().join(name)).ok()))
        .collect()
}

/// Parses the system's description of a cache; `text` reads a file of it by name. Returns `None` for an
/// instruction cache.
fn parsed(text: impl Fn(&str) -> Option<String>) -> Option<Cache> {
    let word = |name: &str| Some(text(name)?.trim().to_owned());
    let number = |name: &str| word(name)?.parse().ok();
    let kibibytes: usize = word("size")?.strip_suffix('K')?.parse().ok()?;
    let (level, ways) = (number("level")?, number("ways_of_associativity")?);
    let is_whole = word("type")? != "Instruction" && kibibytes > 0 && ways > 0;
    is_whole.then_some(Cache { bytes: kibibytes << 10, ways, level })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_descriptions_of_the_system_are_parsed_or_refused() {
        let cache = |kind: &str, size: &str| {
            let (kind, size) = (kind.to_owned(), size.to_owned());
            parsed(move |name| match name {
                "type" => Some(format!("{kind}\n")),
                "size" => Some(format!("{size}\n")),
                "level" => Some("2\n".into()),
                _ => Some("16\n".into()),
            })
        };
        let own = cache("Unified", "1024K");
        assert_eq!(own, Some(Cache { bytes: 1 << 20, ways: 16, level: 2 }));
        assert_eq!(own.map(Cache::lines), Some((16_384, 16)));
        assert_eq!(
            [cache("Instruction", "32K"), cache("Unified", "0K"), cache("Unified", "much")],
            [None; 3]
        );
        // A virtual machine may report a small last-level cache.
        let (own, last) = (super::own(), super::last());
        assert!(own.lines().0 > 0 && last.lines().0 > 0 && last.level > own.level, "{own:?} {last:?}");
    }
}
