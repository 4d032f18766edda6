//! Samples of the recorded threads at equal intervals of time: waits in calls without a probe.
//!
//! Libraries wait by system calls of their own: the C library for the locks of its allocator and its streams,
//! OpenMP's library for its barriers, liburing for completions. No hook sees these calls. The kernel reports
//! the system call, the stack pointer and the program counter of each thread that waits
//! (`/proc/PID/task/TID/syscall`), to the parent of the program and to root. It does not stop the thread.
//! Threads in a call with a probe are left out ([`ThreadSlot::waiting`](azekura_trace::area::ThreadSlot)).
//!
//! A wait is named by the system call, the library with the program counter, the function of this library
//! that was called from outside, and the caller. The kernel does not unwind, so callers are words of the
//! stack that follow a call instruction.

use crate::directory::LIBRARY_FILE;
use crate::frames::{self, Stack};
use crate::name::Sites;
use crate::process::text;
use crate::symbols::{Place, Symbols};
use azekura_trace::file::{CpuSample, Name, Trace};
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes of a stack that are searched for callers: `fprintf` to a stream without a buffer has a buffer of 8
/// KiB in its frame.
const STACK_BYTES: usize = 12 << 10;
/// Largest number of words that may be callers of a wait.
const CALLERS: usize = 32;
/// Largest number of different stacks of all threads of a process. Further ones are kept without callers, up
/// to the second number; then they are left out, so that a long recording takes at most 10 MB for them.
const MOST_STACKS: usize = 4096;
const MOST_WITHOUT_CALLERS: usize = 1 << 16;

/// The samples of a process.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Number of samples by thread and stack. A stack consists of the system call, the program counter and
    /// words that may be callers; it is empty for a thread that ran or was in a recorded wait.
    counts: HashMap<(u32, Stack), u64>,
    /// Addresses of the process's code.
    code: Vec<Range<u64>>,
}

/// The kernel's report of a thread that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    /// Number of the system call; -1 if the thread waits outside of system calls.
    call: i64,
    stack_pointer: u64,
    program_counter: u64,
}

impl Wait {
    /// Returns `None` if the thread runs.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace();
        let call = fields.next()?.parse().ok()?;
        let hex = |field: Option<&str>| u64::from_str_radix(field?.strip_prefix("0x")?, 16).ok();
        let program_counter = hex(fields.next_back())?;
        Some(Self { call, stack_pointer: hex(fields.next_back())?, program_counter })
    }
}

impl Blocked {
    /// Samples a thread, which is in a call with a probe if `waiting` is not 0. Returns the text of the
    /// process's `maps` file if the thread waits in code that was not mapped before.
    pub(crate) fn sample(
        &mut self,
        (process, thread, tag): (u32, u32, u32),
        waiting: &AtomicU32,
    ) -> Option<String> {
        // Relaxed: a hint, which publishes no other data.
        let is_recorded = || waiting.load(Relaxed) != 0;
        let (mut stack, mut maps) = (Vec::new(), None);
        if !is_recorded() {
            // The thread may have ended, or the process may not be readable.
            let state = text(format!("/proc/{process}/task/{thread}/syscall")).ok()?;
            if let Some(wait) = Wait::parse(&state).filter(|_| !is_recorded()) {
                if !self.is_code(wait.program_counter) {
                    maps = crate::process::maps(process);
                    self.code = maps.as_deref().map(code).unwrap_or_default();
                }
                stack = vec![wait.call as u64, wait.program_counter];
                let callers = self.callers(process, wait.stack_pointer);
                // Without a change meanwhile, the words are those of this wait.
                if text(format!("/proc/{process}/task/{thread}/syscall")).is_ok_and(|now| now == state) {
                    stack.extend(callers);
                }
            }
        }
        if self.counts.len() >= MOST_STACKS {
            stack.truncate(2);
        }
        let is_full = self.counts.len() >= MOST_WITHOUT_CALLERS;
        match self.counts.entry((tag, stack)) {
            Entry::Occupied(mut entry) => *entry.get_mut() += 1,
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(entry) => _ = entry.insert(1),
        }
        maps
    }

    fn is_code(&self, address: u64) -> bool {
        self.code.iter().any(|code| code.contains(&address))
    }

    /// Returns the words of a stack that point into code, the innermost first.
    fn callers(&self, process: u32, stack_pointer: u64) -> Stack {
        let mut bytes = [0; STACK_BYTES];
        let memory = File::open(format!("/proc/{process}/mem"));
        let read = memory.and_then(|memory| memory.read_at(&mut bytes, stack_pointer)).unwrap_or(0);
        let words = bytes[..read].chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
        words.filter(|word| self.is_code(*word)).take(CALLERS).collect()
    }
}

