//! Errors of an engine, and of a run.

use std::path::PathBuf;

/// An engine could not do an operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The transaction lost against another one (deadlock, write conflict, busy): run it again.
    #[error("conflict while {doing}")]
    Conflict {
        /// The operation, as "committing".
        doing: &'static str,
        /// The engine's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Anything else: the run ends.
    #[error("{doing}")]
    Failed {
        /// The operation, as "opening".
        doing: &'static str,
        /// The engine's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl EngineError {
    /// Wraps an engine's error that ends the run.
    pub fn failed(doing: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed { doing, source: source.into() }
    }

    /// Wraps an engine's error that a retry may cure.
    pub fn conflict(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Conflict { doing, source: source.into() }
    }

    /// Returns whether running the transaction again may help.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// A run could not be carried out, or the engine gave wrong answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A simulated machine could not run it.
    #[error("the simulation did not come to an end")]
    Simulation(#[source] azekura_sim::SimulationError),
    /// The engine failed.
    #[error("engine failed")]
    Engine(#[from] EngineError),
    /// A record that must be there was not found, or a scan met another number of records than there are.
    #[error("wrong answer: {what}: expected {expected}, found {found}")]
    WrongAnswer {
        /// The counted things.
        what: &'static str,
        /// Expected number.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// The engine has no asynchronous commit.
    #[error("{engine} has no pipelined commit")]
    NotPipelined {
        /// The engine's name.
        engine: String,
    },
    /// A store that an earlier run left is of another size.
    #[error(
        "{path} holds TPC-C with {warehouses} warehouses at a scale of 1/{divisor}; remove it or choose \
         another directory"
    )]
    OtherScale {
        /// The store.
        path: PathBuf,
        /// Its warehouses.
        warehouses: u32,
        /// Divisor of its numbers of rows.
        divisor: u32,
    },
    /// A store that an earlier run left does not fulfil the consistency conditions of TPC-C.
    #[error("{violated} consistency conditions are violated before the run; the first: {first}")]
    Inconsistent {
        /// Number of failed comparisons.
        violated: u64,
        /// The first of them.
        first: String,
    },
    /// The data directory could not be used.
    #[error("{doing} {path}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// To which file or directory.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A client thread panicked; its message is on standard error.
    #[error("a client thread panicked")]
    Panicked,
}

impl BenchError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
