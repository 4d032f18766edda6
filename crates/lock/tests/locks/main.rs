//! Tests of the lock manager: grants, key ranges, deadlocks, and early release.

#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;
mod deadlocks;
mod early_release;
mod grants;
mod key_ranges;