/// Returns the address ranges of code in the text of a `maps` file.
fn code(maps: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let mut fields = line.split(' ');
        let (from, to) = fields.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        fields.next()?.contains('x').then_some(address(from)?..address(to)?)
    };
    maps.lines().filter_map(range).collect()
}

/// Adds the samples to the trace, each at the site of its wait.
pub(crate) fn name(trace: &mut Trace, symbols: &Symbols, sites: &mut Sites, blocked: &Blocked) {
    let mut by_stack: BTreeMap<&Stack, u64> = BTreeMap::new();
    blocked.counts.iter().for_each(|((_, stack), count)| *by_stack.entry(stack).or_default() += count);
    // A site has the line of its most frequent stack, so that stack is processed first.
    let mut order: Vec<(&Stack, u64)> = by_stack.into_iter().collect();
    order.sort_by_key(|(stack, count)| (Reverse(*count), *stack));
    let mut namer = Namer { symbols, program: &trace.session.label, frames: HashMap::new() };
    let mut lines: HashMap<(String, String), u32> = HashMap::new();
    let mut ids: HashMap<&Stack, u32> = HashMap::new();
    for (stack, _) in order {
        let id = namer.site(stack).map_or(0, |name| {
            let line = *lines.entry((name.name.clone(), name.file.clone())).or_insert(name.line);
            sites.id(Name { line, ..name })
        });
        ids.insert(stack, id);
    }
    let mut joined: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for ((tag, stack), count) in &blocked.counts {
        *joined.entry((*tag, ids[stack])).or_default() += count;
    }
    let sample = |((tag, site), count)| CpuSample { tag, address: 0, site, count };
    trace.blocked = joined.into_iter().map(sample).collect();
}

/// Names the waits of a process.
struct Namer<'s> {
    symbols: &'s Symbols,
    /// The name of the program's file.
    program: &'s str,
    /// Frames of the words found so far; none for a word that is no return address.
    frames: HashMap<u64, Vec<Place>>,
}

impl Namer<'_> {
    /// Returns the name of a wait; `None` for a stack without a wait.
    fn site(&mut self, stack: &[u64]) -> Option<Name> {
        let (&[call, counter], words) = stack.split_first_chunk()?;
        // The program counter of a system call is behind the instruction.
        let counter = counter.saturating_sub(u64::from(call as i64 >= 0));
        let library = self.symbols.library(counter);
        let mut inside = self.symbols.frames(counter);
        let mut outside = Vec::new();
        for &word in words {
            let of = self.symbols.library(word);
            let frames = self.frames_of(word);
            if of == library {
                inside.extend_from_slice(frames);
            } else if !of.is_some_and(is_passed_over) {
                outside.extend_from_slice(frames);
                if outside.iter().any(frames::is_own) {
                    break;
                }
            }
        }
        Some(named(call as i64, library.filter(|library| *library != self.program), &inside, &outside))
    }

    fn frames_of(&mut self, word: u64) -> &[Place] {
        let symbols = self.symbols;
        self.frames.entry(word).or_insert_with(|| {
            let before = symbols.bytes(word, frames::LONGEST_CALL).unwrap_or_default();
            let until = word.checked_sub(before.0).and_then(|at| usize::try_from(at).ok());
            let follows_call = until.and_then(|at| before.1.get(..at)).is_some_and(frames::follows_call);
            if follows_call { symbols.frames(word.saturating_sub(1)) } else { Vec::new() }
        })
    }
}

/// Returns `true` for the loader and the recorder's library: earlier calls of them left words on the stack.
fn is_passed_over(library: &str) -> bool {
    library.starts_with("ld-") || library == LIBRARY_FILE
}

/// Returns the name of a wait in a library, or in the program if that is `None`. `inside` are the frames
/// there, `outside` the others, both innermost first.
fn named(call: i64, library: Option<&str>, inside: &[Place], outside: &[Place]) -> Name {
    let call = CALLS.iter().find(|(number, _)| *number == call).map_or_else(
        || if call < 0 { "page fault or stop".into() } else { format!("system call {call}") },
        |(_, name)| (*name).to_owned(),
    );
    let Some(library) = library else {
        let own = frames::own(inside);
        return Name { name: format!("{call} in {}", own.function), file: own.file, line: own.line };
    };
    // The outermost function of the library was called from outside, unless it starts threads.
    let called = inside.iter().take_while(|frame| !frames::is_start(&frame.function));
    let mut name = match called.filter(|frame| frames::is_named(&frame.function)).last() {
        Some(frame) if frame.function == call => format!("{call} of {library}"),
        Some(frame) => format!("{call} in {} of {library}", frame.function),
        None => format!("{call} in {library}"),
    };
    let Some(caller) = outside.iter().find(|frame| frames::is_own(frame)) else {
        return Name { name, file: String::new(), line: 0 };
    };
    name += ", called from ";
    name += &caller.function;
    Name { name, file: caller.file.clone(), line: caller.line }
}

