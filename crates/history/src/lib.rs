//! Isolation checker: records the operations and results of concurrent clients, and searches the history for
//! proof that it was not serializable.
//!
//! The crate is a test library without a store: it checks the observations of clients and never accesses a
//! database. A clean report does not prove serializability. It means only that no contradiction was found in
//! this history.
//!
//! The method is that of Elle (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from Experimental
//! Observations", VLDB 2020) for append-only lists: a read of a list shows the order of all earlier writes to
//! it. So dependencies between transactions can be inferred. A cycle of dependencies is an anomaly in the
//! sense of Adya ("Weak Consistency", 1999). Range reads and removals are added, so phantoms are detected as
//! well.
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
//! | `versions` | the order of each list's versions; reads that fit no order |
//! | `graph` | dependencies and their evidence |
//! | `infer` | dependencies, inferred from versions |
//! | `absence` | keys that a range read did not return |
//! | `cycle` | strongly connected components, shortest cycles |
//! | `report` | [`Kind`], [`Level`], [`Report`] |
//!
//! To use it with a key-value store, store each list as the value of a key. *Append* reads the list and
//! writes it back with one more value. *Remove* deletes the key, and stores the list with a tombstone in a
//! second table that is never scanned; a later append to that key continues that list. So every read of a key
//! (of both tables if necessary) returns the whole list, and only range reads see removed keys as absent. At
//! the end, one more transaction reads every key, so that every write is observed and the check is as strict
//! as possible.

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
