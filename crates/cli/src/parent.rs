//! Ends this process when its parent process ends, even if the parent is killed.

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Makes the system kill this process, even if it is stopped, when the thread that started it ends.
///
/// # Errors
///
/// `pid` is not the parent of this process: it has ended already, or was never the parent.
pub fn end_with(pid: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot set the parent-death signal of this process")?;
    // Checked after the request: if the parent ended before the request, this process has another parent now.
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get().unsigned_abs());
    ensure!(
        parent == pid,
        "process {pid} did not start this one, or has ended; give the number of the process that starts it"
    );
    Ok(())
}
