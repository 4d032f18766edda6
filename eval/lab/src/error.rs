//! Errors of engines and of runs.

use std::path::PathBuf;

/// An operation of an engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The transaction lost a conflict (deadlock, write conflict, busy) and may be retried.
    #[error("conflict while {doing}")]
    Conflict {
        /// The operation, such as "committing".
        doing: &'static str,
        /// The engine's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Any other error, which ends the run.
    #[error("{doing}")]
    Failed {
        /// The operation, such as "opening".
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

    /// Wraps an engine's error after which a retry may succeed.
    pub fn conflict(
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Conflict { doing, source: source.into() }
    }

    /// Returns whether a retry of the transaction may succeed.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }
}

/// A run failed, or the engine gave wrong answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The simulated machine failed.
    #[error("the simulation did not end")]
    Simulation(#[source] azekura_sim::SimulationError),
    /// The engine failed.
    #[error("engine failed")]
    Engine(#[from] EngineError),
    /// An existing record was not found, or a scan returned a wrong number of records.
    #[error("wrong answer: {what}: expected {expected}, found {found}")]
    WrongAnswer {
        /// Name of the counted things.
        what: &'static str,
        /// Expected number.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// A store that an earlier run left has a different size.
    #[error(
        "{path} holds TPC-C with {warehouses} warehouses at a scale of 1/{divisor}; remove it or choose \
         another directory"
    )]
    OtherScale {
        /// Path of the store.
        path: PathBuf,
        /// Number of warehouses in the store.
        warehouses: u32,
        /// Divisor of the specification's numbers of rows.
        divisor: u32,
    },
    /// A store that an earlier run left violates the consistency conditions of TPC-C.
    #[error("{violated} consistency conditions are violated before the run; the first: {first}")]
    Inconsistent {
        /// Number of violations.
        violated: u64,
        /// Description of the first violation.
        first: String,
    },
    /// An operation on a file or directory failed.
    #[error("{doing} {path}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The system cannot start another thread: a limit of processes or memory is reached.
    #[error("cannot start a client thread; use fewer threads")]
    Thread {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A client thread panicked; standard error has its message.
    #[error("a client thread panicked")]
    Panicked,
}

impl BenchError {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}
