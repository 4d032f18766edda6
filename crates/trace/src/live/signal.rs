//! The sender of a signal.

/// Returns the process that sent a signal; `None` if the kernel sent it, as for a key of a terminal.
#[must_use]
pub fn sender_of(signal: &libc::siginfo_t) -> Option<u32> {
    // Codes of signals that the kernel sends are positive.
    if !matches!(signal.si_code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE) {
        return None;
    }
    // SAFETY: with these codes, the structure contains the sender.
    u32::try_from(unsafe { signal.si_pid() }).ok()
}
