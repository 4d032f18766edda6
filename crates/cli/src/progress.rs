//! Progress bars on stderr, shown only on a terminal, and notes.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use azekura::BackupProgress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::format::escape::escaped;
use crate::show;

/// Writes a line to stderr. A failed write is ignored: after `eprintln!`, which panics, the command would
/// stop in the middle and end with another exit code.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns a bar over `bytes` of input, or one without an end if the size is unknown. The message is shown at
/// its end.
pub(crate) fn bytes(bytes: Option<u64>) -> ProgressBar {
    match bytes {
        Some(bytes) => styled(ProgressBar::new(bytes), "{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left"),
        None => ticking(styled(ProgressBar::new_spinner(), "{spinner} {bytes} in {elapsed}, {msg}")),
    }
}

/// Shows the progress of a backup, restore or compaction.
pub(crate) fn show_copied(bar: &ProgressBar, seen: &BackupProgress) {
    bar.set_position(seen.bytes);
    let table = escaped(seen.table.as_bytes());
    bar.set_message(format!("table {table}, {}", show::counted(seen.rows, "row")));
}

/// Returns a bar over pages.
pub(crate) fn pages() -> ProgressBar {
    styled(ProgressBar::new(0), "{bar:30} {human_pos}/{human_len} pages, {eta} left")
}

/// Returns a bar over `count` leaves to be moved.
pub(crate) fn leaves(count: usize) -> ProgressBar {
    styled(ProgressBar::new(count as u64), "{bar:30} {human_pos}/{human_len} leaves moved, {eta} left")
}

/// Returns a line that shows the present activity.
pub(crate) fn activity() -> ProgressBar {
    ticking(styled(ProgressBar::new_spinner(), "{spinner} {msg}"))
}

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    bar.set_style(
        ProgressStyle::with_template(template).expect("the templates of this file are well formed"),
    );
    bar
}

/// Makes a bar that is shown animate between updates, unless the system has no more threads: the library
/// panics if it cannot start its thread.
fn ticking(bar: ProgressBar) -> ProgressBar {
    let has_threads = || std::thread::Builder::new().spawn(|| ()).is_ok();
    if !bar.is_hidden() && has_threads() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}
