//! Recording a running process from outside: futex waits, switches, CPU time.
//!
//! Only waits in the kernel are visible, not holds. A contended lock is released with a wake-up, so each
//! wake-up of a lock's waiters counts as a release by the waking thread. A lock is named by its variable, or
//! otherwise by the place of its waits: the nearest address on the waiter's stack that follows a call
//! instruction, outside of the C library. This address is a guess, because the stack may contain stale words.
//! If the nearest function of the C library with a name is its allocator's (`malloc`, `free`), the wait is
//! for a lock of the allocator.
//!
//! The CPU time of a thread is read at the beginning and at the end of the recording. Between the two, it
//! grows while the thread is on a processor according to the kernel's records.

use super::futexes::{Begun, FutexRecords, Watch, What};
use super::merge::{CpuBetween, add_off};
use super::watch::Off;
use crate::allocators;
use crate::error::RecordError;
use crate::frames;
use crate::name::{CALLER, name};
use crate::process::{text, threads};
use crate::symbols::Symbols;
use azekura_trace::WaitKind;
use azekura_trace::event::{Event, EventKind, SWITCHED};
use azekura_trace::file::{
    ClockSample, CpuSource, Ending, Module, Name, SessionInfo, Switches, ThreadTrace, TimeSource, Trace,
};
use azekura_trace::parts::{CpuQuotas, processors};
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Records a running process until `goes_on` returns `false` or the process has ended. Calls `goes_on` every
/// 20 ms.
///
/// # Errors
///
/// [`RecordError::NoProcess`], [`RecordError::NotPermitted`], [`RecordError::Kernel`],
/// [`RecordError::NothingRecorded`].
pub fn attach(process: u32, mut goes_on: impl FnMut() -> bool) -> Result<Trace, RecordError> {
    raise_open_files();
    // Reading the file again returns the error.
    let maps = crate::process::maps(process)
        .map_or_else(|| text(format!("/proc/{process}/maps")), Ok)
        .map_err(|source| RecordError::NoProcess { process, source })?;
    let modules = modules(&maps);
    let code = modules
        .iter()
        .filter(|m| m.is_code || m.is_library_c)
        .map(|m| m.module.base..m.module.base + m.module.len);
    let watch = Watch::start(process, code.collect())?;
    let begin = Snapshot::now(process);
    let mut quotas = CpuQuotas::of(Some(process));
    let mut last = begin.clone();
    while goes_on() && !watch.is_full() {
        std::thread::sleep(Duration::from_millis(20));
        let now = Snapshot::now(process);
        if now.threads.is_empty() {
            break;
        }
        last = now;
    }
    let seen = watch.finish();
    quotas.read();
    if seen.off.is_empty() && seen.steps.is_empty() {
        return Err(RecordError::NothingRecorded);
    }
    let mut last = Snapshot { ns: monotonic_ns().max(last.ns), ..last };
    last.name_new(&begin);
    let builder = TraceBuilder { process, modules: &modules, begin, end: last, sites: BTreeMap::new() };
    Ok(name(Trace { quota: quotas.strictest(), ..builder.trace(&seen) }))
}

/// CPU time and name of each thread at one instant.
#[derive(Debug, Clone)]
struct Snapshot {
    ns: u64,
    threads: HashMap<u32, (u64, String)>,
}

impl Snapshot {
    /// Returns a snapshot without threads if the process has ended, also before its parent has read its exit
    /// status.
    fn now(process: u32) -> Self {
        let of = |thread: i32| {
            let read = |file: &str| text(format!("/proc/{process}/task/{thread}/{file}")).ok();
            let cpu = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
            Some((thread.unsigned_abs(), (cpu, read("comm")?.trim_end().to_owned())))
        };
        let is_alive = crate::process::is_alive(process);
        let threads = if is_alive { threads(process).unwrap_or_default() } else { BTreeSet::new() };
        Self { ns: monotonic_ns(), threads: threads.into_iter().filter_map(of).collect() }
    }

