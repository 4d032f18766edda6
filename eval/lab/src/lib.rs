//! Runs of the workloads of `azekura-workload` on any ordered key-value engine, and their reports.
//!
//! Engines that link C or C++ are in a separate workspace, `eval/compare`, and implement the same [`Engine`]
//! trait.
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
//! | [`engine`] | interfaces of an engine: [`Engine`], [`Store`], [`Session`] |
//! | [`adapter`] | engines without C code: Azekura, a map in memory, servers with the RESP protocol |
//! | [`plan`] | [`Plan`]: workloads, durations and repetitions of a run |
//! | [`compare`](mod@compare) | interleaved runs of a plan over several engines |
//! | [`phase`] | one timed phase of work by many threads |
//! | [`client`] | work of one thread in a phase |
//! | [`window`] | commits in flight |
//! | [`rounds`] | interleaved runs of several engines |
//! | [`prepare`] | filling, warming and cooling a store |
//! | [`lab`] | the evaluations of the papers, repeated |
//! | [`latency`] | histograms of latencies |
//! | [`report`] | [`Report`]: one JSON object per cell |
//! | [`settings`] | the settings that make two reports comparable, and their hash |
//! | [`machine`] | description of a run's machine |
//! | [`busy`] | use of the processors during a measurement |
//! | [`mod@calibrate`] | this machine as a profile for simulations |
//! | [`scale`] | the whole store on simulated machines |
//! | [`table`] | reports as text, with ratios |
//! | [`tpcc`] | TPC-C on the store |
//! | [`usage`] | processor time, bytes and memory that a phase used |
//! | [`plot`] | reports as SVG charts and an HTML page |
//! | [`progress`] | a progress bar on a terminal |
//! | [`json`] | reports as JSON |
//! | [`error`] | errors of engines and runs |
//! | [`conformance`] | tests that every adapter must pass |
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
