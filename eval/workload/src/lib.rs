//! Seeded streams of database operations: keys that are read and written, with their order and popularity.
//!
//! This crate neither runs nor measures an engine; `azekura-lab` does.
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
//! | [`workload`] | [`Workload`]: a family of work with number and size of its records |
//! | [`stream`] | [`Stream`]: one thread's endless, repeatable list of transactions |
//! | [`step`] | [`Step`]: one operation in a transaction |
//! | [`ycsb`] | the six standard mixes |
//! | [`tpcc`] | TPC-C: rows, initial population, inputs of the five transactions |
//! | [`popularity`] | distributions of the requested record: uniform, scrambled Zipf, latest |
//! | [`population`] | the existing records while inserts run |
//! | [`dataset`] | the records that exist before the work begins |
//! | [`key`] | eight-byte keys, in order or scattered |
//! | [`bookstore`] | the bookstore of DBT-1 (a simple TPC-W): rows, users, pages |
//! | [`value`] | unique values that reveal damage |
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
