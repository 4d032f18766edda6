//! `--trace`: records a run into a file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use azekura_record::kernel::{Kernel, Target};
use clap::Args;

use azekura_cli::shared::{count, counted};

/// Options of a recording.
#[derive(Args, Debug)]
pub(super) struct Recorded {
    /// Record operations and waits of all runs into this file, for `azekura trace report`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Record context switches too, to divide time off the processor into preempted and blocked time
    #[arg(long, requires = "trace")]
    switches: bool,
}

impl Recorded {
    /// Runs `bench`, and records it under this label if `--trace` was given.
    ///
    /// # Errors
    ///
    /// An error of the bench, or of starting, ending or writing the recording.
    pub(super) fn run<T>(&self, label: String, bench: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.trace {
            None => bench(),
            Some(file) => self.record(file, label, bench),
        }
    }

    fn record<T>(&self, file: &Path, label: String, bench: impl FnOnce() -> Result<T>) -> Result<T> {
        let options = azekura_trace::Options {
            file: Some(file.to_owned()),
            label,
            ..azekura_trace::Options::default()
        };
        azekura_trace::start(options).with_context(|| format!("cannot record into {}", file.display()))?;
        let kernel =
            self.switches.then(|| Kernel::watch(Target::Process(std::process::id()), Vec::new(), true));
        let ended = bench();
        let recording = azekura_trace::stop().with_context(|| format!("cannot end {}", file.display()))?;
        if let Some(kernel) = kernel {
            kernel.refusals().iter().for_each(|refusal| eprintln!("note: {refusal}"));
            let mut trace = recording.trace().with_context(|| format!("cannot read {}", file.display()))?;
            kernel.finish().add_to(&mut trace);
            std::fs::write(file, trace.to_bytes())
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        eprintln!(
            "{} recorded in {}, {} lost",
            counted(recording.events(), "event"),
            file.display(),
            count(recording.lost())
        );
        ended
    }
}
