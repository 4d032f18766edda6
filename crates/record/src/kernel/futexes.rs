//! Futex waits of a running process, from the kernel's tracepoints.

use super::drain::{Drain, Sink, common, processors, u32_at, u64_at};
use super::tracepoints::Tracepoint;
use super::watch::{Off, for_each_thread, most_records, record, refused};
use crate::error::RecordError;
use perf_event::events::Tracepoint as Event;
use perf_event::{Builder, SampleFlag};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RING: usize = 64 << 10;
/// Bytes of the waiter's stack that the kernel records with a wait.
const STACK: u32 = 1024;
/// Maximum number of addresses kept from a stack.
const KEPT: usize = 24;
/// The stack pointer only: bit 7 in the kernel's numbering of registers on x86-64, bit 31 on Arm.
const REGISTERS: u64 = if cfg!(target_arch = "aarch64") { 1 << 31 } else { 1 << 7 };
const ENTER: u32 = 0;
const EXIT: u32 = 1;

/// A wait that a thread began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) word: u64,
    pub(super) is_lock: bool,
    /// The words of the thread's stack that point into code, the innermost first.
    pub(super) stack: Vec<u64>,
}

/// One action of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) ns: u64,
    pub(super) what: What,
}

/// The kind of a [`Step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// The thread began to wait.
    Begun(Begun),
    /// The thread woke waiters of this word. If the word belongs to a lock, the thread released the lock.
    Woke(u64),
    /// The thread returned from a futex call.
    Back,
}

/// The records of all threads, each in order of time.
#[derive(Debug, Default)]
pub(super) struct FutexRecords {
    pub(super) steps: HashMap<u32, Vec<Step>>,
    pub(super) off: HashMap<u32, Vec<Off>>,
    pub(super) lost: u64,
}

/// Memory for one record at the end of a recording: the addresses of a stack, and copies.
const BYTES_PER_RECORD: u64 = 512;

/// Records the futex calls and switches of a process.
pub(super) struct Watch {
    drain: Drain<Records>,
    is_full: Arc<AtomicBool>,
}

impl Watch {
    /// Starts to watch all present and future threads of the process; `code` is the address ranges of its
    /// code.
    pub(super) fn start(process: u32, code: Vec<Range<u64>>) -> Result<Self, RecordError> {
        let (enter, exit) =
            (Tracepoint::find("syscalls/sys_enter_futex")?, Tracepoint::find("syscalls/sys_exit_futex")?);
        let strange = || RecordError::Kernel {
            what: "the fields of its futex tracepoint",
            source: std::io::ErrorKind::Unsupported.into(),
        };
        let field = |name| enter.offset(name).ok_or_else(strange);
        let fields = [field("uaddr")?, field("op")?, field("val")?];
        let is_full = Arc::new(AtomicBool::new(false));
        let most = most_records(BYTES_PER_RECORD);
        let records = Records { fields, code, most, is_full: Arc::clone(&is_full), ..Records::default() };
        let watch = Self { drain: Drain::start(records)?, is_full };
        for_each_thread(process, |thread| {
            processors().into_iter().try_for_each(|cpu| watch.open(thread, cpu, &enter, &exit))
        })?;
        Ok(watch)
    }

    fn open(
        &self,
        thread: i32,
        cpu: usize,
        enter: &Tracepoint,
        exit: &Tracepoint,
    ) -> Result<(), RecordError> {
        let refused = |source| refused("tracepoints of another process", source);
        let mut builder = Builder::new(Event::with_id(enter.id));
        common(&mut builder, cpu)
            .observe_pid(thread)
            .include_kernel()
            .context_switch(true)
            .sample_period(1)
            .sample(SampleFlag::RAW)
            .sample_regs_user(REGISTERS)
            .sample_stack_user(STACK)
            .sample(SampleFlag::REGS_USER)
            .sample(SampleFlag::STACK_USER);
        self.drain.open(ENTER, &builder, RING).map_err(refused)?;
        let mut builder = Builder::new(Event::with_id(exit.id));
        common(&mut builder, cpu).observe_pid(thread).include_kernel().sample_period(1);
        self.drain.open(EXIT, &builder, RING / 4).map_err(refused)
    }

    pub(super) fn finish(self) -> FutexRecords {
        self.drain.finish().unwrap_or_default().sorted()
    }

    /// Returns `true` if more records would need too much memory.
    pub(super) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed) // Relaxed: a flag that publishes no other data
    }
}

#[derive(Debug, Default)]
struct Records {
    /// Offsets of the fields for address, operation and value in the raw data.
    fields: [usize; 3],
    code: Vec<Range<u64>>,
    steps: Vec<(u32, Step)>,
    switches: super::watch::Switches,
    lost: u64,
    /// Number of records after which `is_full` is set.
    most: Option<usize>,
    is_full: Arc<AtomicBool>,
}

