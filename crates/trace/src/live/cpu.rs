//! Detection of context switches: a thread determines by one load if it has left its CPU since its last event
//! (hazards T1, T5).
//!
//! The kernel clears a thread's `rseq_cs` pointer whenever the thread returns to user mode after a preemption
//! or a blocking call, unless it is inside the critical section that the pointer describes. The recorder sets
//! the pointer to the description of a section that no thread ever enters. While the pointer is unchanged,
//! the thread ran without a break, so its CPU time advanced like its clock. When the pointer is cleared, the
//! recorder reads the thread's CPU clock once (200 ns, an *anchor*) and sets the pointer again. So the CPU
//! time at every event costs one load.
//!
//! Other users of restartable sequences overwrite the pointer, which causes additional anchors but no missing
//! ones. Kernels differ: [`rseq_works`] tests the method, and the thread clock replaces it if necessary.
//!
//! - **RSEQ-1** The descriptor and the signature of its abort handler are statics, so they outlive every
//!   thread.
//! - **RSEQ-2** The word is thread-local; only its own thread, and the kernel on that thread's behalf, access
//!   it.
//! - **RSEQ-3** The word is used only if the thread library reports that it registered the area with the
//!   kernel.

use super::clock;
use std::time::Duration;

/// The word that shows if a thread has left its CPU. Belongs to the thread that created it.
#[derive(Debug)]
pub(super) struct SwitchWord {
    word: *mut u64,
    /// The word's value while the thread has not left its CPU.
    armed: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The kernel's `rseq_cs` word of the thread.
    Rseq,
    /// A constant, which is never armed.
    Fixed,
}

static ZERO: u64 = 0;

impl SwitchWord {
    /// Returns the calling thread's word, if the thread library has registered one.
    pub(super) fn of_thread() -> Option<Self> {
        let (word, armed) = rseq::word_and_descriptor()?;
        Some(Self { word, armed, kind: Kind::Rseq })
    }

    /// Returns a word that always means "not left", for recordings without CPU time.
    pub(super) fn never_left() -> Self {
        Self { word: (&raw const ZERO).cast_mut(), armed: 0, kind: Kind::Fixed }
    }

    /// Returns a word that always means "left", so that every event reads the thread clock.
    pub(super) fn always_left() -> Self {
        Self { word: (&raw const ZERO).cast_mut(), armed: 1, kind: Kind::Fixed }
    }

    /// Returns a word that a test clears in the place of the kernel. It is alive as long as the result.
    #[cfg(test)]
    pub(super) fn of_test(word: *mut u64) -> Self {
        Self { word, armed: 1, kind: Kind::Rseq }
    }

    /// Returns `true` if the kernel reports switches; otherwise the word is a constant.
    pub(super) fn is_rseq(&self) -> bool {
        self.kind == Kind::Rseq
    }

    /// Returns `true` if the thread has run without a break since [`SwitchWord::arm`].
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        // SAFETY: RSEQ-2 and RSEQ-3, or the static ZERO; aligned and alive in both cases. Volatile: the
        // kernel writes the word.
        unsafe { self.word.read_volatile() == self.armed }
    }

    /// Sets the word, so that the next switch shows.
    pub(super) fn arm(&self) {
        if self.kind == Kind::Rseq {
            // SAFETY: as in `is_armed`; by RSEQ-1 the descriptor exists as long as the word has its address.
            unsafe { self.word.write_volatile(self.armed) }
        }
    }
}

impl Drop for SwitchWord {
    fn drop(&mut self) {
        if self.kind == Kind::Rseq && self.is_armed() {
            // SAFETY: as in `arm`. Clears the word when recording ends on this thread.
            unsafe { self.word.write_volatile(0) }
        }
    }
}

