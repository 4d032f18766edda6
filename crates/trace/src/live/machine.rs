//! CPU time of the machine's processors and facts about this process from /proc, read at the start and the
//! end of a recording, never by a probe.

use crate::file::Module;
use azekura_base::sync::machine::simulated;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Returns the CPU time that all processes have used since the machine's start on the processors that this
/// process may use; `None` if the kernel does not report it. The kernel counts in steps of its user clock, 10
/// ms.
#[must_use]
pub fn cpu_ns() -> Option<u64> {
    if simulated().is_some() {
        return Some(super::clock::process_cpu_ns()); // a simulated machine runs nothing else
    }
    let usable = sched_getaffinity(None).ok();
    let is_usable = |number| usable.is_none_or(|set| number < CpuSet::MAX_CPU && set.is_set(number));
    parse_stat(&std::fs::read_to_string("/proc/stat").ok()?, is_usable)
}

/// Returns the nanoseconds of user, nice, system, irq, softirq and steal of the usable processors; the unit
/// is 1/100 s on every Linux ABI.
fn parse_stat(stat: &str, is_usable: impl Fn(usize) -> bool) -> Option<u64> {
    const TICK_NS: u64 = 10_000_000;
    let busy = |line: &str| {
        let (number, fields) = line.strip_prefix("cpu")?.split_once(' ')?;
        let number = number.parse().ok()?; // the first line is the sum over all processors
        let fields: Vec<u64> = fields.split_whitespace().map_while(|f| f.parse().ok()).take(8).collect();
        let busy = fields.iter().enumerate().filter(|(i, _)| !matches!(i, 3 | 4)).map(|(_, n)| *n);
        (is_usable(number) && fields.len() >= 4).then(|| busy.sum::<u64>())
    };
    let sum = stat.lines().filter_map(busy).reduce(u64::saturating_add)?;
    Some(sum.saturating_mul(TICK_NS))
}

/// Returns the number of this process; on a simulated machine always 0.
pub(super) fn process_id() -> u32 {
    if simulated().is_some() { 0 } else { std::process::id() }
}

/// Returns the number of processors that this process may use. A CPU quota of a control group does not reduce
/// the number: see [`CpuQuotas`](super::quota::CpuQuotas).
#[must_use]
pub fn processors() -> u32 {
    if let Some(machine) = simulated() {
        return machine.processors() as u32;
    }
    match sched_getaffinity(None) {
        Ok(set) => set.count().max(1),
        // The machine has more processors than the set can hold.
        Err(_) => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
    }
}

/// Returns the mapped files and their addresses, from the text of a process's `maps` file.
#[must_use]
pub fn parse_maps(maps: &str) -> Vec<Module> {
    let parse = |line: &str| {
        let mut fields = line.splitn(6, ' ').map(str::trim);
        let (from, to) = fields.next()?.split_once('-')?;
        let (_rights, offset, _device, _inode) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let path = fields.next()?.to_owned();
        let (base, end) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let offset = u64::from_str_radix(offset, 16).ok()?;
        path.starts_with('/').then(|| Module { base, len: end.saturating_sub(base), offset, path })
    };
    maps.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_has_the_time_in_which_the_usable_processors_were_not_idle() {
        let stat = "cpu  11 3 8 1004 50 2 3 4 0 0\ncpu0 10 1 5 1000 50 2 3 4 0 0\ncpu12 1 2 3 4\nintr 5\n";
        assert_eq!(parse_stat(stat, |_| true), Some(310_000_000));
        assert_eq!(parse_stat(stat, |number| number == 0), Some(250_000_000));
        assert_eq!(parse_stat(stat, |number| number == 1), None);
        assert_eq!(parse_stat("intr 5", |_| true), None);
        assert_eq!(parse_stat("", |_| true), None);
        assert!(cpu_ns().is_none_or(|ns| ns > 0));
    }

    #[test]
    fn maps_are_read_line_by_line_and_paths_keep_their_spaces() {
        let maps = "5555-5655 r-xp 00001000 08:01 42                 /usr/bin/a program\n\
                    7000-8000 rw-p 00000000 00:00 0 \n\
                    7ffc0000-7ffd0000 rw-p 00000000 00:00 0          [stack]\nrubbish\n";
        let module = Module { base: 0x5555, len: 0x100, offset: 0x1000, path: "/usr/bin/a program".into() };
        assert_eq!(parse_maps(maps), [module]);
    }
}
