//! Has this thread left its CPU since the last event? One load (hazards T1, T5).
//!
//! The kernel clears a thread's `rseq_cs` pointer whenever the thread returns to user mode after a preemption
//! or a blocking call, unless it is inside the critical section that the pointer describes. The pointer is
//! kept at the description of a section that no thread ever enters. While it is unchanged, the thread ran
//! without a break, so its CPU time advanced as its clock did. When it is cleared, the thread's CPU clock is
//! read once (200 ns, an *anchor*) and the pointer is set again. So CPU time is known at every event at the
//! price of one load.
//!
//! Others that use restartable sequences overwrite the pointer: we then take an anchor too many, never one
//! too few. Kernels differ and change: [`rseq_works`] tries it, and the thread clock stands in.
//!
//! - **RSEQ-1** The descriptor and its landing signature are statics: they outlive every thread.
//! - **RSEQ-2** The word is thread-local; only its own thread, and the kernel on that thread's behalf, touch
//!   it.
//! - **RSEQ-3** The word is used only if the thread library reports that it registered the area with the
//!   kernel.

use super::clock;
use std::time::Duration;

/// The word by which one thread learns whether it left its CPU. Belongs to the thread that made it.
#[derive(Debug)]
pub(super) struct SwitchWord {
    word: *mut u64,
    /// The word's value while the thread has not left its CPU.
    armed: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The kernel's word.
    Rseq,
    /// A constant: nothing to arm.
    Fixed,
}

static ZERO: u64 = 0;

impl SwitchWord {
    /// The calling thread's word, if its thread library registered one.
    pub(super) fn of_thread() -> Option<Self> {
        let (word, armed) = rseq::word_and_descriptor()?;
        Some(Self { word, armed, kind: Kind::Rseq })
    }

    /// A word that always means "not left": for recordings without CPU time.
    pub(super) fn never_left() -> Self {
        Self { word: (&raw const ZERO).cast_mut(), armed: 0, kind: Kind::Fixed }
    }

    /// A word that always means "left": every event reads the thread clock.
    pub(super) fn always_left() -> Self {
        Self { word: (&raw const ZERO).cast_mut(), armed: 1, kind: Kind::Fixed }
    }

    /// Returns whether the kernel reports switches (otherwise the word is a constant).
    pub(super) fn is_rseq(&self) -> bool {
        self.kind == Kind::Rseq
    }

    /// Returns whether the thread has run without a break since [`SwitchWord::arm`].
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        // SAFETY: RSEQ-2 and RSEQ-3, or the static ZERO; aligned and alive in both cases. Volatile: the
        // kernel writes it behind the compiler's back.
        unsafe { self.word.read_volatile() == self.armed }
    }

    /// From here on a switch shows.
    pub(super) fn arm(&self) {
        if self.kind == Kind::Rseq {
            // SAFETY: as above; RSEQ-1 makes the descriptor's address good for as long as the word holds it.
            unsafe { self.word.write_volatile(self.armed) }
        }
    }
}

impl Drop for SwitchWord {
    fn drop(&mut self) {
        if self.kind == Kind::Rseq && self.is_armed() {
            // SAFETY: as in `arm`. Nothing of ours is left behind when recording ends on this thread.
            unsafe { self.word.write_volatile(0) }
        }
    }
}

/// Returns whether a switch of this thread shows in its word: sleeps once to try. Takes a millisecond.
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

    // SAFETY: immutable; its pointers are compared by the kernel and never followed by us.
    unsafe impl Sync for Descriptor {}

    /// Signature that must precede an abort handler: glibc's on x86. No abort handler here is ever entered,
    /// but the kernel checks the signature when it reads the descriptor.
    #[repr(C, align(8))]
    struct AbortHandler {
        signature: u32,
        code: u32,
    }

    static ABORT_HANDLER: AbortHandler = AbortHandler { signature: 0x5305_3053, code: 0 };
    static SECTION: [u8; 8] = [0; 8];

    /// A section of one byte of data, where no thread ever executes.
    static DESCRIPTOR: Descriptor = Descriptor {
        version: 0,
        flags: 0,
        start: (&raw const SECTION).cast(),
        length: 1,
        abort: (&raw const ABORT_HANDLER.code).cast(),
    };

    /// Distance of the registered area from the thread pointer, exported by glibc 2.35 and later.
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
            // SAFETY: glibc documents them as `const unsigned int` and `const ptrdiff_t`.
            let (size, offset) = unsafe { (*size.cast::<u32>(), *offset.cast::<isize>()) };
            (size > 0).then_some(offset)
        })
    }

    /// The calling thread's `rseq_cs` word and the value that arms it; `None` when it is not registered.
    pub(super) fn word_and_descriptor() -> Option<(*mut u64, u64)> {
        let offset = area_offset()?;
        let thread_pointer: *mut u8;
        // SAFETY: on x86-64 the word at fs:0 holds the thread pointer itself (the ABI's TLS variant II).
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
        // SAFETY: as above.
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
            return; // this kernel or libc has none; the thread clock is used and says so
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
