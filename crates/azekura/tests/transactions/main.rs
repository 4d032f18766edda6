//! Tests of calls inside transactions: rows, scans, tables, bulk loads, locks and undo.

mod bulk_load;
#[path = "../common/mod.rs"]
mod common;
mod for_update;
#[path = "../held/mod.rs"]
mod held;
mod interleaved;
mod no_waits;
mod open_transaction;
mod pieces;
mod scans;
mod shapes;
mod tables;
mod undo_memory;