/// Names of system calls in which threads wait.
const CALLS: &[(i64, &str)] = &[
    (libc::SYS_futex, "futex"),
    (libc::SYS_futex_waitv, "futex_waitv"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_io_getevents, "io_getevents"),
    (libc::SYS_read, "read"),
    (libc::SYS_readv, "readv"),
    (libc::SYS_pread64, "pread"),
    (libc::SYS_preadv, "preadv"),
    (libc::SYS_preadv2, "preadv2"),
    (libc::SYS_write, "write"),
    (libc::SYS_writev, "writev"),
    (libc::SYS_pwrite64, "pwrite"),
    (libc::SYS_pwritev, "pwritev"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_fsync, "fsync"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_sync, "sync"),
    (libc::SYS_syncfs, "syncfs"),
    (libc::SYS_copy_file_range, "copy_file_range"),
    (libc::SYS_sendfile, "sendfile"),
    (libc::SYS_splice, "splice"),
    (libc::SYS_tee, "tee"),
    (libc::SYS_vmsplice, "vmsplice"),
    (libc::SYS_fallocate, "fallocate"),
    (libc::SYS_ftruncate, "ftruncate"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_close, "close"),
    (libc::SYS_unlinkat, "unlinkat"),
    (libc::SYS_renameat2, "renameat2"),
    (libc::SYS_getdents64, "getdents64"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_fcntl, "fcntl"),
    (libc::SYS_flock, "flock"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_accept, "accept"),
    (libc::SYS_accept4, "accept4"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    (libc::SYS_recvmmsg, "recvmmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendmmsg, "sendmmsg"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pselect6, "pselect"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_epoll_pwait2, "epoll_pwait2"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, "epoll_wait"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, "poll"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_select, "select"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_pause, "pause"),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, "vfork"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_rt_sigsuspend, "sigsuspend"),
    (libc::SYS_rt_sigtimedwait, "sigtimedwait"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_waitid, "waitid"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_brk, "brk"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_execve, "execve"),
    (libc::SYS_getrandom, "getrandom"),
    (libc::SYS_membarrier, "membarrier"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_report_of_a_thread_is_a_wait_or_none() {
        let wait = Wait { call: 202, stack_pointer: 0x007f_fe10, program_counter: 0x007f_0123 };
        let text = "202 0x7f00 0x80 0x2 0x0 0x0 0x0 0x7ffe10 0x7f0123\n";
        assert_eq!(Wait::parse(text), Some(wait));
        assert_eq!(Wait::parse("-1 0x7ffe10 0x7f0123\n"), Some(Wait { call: -1, ..wait }));
        assert_eq!([Wait::parse("running\n"), Wait::parse(""), Wait::parse("202 0x1")], [None; 3]);
    }

    #[test]
    fn a_wait_in_a_library_is_named_by_the_function_that_the_program_called() {
        let place =
            |function: &str, file: &str, line| Place { function: function.into(), file: file.into(), line };
        let libc = |function: &str| place(function, "/usr/lib/libc.so.6", 0);
        let inside = [libc("__lll_lock_wait_private"), libc("libc.so.6+0x9a000"), libc("malloc")];
        let outside =
            [libc("std::string::append"), place("churn", "arena.c", 7), place("main", "arena.c", 30)];
        let name = named(libc::SYS_futex, Some("libc.so.6"), &inside, &outside);
        assert_eq!((&*name.name, name.line), ("futex in malloc of libc.so.6, called from churn", 7));
        let thread = [libc("vfork"), libc("start_thread"), libc("__GI___clone3")];
        assert_eq!(
            named(libc::SYS_futex, Some("libc.so.6"), &thread, &[]).name,
            "futex in vfork of libc.so.6"
        );
        let of_wrapper = named(libc::SYS_splice, Some("libc.so.6"), &[libc("splice")], &[]);
        assert_eq!(of_wrapper.name, "splice of libc.so.6");
        assert_eq!(named(9_999, Some("a.so"), &[libc("a.so+0x1")], &[]).name, "system call 9999 in a.so");
        let own = named(libc::SYS_io_uring_enter, None, &outside[1..], &[]);
        assert_eq!((&*own.name, own.line), ("io_uring_enter in churn", 7));
    }

    #[test]
    fn only_executable_mappings_are_code() {
        let maps =
            "1000-2000 r-xp 0 08:01 4 /bin/x\n2000-3000 rw-p 0 08:01 4 /bin/x\n5000-5800 rwxp 0 00:00 0\n";
        assert_eq!(code(maps), [0x1000..0x2000, 0x5000..0x5800]);
    }
}
