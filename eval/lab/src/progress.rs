//! A bar on standard error, when that is a terminal; otherwise nothing.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Shows what is being run and how far it is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar on standard error; invisible when that is not a terminal.
    #[must_use]
    pub fn stderr() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg:50} {bar:30} {percent:>3} %");
        // The template is fixed and valid; if it were not, the library's own style would do.
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Nothing is shown.
    #[must_use]
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Begins a new stretch of `of` steps.
    pub(crate) fn begin(&self, what: &str, of: u64) {
        self.bar.set_length(of.max(1));
        self.bar.set_position(0);
        self.bar.set_message(what.to_owned());
    }

    pub(crate) fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Prints a line above the bar; on standard error when the bar is hidden.
    pub fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Whole milliseconds, for the bar.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
