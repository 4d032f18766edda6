//! Ends of the process when far memory cannot continue. The message states the reason and the address or
//! setting; the exit code is 71.

use std::error::Error;
use std::fmt::{self, Write};

/// Exit code if far memory could not be set up, or was lost.
pub(super) const CODE: i32 = 71;

/// Ends the process with a message. Exit handlers of the program are not run, because they could touch lost
/// memory.
pub(super) fn lost(message: &str) -> ! {
    azekura_far::say(message);
    loop {
        // SAFETY: ends the process at once. A sanitizer may have replaced `_exit`.
        unsafe { azekura_far::sys::call(libc::SYS_exit_group, [CODE as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Ends the process before `main`, with the error and its causes.
pub(super) fn refuse(error: &dyn Error) -> ! {
    let mut text = format!("azekura far: {error}");
    let mut cause = error.source();
    while let Some(reason) = cause {
        text += &format!(": {reason}");
        cause = reason.source();
    }
    lost(&format!("{text}\n"))
}

/// Replaces the messages of Rust's standard library for a panic and for a failed allocation.
pub(super) fn prepare() {
    crate::alloc::on_exhaustion(exhausted);
    std::panic::set_hook(Box::new(|panic| {
        let mut text = Text::default();
        let _ = writeln!(text, "azekura far: a defect of the layer, report it: {panic}");
        lost(text.as_str())
    }));
}

/// Reports that the layer has no memory for its own tables.
pub(crate) fn exhausted(bytes: usize) {
    let mut text = Text::default();
    let _ = writeln!(
        text,
        "azekura far: no memory for {bytes} bytes of the layer's own tables: the machine's memory or a limit \
         (RLIMIT_AS, RLIMIT_DATA) is used up; raise it, lower --local, or raise --page"
    );
    lost(text.as_str())
}

/// A message in a fixed buffer, which needs no heap memory. Text beyond the size of the buffer is cut off.
struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; 512], length: 0 }
    }
}

impl Text {
    fn as_str(&self) -> &str {
        let whole = &self.bytes[..self.length];
        std::str::from_utf8(whole)
            .unwrap_or_else(|error| std::str::from_utf8(&whole[..error.valid_up_to()]).unwrap_or_default())
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}
