//! The kernel's part of a recording: the requested events, their availability, and their merge into the
//! traces.

use super::functions::Function;
use super::watch::{Target, Watch, Watched};
use crate::error::{RecordError, in_full};
use azekura_trace::file::{Switches, Trace};

/// A watch of the requested events, without those that the kernel does not permit.
#[derive(Debug, Default)]
pub struct Kernel {
    watch: Option<Watch>,
    functions: Vec<Function>,
    refusals: Vec<String>,
    /// The reason that not even switches are recorded.
    why_none: Option<String>,
}

/// The kernel's records of a finished watch.
#[derive(Debug, Default)]
pub struct KernelRecords {
    watched: Option<Watched>,
    functions: Vec<Function>,
    why_none: Option<String>,
}

impl Kernel {
    /// Starts to watch samples of the program counter, calls of `functions`, and switches if requested.
    /// Events that the kernel does not permit are left out; see [`Kernel::refusals`].
    #[must_use]
    pub fn watch(target: Target, functions: Vec<Function>, switches: bool) -> Self {
        let mut kernel = Self::default();
        if !functions.is_empty() {
            match Watch::start(target, &functions, true) {
                Ok(started) => return Self { functions, ..kernel.with(started) },
                Err(error) => kernel
                    .refusals
                    .push(format!("each thread is recorded as one operation: {}", in_full(&error))),
            }
        }
        let switches = switches || !functions.is_empty();
        match Watch::start(target, &[], switches) {
            Ok(started) => return kernel.with(started),
            Err(error) => {
                let why = in_full(&error);
                kernel.refusals.push(format!("no context switches: {why}"));
                kernel.why_none = switches.then_some(why);
            }
        }
        kernel
    }

    fn with(mut self, (watch, refused): (Watch, [Option<RecordError>; 2])) -> Self {
        for (what, error) in ["spin loops", "page faults"].into_iter().zip(refused) {
            let refusal = error.map(|error| format!("{what} are not recognized: {}", in_full(&error)));
            self.refusals.extend(refusal);
        }
        self.watch = Some(watch);
        self
    }

    /// Starts or stops keeping records, each at its first call.
    pub fn keep(&self, keep: bool) {
        if let Some(watch) = &self.watch {
            watch.keep(keep);
        }
    }

    /// Returns the requested kinds of events that are not available, as sentences.
    #[must_use]
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Ends the watch.
    #[must_use]
    pub fn finish(self) -> KernelRecords {
        KernelRecords {
            watched: self.watch.map(Watch::finish),
            functions: self.functions,
            why_none: self.why_none,
        }
    }
}

impl KernelRecords {
    /// Adds the records to a trace. Records of threads that are not in the trace are ignored.
    pub fn add_to(&self, trace: &mut Trace) {
        match (&self.watched, &self.why_none) {
            (Some(watched), _) => watched.add_to(trace, &self.functions),
            (None, Some(reason)) => trace.switches = Switches::Unavailable { reason: reason.clone() },
            (None, None) => {}
        }
    }
}