    fn cpu(&self) -> u64 {
        self.threads.values().map(|(cpu, _)| cpu).sum()
    }

    /// Adds the names of threads that have ended since `begin`.
    fn name_new(&mut self, begin: &Self) {
        for (thread, (cpu, name)) in &begin.threads {
            self.threads.entry(*thread).or_insert_with(|| (*cpu, name.clone()));
        }
    }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Raises the limit of open files to the maximum: several files are opened for each thread on each processor.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// A mapped file; `is_code` is set if it contains code that may be a caller of a wait, `is_library_c` if it
/// contains code of the C library.
struct Mapped {
    module: Module,
    is_code: bool,
    is_library_c: bool,
}

fn modules(maps: &str) -> Vec<Mapped> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let parse = |line: &str| {
        let mut fields = line.splitn(6, ' ').map(str::trim);
        let (from, to) = fields.next()?.split_once('-')?;
        let (rights, offset) = (fields.next()?, fields.next()?);
        let path = fields.nth(2)?.to_owned();
        let (base, end, offset) = (hex(from)?, hex(to)?, hex(offset)?);
        let file = path.rsplit('/').next().unwrap_or_default();
        let is_library_c =
            ["libc.so", "libc-", "ld-", "libpthread"].iter().any(|begin| file.starts_with(begin));
        let is_code = rights.contains('x') && !is_library_c;
        let is_library_c = rights.contains('x') && is_library_c;
        let module = Module { base, len: end.saturating_sub(base), offset, path };
        module.path.starts_with('/').then_some(Mapped { module, is_code, is_library_c })
    };
    maps.lines().filter_map(parse).collect()
}

/// Builds a trace from the kernel's records.
struct TraceBuilder<'m> {
    process: u32,
    modules: &'m [Mapped],
    begin: Snapshot,
    end: Snapshot,
    /// Site numbers, by name of the call and address of the caller.
    sites: BTreeMap<(&'static str, u64), u32>,
}

