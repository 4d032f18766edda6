//! Was that history serializable? Records what concurrent transactions saw and did, and looks for a
//! contradiction.
//!
//! It is a test library with no store in it: it never asks a database anything, it only judges what clients
//! observed. It is not a proof either: a clean report means that this history has an explanation.
//!
//! The method is that of Elle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental
//! Observations", VLDB 2020) for lists that are only appended to: a list read tells the order of all writes
//! before it, so who depended on whom can be inferred, and a circle of dependencies is an anomaly in the
//! sense of Adya ("Weak Consistency", 1999). Range reads and removals are added to that, so phantoms are
//! found as well.
//!
//! ```
//! use azekura_history::{Kind, Level, Recorder, check};
//!
//! // Two transactions read both lists as empty, and each appends to the other one: write skew.
//! let recorder = Recorder::new();
//! let (mut a, mut b) = (recorder.begin(), recorder.begin());
//! a.read(1, []);
//! b.read(2, []);
//! a.append(2, 10);
//! b.append(1, 20);
//! a.committed();
//! b.committed();
//!
//! let report = check(&recorder.finish(), Level::Serializable);
//! assert_eq!(report.anomalies()[0].kind, Kind::G2Item);
//! println!("{report}");
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `history` | [`History`], [`Transaction`], [`Op`] |
//! | `record` | [`Recorder`]: collects transactions from many threads |
//! | `versions` | the order of each list's versions; reads that no order explains |
//! | `graph` | dependencies and what they rest on |
//! | `infer` | from versions to dependencies |
//! | `absence` | keys that a range read did not show |
//! | `cycle` | strongly connected components, shortest circles |
//! | `report` | [`Kind`], [`Level`], [`Report`] |
//!
//! How to drive it, for a store with keys and values: a list is the value of a key; *append* reads the list
//! and writes it back longer; *remove* deletes the key, appends a tombstone to the list, and keeps the list
//! in a second table that is never scanned, from where a later append to that key goes on. So every read of a
//! key (of both tables if need be) yields the whole list, and only range reads meet removed keys as absent.
//! At the end, one more transaction reads every key: then no write stays unobserved and the check is as sharp
//! as it can be.

#![forbid(unsafe_code)]

mod absence;
mod check;
mod cycle;
mod graph;
mod history;
mod infer;
mod record;
mod report;
mod versions;

pub use check::check;
pub use history::{History, Op, Status, Transaction};
pub use record::{Recorder, Running};
pub use report::{Anomaly, Kind, Level, Report};
