//! Facts about a recorded process, read from the kernel.

use azekura_trace::area::FOREIGN;
use rustix::process::{Pid, geteuid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the text of a file of `/proc`. The names of programs, threads and files in it may have any bytes:
/// the kernel cuts names of threads after 15 bytes, also within a character.
pub(crate) fn text(file: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns `true` if the process exists and has not ended, or if this is unknown: for a process of another
/// PID namespace.
pub(crate) fn is_alive(process: u32) -> bool {
    if process & FOREIGN != 0 {
        return true;
    }
    let Some(pid) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return false };
    // For a process of another user, the call fails with another error; such a process exists.
    let is_there = !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    let stat = || text(format!("/proc/{process}/stat"));
    is_there && stat().is_ok_and(|stat| !has_ended(&stat))
}

/// Returns `true` if a process with this `stat` file has ended and its parent has not read its exit status.
/// The state of a process is that of its first thread, which may end before the other threads.
fn has_ended(stat: &str) -> bool {
    /// Number of fields between the state and the number of threads.
    const BETWEEN: usize = 16;
    // The state follows the name, which is in parentheses and may contain any character.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let is_zombie = fields.next().is_some_and(|state| state.starts_with(['Z', 'X']));
    let threads: Option<u64> = fields.nth(BETWEEN).and_then(|threads| threads.parse().ok());
    is_zombie && threads.is_none_or(|threads| threads <= 1)
}

/// Returns `true` if the process has this thread, or if this is unknown, as in [`is_alive`].
pub(crate) fn has_thread(process: u32, thread: u32) -> bool {
    process & FOREIGN != 0 || Path::new(&format!("/proc/{process}/task/{thread}")).exists()
}

/// Returns the threads of a process. A thread that starts or ends during the call may be missing.
///
/// The kernel ends a listing early if the thread after which it continues has just ended (Linux 6.18). Such a
/// listing is shorter than the number of threads before it.
pub(crate) fn threads(process: u32) -> io::Result<BTreeSet<i32>> {
    /// Largest number of listings: threads may end during each of them.
    const MOST: usize = 100;
    let directory = format!("/proc/{process}/task");
    let mut threads = BTreeSet::new();
    for _ in 0..MOST {
        // The directory has two links more than the process has threads.
        let before = std::fs::metadata(&directory)?.nlink().saturating_sub(2);
        let mut listed = 0;
        for entry in std::fs::read_dir(&directory)? {
            threads.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
            listed += 1;
        }
        if listed >= before {
            break;
        }
    }
    Ok(threads)
}

/// Returns the CPU time of a thread, in ns. For a running thread, it may lack up to one tick of the kernel's
/// timer.
pub(crate) fn thread_cpu_ns(process: u32, thread: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    stat.split_whitespace().next()?.parse().ok()
}

/// Returns the name of a thread.
pub(crate) fn thread_name(process: u32, thread: u32) -> Option<String> {
    let name = text(format!("/proc/{process}/task/{thread}/comm")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// Returns the path of the program that the process runs.
pub(crate) fn executable(process: u32) -> Option<PathBuf> {
    of_any_thread(process, |directory| std::fs::read_link(directory.join("exe")).ok())
}

/// Returns the text of the process's `maps` file.
pub(crate) fn maps(process: u32) -> Option<String> {
    let read = |directory: &Path| text(directory.join("maps")).ok();
    of_any_thread(process, |directory| read(directory).filter(|text| !text.is_empty()))
}

/// Returns `true` if a process that is at most `age` old has mapped a file with this end of its path, or if
/// this is unknown: the mappings of a process of this user can be unreadable (`PR_SET_DUMPABLE`). Processes
/// of other users with unreadable mappings are not recorded by this user.
pub(crate) fn is_mapped(file: &Path, age: Duration) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let mut ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let end = file.as_os_str().as_encoded_bytes();
    let contains = |text: Vec<u8>| text.windows(end.len()).any(|part| part == end);
    ids.any(|process| {
        let mut is_hidden = false;
        let is_mapped = of_any_thread(process, |directory| match std::fs::read(directory.join("maps")) {
            Ok(text) => (!text.is_empty()).then(|| contains(text)),
            Err(error) => {
                is_hidden |= error.kind() == io::ErrorKind::PermissionDenied;
                None
            }
        });
        let may_map = || is_of_this_user(process) && age_of(process).is_none_or(|of| of <= age);
        is_mapped.unwrap_or_else(|| is_hidden && may_map())
    })
}

/// Returns `true` if the effective user of the process is this process's.
fn is_of_this_user(process: u32) -> bool {
    let status = text(format!("/proc/{process}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    user == Some(geteuid().as_raw())
}

/// Returns the time since the start of the process.
fn age_of(process: u32) -> Option<Duration> {
    /// Number of fields between the name and the start, in 1/100 s on every Linux ABI.
    const BETWEEN: usize = 19;
    let stat = text(format!("/proc/{process}/stat")).ok()?;
    let started: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(BETWEEN)?.parse().ok()?;
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?);
    Some(now.saturating_sub(Duration::from_millis(started * 10)))
}

/// Returns what `read` finds in the process's directory, or else in the directory of one of its threads:
/// after the end of the first thread, the files of the process itself are empty or unreadable.
fn of_any_thread<R>(process: u32, mut read: impl FnMut(&Path) -> Option<R>) -> Option<R> {
    let directory = PathBuf::from(format!("/proc/{process}"));
    read(&directory).or_else(|| {
        let mut threads = std::fs::read_dir(directory.join("task")).ok()?.flatten();
        threads.find_map(|thread| read(&thread.path()))
    })
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
    let status = text("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, Barrier};

    #[test]
    fn a_thread_is_listed_while_threads_before_it_end() {
        const THREADS: usize = 60;
        // Without the second listing, 8 of 100 rounds missed the thread.
        for _ in 0..200 {
            let (begun, end) = (Arc::new(Barrier::new(THREADS + 1)), Arc::new(AtomicBool::new(false)));
            let wait = || {
                let (begun, end) = (Arc::clone(&begun), Arc::clone(&end));
                std::thread::spawn(move || {
                    begun.wait();
                    while !end.load(Relaxed) {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                })
            };
            let others: Vec<_> = (0..THREADS).map(|_| wait()).collect();
            let (send, receive) = std::sync::mpsc::channel();
            let last = std::thread::spawn(move || {
                send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                std::thread::park();
            });
            let id = receive.recv().unwrap();
            begun.wait();
            end.store(true, Relaxed); // Relaxed: publishes no other data
            for _ in 0..20 {
                assert!(threads(std::process::id()).unwrap().contains(&id));
            }
            others.into_iter().for_each(|thread| thread.join().unwrap());
            last.thread().unpark();
            last.join().unwrap();
        }
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_has_not_ended_before_the_others() {
        let stat = |state: &str, threads: u32| {
            format!("77 (a Z) b) {state} 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 {threads} 0 13 0 0\n")
        };
        assert!(has_ended(&stat("Z", 1)) && has_ended(&stat("X", 0)));
        assert!(!has_ended(&stat("Z", 2)) && !has_ended(&stat("S", 1)) && !has_ended(""));
        assert!(!has_ended(&text("/proc/self/stat").unwrap()));
    }

    #[test]
    fn a_process_with_a_name_that_is_not_utf_8_is_alive() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join(OsStr::from_bytes(b"caf\xe9"));
        std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
        let mut child = Command::new(&program).arg0("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (is_alive, name) = (is_alive(child.id()), thread_name(child.id(), child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!((is_alive, name.as_deref()), (true, Some("caf\u{fffd}")));
    }

    #[test]
    fn the_age_of_a_process_is_known() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (own, of_child) = (age_of(std::process::id()).unwrap(), age_of(child.id()).unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(of_child <= own && own < Duration::from_secs(24 * 3600), "{of_child:?} {own:?}");
    }

    #[test]
    fn signals_that_this_process_ignores_are_known() {
        const PIPE: u32 = 13; // ignored by Rust's runtime
        const SEGV: u32 = 11;
        let is_ignored = |signal: u32| ignored_signals() >> (signal - 1) & 1 == 1;
        assert_eq!([PIPE, SEGV].map(is_ignored), [true, false]);
    }
}
