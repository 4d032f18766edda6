//! `--trace`: a recording of a bench.

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

    /// Record context switches as well: time off the processor is then preempted or blocked
    #[arg(long, requires = "trace")]
    switches: bool,
}

impl Recorded {
    /// Runs `bench`, recorded under this label if that was asked for.
    ///
    /// # Errors
    ///
    /// Those of the bench; a recording that cannot be begun, ended or written.
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
