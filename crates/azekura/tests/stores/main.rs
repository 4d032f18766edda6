//! Tests of whole stores: openings, snapshots, costs of the log and of removed rows, prefetches, and the
//! second tier of the page cache.

#[path = "../common/mod.rs"]
mod common;
mod far_cache;
mod idle_open_quiet;
mod log_costs;
mod openings;
mod prefetch;
mod reference;
mod removed_ranges;
mod snapshot;
mod working_directory;