impl Sink for Records {
    fn take(&mut self, source: u32, kind: u32, misc: u16, bytes: &[u8]) {
        match kind {
            record::SWITCH => self.switches.take(misc, bytes),
            record::LOST => self.lost += u64_at(bytes, 8),
            record::SAMPLE => {
                let (thread, ns) = (u32_at(bytes, 4), u64_at(bytes, 8));
                let what = match source {
                    ENTER => self.entered(bytes.get(16..).unwrap_or(&[])),
                    _ => Some(What::Back),
                };
                self.steps.extend(what.map(|what| (thread, Step { ns, what })));
            }
            _ => {}
        }
        if self.most.is_some_and(|most| self.steps.len() + self.switches.len() >= most) {
            self.is_full.store(true, Relaxed); // Relaxed: a flag that publishes no other data
        }
    }
}

impl Records {
    /// Decodes a record from behind the thread and the time: raw data, registers, stack. Returns `None` if
    /// the call neither waits nor wakes.
    fn entered(&self, bytes: &[u8]) -> Option<What> {
        let raw_len = u32_at(bytes, 0) as usize;
        let raw = bytes.get(4..4 + raw_len)?;
        let [word, operation, value] = self.fields.map(|at| u64_at(raw, at));
        if wakes(operation as u32) {
            return Some(What::Woke(word));
        }
        let is_lock = is_lock(operation as u32, value as u32)?;
        let mut rest = bytes.get((4 + raw_len).next_multiple_of(8)..)?;
        // The registers begin with their kind, which is 0 if there are none; the requested register follows.
        let registers = if u64_at(rest, 0) == 0 { 8 } else { 16 };
        rest = rest.get(registers..)?;
        let stack = rest.get(8..)?.get(..u64_at(rest, 0) as usize).unwrap_or(&[]);
        let words = stack.chunks_exact(8).map(|word| u64_at(word, 0));
        let stack =
            words.filter(|word| self.code.iter().any(|code| code.contains(word))).take(KEPT).collect();
        Some(What::Begun(Begun { word, is_lock, stack }))
    }

    fn sorted(mut self) -> FutexRecords {
        self.steps.sort_by_key(|(thread, step)| (*thread, step.ns));
        let mut seen =
            FutexRecords { off: self.switches.sorted(), lost: self.lost, ..FutexRecords::default() };
        for (thread, step) in self.steps {
            seen.steps.entry(thread).or_default().push(step);
        }
        seen
    }
}

/// Returns whether a futex call waits for a lock, or `None` if the call does not wait. The expected value
/// decides, as in the preload library: a lock with waiters has the value 2, or its highest bit is set.
fn is_lock(operation: u32, value: u32) -> Option<bool> {
    const COMMAND: u32 = 0x7f;
    const WAIT: u32 = 0;
    const LOCK_PI: u32 = 6;
    const WAIT_BITSET: u32 = 9;
    match operation & COMMAND {
        LOCK_PI => Some(true),
        WAIT | WAIT_BITSET => Some(value == 2 || (value >> 31 == 1 && value != u32::MAX)),
        _ => None,
    }
}

/// Returns `true` if a futex call wakes waiters.
fn wakes(operation: u32) -> bool {
    const WAKE: u32 = 1;
    const UNLOCK_PI: u32 = 7;
    const WAKE_BITSET: u32 = 10;
    matches!(operation & 0x7f, WAKE | UNLOCK_PI | WAKE_BITSET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_read_with_its_word_and_the_code_on_its_stack_and_cut_records_are_none() {
        let records = Records {
            fields: [8, 16, 24],
            code: std::iter::once(0x1000..0x2000).collect(),
            ..Records::default()
        };
        let raw = [7_u64, 0xabc0, 0x80, 2].map(u64::to_ne_bytes).concat();
        let mut bytes = (raw.len() as u32 + 4).to_ne_bytes().to_vec();
        bytes.extend(raw);
        bytes.extend([0; 4]); // padding, as the kernel's
        for word in [2_u64, 0x7fff_0000, 4 * 8, 5, 0x1234, 0x2000, 0x1fff, 4 * 8] {
            bytes.extend(word.to_ne_bytes());
        }
        let whole = Begun { word: 0xabc0, is_lock: true, stack: vec![0x1234, 0x1fff] };
        assert_eq!(records.entered(&bytes), Some(What::Begun(whole)));
        for len in 0..bytes.len() {
            let _ = records.entered(&bytes[..len]); // must not panic
        }
        bytes[4 + 16] = 0x81;
        assert_eq!(records.entered(&bytes), Some(What::Woke(0xabc0)));
        bytes[4 + 16] = 0x83;
        assert_eq!(records.entered(&bytes), None, "a requeue of a condition variable is neither");
        assert_eq!(
            (is_lock(1, 2), is_lock(0x189, 77), is_lock(0x80, 0x8000_0001)),
            (None, Some(false), Some(true))
        );
    }
}
