//! Handles the signals that stop a server, and the signal of the limit of file sizes.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

/// Makes a write that exceeds the limit of file sizes (`ulimit -f`) fail with `EFBIG`, an error as that of a
/// full disk. Without a handler, its signal ends the process. Programs that the command starts have the
/// inherited action.
pub(crate) fn outlive_file_limit() {
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default()); // otherwise, the signal ends the process
}

/// Returns a stream that gets a byte with the first stop signal. The second signal ends the process.
pub(crate) fn to_stop() -> Result<UnixStream> {
    let (reader, writer) = UnixStream::pair().context("cannot make a pipe for signals")?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag unset and sets it, the second finds it set.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&is_stopping))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&is_stopping)))
            .and_then(|_| signal_hook::low_level::pipe::register(signal, writer.try_clone()?))
            .context("cannot watch for signals")?;
    }
    Ok(reader)
}