/// Returns `true` if a switch of this thread shows in its word. Tests this with a sleep of a millisecond.
pub(super) fn rseq_works() -> bool {
    let Some(word) = SwitchWord::of_thread() else { return false };
    let stays = (0..100).any(|_| {
        word.arm();
        let _ = clock::monotonic_ns();
        word.is_armed()
    });
    word.arm();
    std::thread::sleep(Duration::from_millis(1));
    stays && !word.is_armed()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod rseq {
    use std::sync::OnceLock;

    /// The kernel's `struct rseq_cs`, version 0.
    #[repr(C, align(32))]
    struct Descriptor {
        version: u32,
        flags: u32,
        start: *const u8,
        length: u64,
        abort: *const u8,
    }

    // SAFETY: the descriptor is immutable; the kernel compares its pointers, and no code here dereferences
    // them.
    unsafe impl Sync for Descriptor {}

    /// An abort handler with the signature that must precede it (glibc's value on x86). The handler is never
    /// entered, but the kernel checks the signature when it reads the descriptor.
    #[repr(C, align(8))]
    struct AbortHandler {
        signature: u32,
        code: u32,
    }

    static ABORT_HANDLER: AbortHandler = AbortHandler { signature: 0x5305_3053, code: 0 };
    static SECTION: [u8; 8] = [0; 8];

    /// The descriptor of a section of one byte of data, which no thread executes.
    static DESCRIPTOR: Descriptor = Descriptor {
        version: 0,
        flags: 0,
        start: (&raw const SECTION).cast(),
        length: 1,
        abort: (&raw const ABORT_HANDLER.code).cast(),
    };

    /// Returns the distance of the registered area from the thread pointer, which glibc 2.35 and later
    /// export.
    fn area_offset() -> Option<isize> {
        static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            // SAFETY: dlsym takes a NUL-terminated name and returns null for an unknown one.
            let (size, offset) = unsafe {
                (
                    libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()),
                    libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()),
                )
            };
            if size.is_null() || offset.is_null() {
                return None;
            }
            // SAFETY: glibc documents the two symbols as `const unsigned int` and `const ptrdiff_t`.
            let (size, offset) = unsafe { (*size.cast::<u32>(), *offset.cast::<isize>()) };
            (size > 0).then_some(offset)
        })
    }

    /// Returns the calling thread's `rseq_cs` word and the value that arms it; `None` if it is not
    /// registered.
    pub(super) fn word_and_descriptor() -> Option<(*mut u64, u64)> {
        let offset = area_offset()?;
        let thread_pointer: *mut u8;
        // SAFETY: on x86-64 the word at fs:0 is the thread pointer itself (the ABI's TLS variant II).
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer,
                options(nostack, preserves_flags, readonly));
        }
        // SAFETY: RSEQ-3: glibc keeps the area at this offset of every thread, whether registered or not.
        let area = unsafe { thread_pointer.offset(offset) };
        // SAFETY: `struct rseq`: cpu_id_start u32, cpu_id u32, rseq_cs u64, aligned to 32.
        let cpu_id = unsafe { area.cast::<i32>().add(1).read_volatile() };
        if cpu_id < 0 {
            return None; // not registered with the kernel, or refused
        }
        // SAFETY: `rseq_cs` is at offset 8 of the same structure.
        Some((unsafe { area.add(8).cast() }, (&raw const DESCRIPTOR) as u64))
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod rseq {
    pub(super) fn word_and_descriptor() -> Option<(*mut u64, u64)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constant_words_never_change() {
        let (never, always) = (SwitchWord::never_left(), SwitchWord::always_left());
        assert!(never.is_armed() && !always.is_armed());
        never.arm();
        always.arm();
        assert!(never.is_armed() && !always.is_armed());
        assert!(!never.is_rseq());
    }

    #[test]
    fn t5_where_the_self_test_passes_every_sleep_shows() {
        if !rseq_works() {
            return; // this kernel or libc has no rseq; the thread clock is used
        }
        let word = SwitchWord::of_thread().expect("the self-test found it");
        for _ in 0..20 {
            word.arm();
            std::thread::sleep(Duration::from_micros(100));
            assert!(!word.is_armed());
        }
    }

    #[test]
    fn other_threads_have_words_of_their_own() {
        let Some(mine) = SwitchWord::of_thread() else { return };
        let (mine, theirs) = (
            mine.word as usize,
            std::thread::spawn(|| SwitchWord::of_thread().map(|w| w.word as usize)).join().unwrap(),
        );
        assert_ne!(Some(mine), theirs);
    }
}