impl TraceBuilder<'_> {
    fn trace(mut self, seen: &FutexRecords) -> Trace {
        let mut operations = BTreeMap::new();
        let mut by_name: BTreeMap<String, u16> = BTreeMap::new();
        let mut tids: Vec<u32> = self.end.threads.keys().copied().collect();
        tids.extend(seen.steps.keys().filter(|tid| !self.end.threads.contains_key(tid)));
        tids.sort_unstable();
        let callers = Callers::new(self.modules);
        let locks = self.locks(seen, &callers);
        let mut threads = Vec::new();
        for (tag, tid) in (1..).zip(tids) {
            let name = self.end.threads.get(&tid).map_or_else(|| format!("thread {tid}"), |t| t.1.clone());
            let next = by_name.len() as u16 + 1;
            let operation = *by_name.entry(name.clone()).or_insert(next);
            operations.insert(operation, Name { name: name.clone(), file: String::new(), line: 0 });
            threads.push(self.thread(tag, tid, name, operation, seen, (&callers, &locks)));
        }
        let sample =
            |at: &Snapshot| ClockSample { ticks: at.ns, monotonic_ns: at.ns, process_cpu_ns: at.cpu() };
        let site = |((what, address), id): (&(&'static str, u64), &u32)| {
            (*id, Name { name: (*what).to_owned(), file: format!("@{address:x}"), line: 0 })
        };
        let mut trace = Trace {
            session: SessionInfo {
                time: TimeSource::Monotonic,
                cpu: CpuSource::Switches,
                hold_sampling: 1,
                event_cost_ps: 0,
                ticks_per_second: 1_000_000_000,
                process_id: self.process,
                processors: processors(),
                started_wall_ns: 0,
                label: format!("process {}", self.process),
            },
            begin: sample(&self.begin),
            end: sample(&self.end),
            sites: self.sites.iter().map(site).collect(),
            operations,
            threads,
            modules: self.modules.iter().map(|m| m.module.clone()).collect(),
            machine_cpu_ns: None,
            quota: None,
            switches: Switches::Recorded { lost: seen.lost },
            samples: Vec::new(),
            blocked: Vec::new(),
            faults: Vec::new(),
            unrecorded_threads: 0,
            frames: BTreeMap::new(),
            stacks: BTreeMap::new(),
            ending: Ending::Complete,
            damage: None,
        };
        add_off(&mut trace, &seen.off);
        trace
    }

    /// Returns, for each futex word of a lock, the call sites of the waits for it. A thread that releases the
    /// word ends waits at all of these sites.
    fn locks(&mut self, seen: &FutexRecords, callers: &Callers) -> Locks {
        let mut locks = Locks::new();
        // In order of thread ids, so that site numbers do not depend on the order of the hash map.
        let steps: BTreeMap<_, _> = seen.steps.iter().collect();
        for step in steps.into_values().flatten() {
            if let What::Begun(begun) = &step.what
                && begun.is_lock
            {
                let site = self.site("futex", callers.of(begun).first().copied().unwrap_or(0));
                let sites = locks.entry(begun.word).or_default();
                if !sites.contains(&site) {
                    sites.push(site);
                }
            }
        }
        locks
    }

    fn thread(
        &mut self,
        tag: u32,
        tid: u32,
        name: String,
        operation: u16,
        seen: &FutexRecords,
        (callers, locks): (&Callers, &Locks),
    ) -> ThreadTrace {
        let off = seen.off.get(&tid).map_or(&[][..], Vec::as_slice);
        let steps = seen.steps.get(&tid).map_or(&[][..], Vec::as_slice);
        let cpu = self.cpu(tid, off);
        let mut events = Vec::new();
        // Each event gets an anchor of its own.
        let mut tell = |ns: u64, event: Event| {
            let object = cpu.at(ns).unwrap_or(0);
            events.push(Event { object, flags: SWITCHED, ..Event::new(ns, EventKind::Anchor) });
            events.push(Event { ticks: ns, operation, ..event });
        };
        let (begin, end) = (self.begin.ns, self.end.ns);
        tell(begin, Event::new(begin, EventKind::Enter));
        let mut open: Option<(u32, u64)> = None;
        for step in steps.iter().filter(|s| (begin..=end).contains(&s.ns)) {
            if let Some((site, object)) = open.take() {
                tell(step.ns, Event { site, object, ..Event::new(step.ns, EventKind::WaitEnd) });
            }
            let begun = match &step.what {
                What::Back => continue,
                What::Woke(word) => {
                    for &site in locks.get(word).into_iter().flatten() {
                        let release = Event::new(step.ns, EventKind::Release);
                        tell(step.ns, Event { site, object: *word, ..release });
                    }
                    continue;
                }
                What::Begun(begun) => begun,
            };
            let from = callers.of(begun);
            let site = self.site("futex", from.first().copied().unwrap_or(0));
            for address in from.iter().skip(1) {
                let site = self.site(CALLER, *address);
                tell(step.ns, Event { site, object: begun.word, ..Event::new(step.ns, EventKind::Mark) });
            }
            let kind = if begun.is_lock { WaitKind::Other } else { WaitKind::Idle };
            let wait = Event {
                site,
                object: begun.word,
                argument: kind as u64,
                ..Event::new(0, EventKind::WaitBegin)
            };
            tell(step.ns, wait);
            open = Some((site, begun.word));
        }
        if let Some((site, object)) = open {
            tell(end, Event { site, object, ..Event::new(end, EventKind::WaitEnd) });
        }
        tell(end, Event::new(end, EventKind::Exit));
        ThreadTrace { tag, os_id: tid, name, cpu: CpuSource::Switches, lost: 0, events, off: Vec::new() }
    }

    fn cpu(&self, tid: u32, off: &[Off]) -> CpuBetween {
        let at = |moment: &Snapshot| moment.threads.get(&tid).map(|t| t.0);
        let first = at(&self.begin).unwrap_or(0);
        CpuBetween::between(
            (self.begin.ns, first),
            (self.end.ns, at(&self.end).unwrap_or(first).max(first)),
            off,
        )
    }

    fn site(&mut self, what: &'static str, address: u64) -> u32 {
        let next = self.sites.len() as u32 + 1;
        *self.sites.entry((what, address)).or_insert(next)
    }
}

