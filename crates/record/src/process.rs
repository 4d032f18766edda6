//! Facts about a recorded process, read from the kernel.

use azekura_trace::area::FOREIGN;
use rustix::process::{Pid, test_kill_process};
use std::path::{Path, PathBuf};

/// Returns `true` if the process exists and has not ended, or if this is unknown: for a process of another
/// PID namespace.
pub(crate) fn is_alive(process: u32) -> bool {
    if process & FOREIGN != 0 {
        return true;
    }
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    // For a process of another user, the call fails with another error; such a process exists.
    let is_there = !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    is_there && !is_zombie(process)
}

/// Returns `true` if the process has ended and its parent has not read its exit status.
fn is_zombie(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    // The state follows the name, which is in parentheses and may contain any character.
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// Returns `true` if the process has this thread, or if this is unknown, as in [`is_alive`].
pub(crate) fn has_thread(process: u32, thread: u32) -> bool {
    process & FOREIGN != 0 || Path::new(&format!("/proc/{process}/task/{thread}")).exists()
}

/// Returns the CPU time of a thread, in ns. For a running thread, it may lack up to one tick of the kernel's
/// timer.
pub(crate) fn thread_cpu_ns(process: u32, thread: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

/// Returns the name of a thread.
pub(crate) fn thread_name(process: u32, thread: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/comm")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// Returns the path of the program that the process runs.
pub(crate) fn executable(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

/// Returns the text of the process's `maps` file.
pub(crate) fn maps(process: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{process}/maps")).ok().filter(|text| !text.is_empty())
}

/// Returns the path of the program that the process runs, a newline, and the text of its `maps` file.
pub(crate) fn exe_and_maps(process: u32) -> Option<Vec<u8>> {
    let mut text = executable(process)?.into_os_string().into_encoded_bytes();
    text.push(b'\n');
    text.extend(maps(process)?.into_bytes());
    Some(text)
}

/// Returns the signals that this process ignores: bit n - 1 is set for signal n.
pub(crate) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_this_process_ignores_are_known() {
        const PIPE: u32 = 13; // ignored by Rust's runtime
        const SEGV: u32 = 11;
        let is_ignored = |signal: u32| ignored_signals() >> (signal - 1) & 1 == 1;
        assert_eq!([PIPE, SEGV].map(is_ignored), [true, false]);
    }
}
