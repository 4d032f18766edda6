//! Seeded streams of database operations: the keys that are read and written, their order and popularity.
//!
//! Nothing here runs or measures an engine; `azekura-lab` does.
//!
//! ```
//! use azekura_workload::{Lane, Step, Workload};
//!
//! let workload: Workload = "ycsb-a".parse()?;
//! let population = workload.population();
//! let mut stream = workload.stream(&population, Lane::only(), 42);
//! let mut steps = Vec::new();
//! stream.next_transaction(&mut steps);
//! assert!(matches!(steps[..], [Step::Get { .. } | Step::Put { .. }]));
//! # Ok::<(), azekura_workload::ParseError>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`workload`] | [`Workload`]: which family of work, over how many records of which size |
//! | [`stream`] | [`Stream`]: one thread's endless, repeatable list of transactions |
//! | [`step`] | [`Step`]: one operation inside a transaction |
//! | [`ycsb`] | the six standard mixes |
//! | [`tpcc`] | TPC-C: rows, initial population, inputs of the five transactions |
//! | [`popularity`] | which record is asked for: uniform, scrambled Zipf, latest |
//! | [`population`] | which records exist while inserts run |
//! | [`dataset`] | the records that are there before the work begins |
//! | [`key`] | eight-byte keys, in order or scattered |
//! | [`bookstore`] | the bookstore of DBT-1 (a simple TPC-W): rows, users, pages |
//! | [`value`] | values that are never the same twice, and that show when they are damaged |
#![forbid(unsafe_code)]

pub mod bookstore;
pub mod dataset;
pub mod key;
pub mod popularity;
pub mod population;
pub mod step;
pub mod stream;
pub mod tpcc;
pub mod value;
pub mod workload;
pub mod ycsb;

pub use dataset::Dataset;
pub use key::{Key, KeyOrder};
pub use population::Population;
pub use step::Step;
pub use stream::{Lane, Stream};
pub use value::Value;
pub use workload::{Family, ParseError, Workload};
