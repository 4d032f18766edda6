//! Tests of whole stores: openings, snapshots, costs of the log and of removed rows, and the second tier of
//! the page cache.

#[path = "../common/mod.rs"]
mod common;
mod far_cache;
mod idle_open_quiet;
mod log_costs;
mod openings;
mod reference;
mod removed_ranges;
mod snapshot;
mod working_directory;
