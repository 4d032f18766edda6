//! A progress bar on standard error if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// A progress bar with the name of the current step.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Returns a bar on standard error, hidden if that is not a terminal.
    #[must_use]
    pub fn stderr() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg:50} {bar:30} {percent:>3} %");
        // The template is constant and valid, so the library's default style is never used.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Returns a hidden bar.
    #[must_use]
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Begins a new bar with the name `what` and `of` steps.
    pub(crate) fn begin(&self, what: &str, of: u64) {
        self.bar.set_length(of.max(1));
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    pub(crate) fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Prints a line above the bar, or to standard error if the bar is hidden.
    pub fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns whole milliseconds, for the bar.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