/// Site numbers by futex word.
type Locks = HashMap<u64, Vec<u32>>;

/// Largest number of return addresses of a wait.
const CALLERS: usize = 12;

/// Code by its address in memory.
type Code = Vec<(u64, Vec<u8>)>;

/// Distinguishes return addresses from other words of a stack.
struct Callers {
    code: Code,
    library_c: Code,
    symbols: Symbols,
    /// For addresses in the C library: whether the function is the allocator's; `None` without a name.
    in_allocator: RefCell<HashMap<u64, Option<bool>>>,
}

impl Callers {
    fn new(modules: &[Mapped]) -> Self {
        let read = |mapped: &Mapped| {
            let Module { base, offset, len, ref path } = mapped.module;
            let parts = crate::elf::Parts::open(std::path::Path::new(path)).ok()?;
            Some((base, parts.bytes(offset..offset.saturating_add(len))?.to_vec()))
        };
        let files: Vec<Module> = modules.iter().map(|m| m.module.clone()).collect();
        Self {
            code: modules.iter().filter(|m| m.is_code).filter_map(read).collect(),
            library_c: modules.iter().filter(|m| m.is_library_c).filter_map(read).collect(),
            symbols: Symbols::new(&files),
            in_allocator: RefCell::default(),
        }
    }

    /// Returns the nearest return addresses: at most one in the C library's allocator, and those of other
    /// code. The kernel does not unwind, so some may be stale words.
    fn of(&self, begun: &Begun) -> Vec<u64> {
        let own = begun.stack.iter().copied().filter(|address| is_behind_a_call(&self.code, *address));
        self.allocator(begun).into_iter().chain(own.take(CALLERS)).collect()
    }

    /// Returns the nearest return address in a function with a name if it is in the C library's allocator.
    /// Words further out may be stale.
    fn allocator(&self, begun: &Begun) -> Option<u64> {
        for address in begun.stack.iter().copied() {
            if is_behind_a_call(&self.code, address) {
                return None;
            }
            if is_behind_a_call(&self.library_c, address)
                && let Some(is_allocator) = self.is_in_allocator(address)
            {
                return is_allocator.then_some(address);
            }
        }
        None
    }

    fn is_in_allocator(&self, address: u64) -> Option<bool> {
        *self.in_allocator.borrow_mut().entry(address).or_insert_with(|| {
            let place = self.symbols.code(address - 1);
            let has_name = !place.function.contains("+0x");
            has_name.then(|| allocators::of(&place).is_some())
        })
    }
}

fn is_behind_a_call(code: &Code, address: u64) -> bool {
    code.iter().any(|(base, code)| {
        let at = address.checked_sub(*base).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| code.get(at.saturating_sub(frames::LONGEST_CALL as usize)..at))
            .is_some_and(frames::follows_call)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_has_no_threads_while_its_parent_does_not_wait() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        let stat = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(Snapshot::now(process).threads.is_empty());
        child.wait().unwrap();
        assert!(!Snapshot::now(std::process::id()).threads.is_empty());
    }

    #[test]
    fn the_c_library_calls_for_others() {
        let maps = "1000-2000 r-xp 00001000 08:01 42    /usr/lib/libc.so.6\n\
                    3000-4000 r-xp 00000000 08:01 43    /usr/bin/server\n5000-6000 rw-p 00000000 00:00 0\n";
        let modules = modules(maps);
        assert_eq!(
            modules.iter().map(|m| (m.module.base, m.is_code)).collect::<Vec<_>>(),
            [(0x1000, false), (0x3000, true)]
        );
    }
}
