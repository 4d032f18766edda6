//! Runs of the workloads of `azekura-workload` on any ordered key-value engine, and their reports.
//!
//! Engines that link C or C++ are not here: they are in a workspace of their own, `eval/compare`, and
//! implement the same [`Engine`] trait.
//!
//! ```
//! use azekura_lab::adapter::memory::MemoryEngine;
//! use azekura_lab::{Plan, Progress, compare, table};
//! use azekura_workload::Workload;
//! use std::time::Duration;
//!
//! let plan = Plan {
//!     workloads: vec!["u1".parse::<Workload>()?.with_records(1_000)],
//!     threads: vec![2],
//!     measured: Duration::from_millis(20),
//!     ..Plan::in_dir(std::env::temp_dir().join("azekura-lab-example"))
//! };
//! let outcome = compare(&[Box::new(MemoryEngine::default())], &plan, &Progress::hidden(), &mut |_| {})?;
//! assert!(outcome.failures.is_empty());
//! assert!(outcome.reports[0].ops > 0);
//! println!("{}", table::render(&outcome.reports));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`engine`] | what an engine must be able to do: [`Engine`], [`Store`], [`Session`] |
//! | [`adapter`] | engines that need nothing but Rust: Azekura, and a map in memory |
//! | [`plan`] | [`Plan`]: what to run, how long, how often |
//! | [`compare`](mod@compare) | runs a plan over several engines, interleaved |
//! | [`phase`] | one timed stretch of work by many threads |
//! | [`client`] | what one thread does in it |
//! | [`window`] | commits that are in flight |
//! | [`rounds`] | runs of several entrants, interleaved |
//! | [`prepare`] | filling, warming and cooling a store |
//! | [`lab`] | the papers' evaluations, run again |
//! | [`latency`] | histograms of how long things took |
//! | [`report`] | [`Report`]: one JSON object per cell |
//! | [`settings`] | the settings that make two reports comparable, and their hash |
//! | [`machine`] | the machine of a run |
//! | [`busy`] | use of the processors meanwhile |
//! | [`mod@calibrate`] | this machine as a profile for simulations |
//! | [`scale`] | the whole store on simulated machines |
//! | [`table`] | reports as text, with ratios |
//! | [`tpcc`] | TPC-C on the store |
//! | [`usage`] | processor time, bytes and memory that a stretch of work used |
//! | [`plot`] | reports as SVG charts and an HTML page |
//! | [`lab`] | the papers' evaluations, run again |
//! | [`progress`] | a bar on a terminal |
//! | [`json`] | reports as JSON |
//! | [`error`] | what can go wrong |
//! | [`conformance`] | what every adapter must get right, as checks for its tests |
#![forbid(unsafe_code)]

pub mod adapter;
pub mod busy;
pub mod calibrate;
pub mod client;
pub mod compare;
pub mod conformance;
pub mod engine;
pub mod error;
pub mod json;
pub mod lab;
pub mod latency;
pub mod machine;
pub mod phase;
pub mod plan;
pub mod plot;
pub mod prepare;
pub mod progress;
pub mod report;
pub mod rounds;
pub mod scale;
pub mod settings;
pub mod table;
pub mod tpcc;
pub mod usage;
pub mod window;

pub use compare::{Failure, Lack, Outcome, compare};
pub use engine::{Engine, EngineSettings, Reader, Session, Sink, Store, Ticket, Writer};
pub use error::{BenchError, EngineError};
pub use json::Json;
pub use plan::{Commit, Plan};
pub use progress::Progress;
pub use report::Report;
