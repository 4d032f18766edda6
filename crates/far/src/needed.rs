//! Threads that the program depends on: they handle its page faults and page in.

use std::io;
use std::thread::{self, JoinHandle};

/// Starts a thread. If the thread panics, the process is aborted: otherwise a thread that touches a page
/// would wait forever, without a message.
pub(crate) fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(move || {
        let _needed = Needed(name);
        work();
    })
}

struct Needed(&'static str);

impl Drop for Needed {
    fn drop(&mut self) {
        if thread::panicking() {
            crate::say(&format!(
                "azekura far memory: its thread {} panicked; without it the program would wait for ever\n",
                self.0
            ));
            std::process::abort();
        }
    }
}
