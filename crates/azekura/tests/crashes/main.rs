//! Tests of power loss, kills and failures: each acknowledged transaction survives, and no other row changes.

mod bulk_load_crash;
#[path = "../common/mod.rs"]
mod common;
mod crash_concurrent;
mod crash_dependencies;
mod crash_matrix;
mod crash_power;
mod full_disk;
mod many_stores;
mod queue_kills;
mod redo_threads;
mod restart_bound;
