//! Tests of the B+tree: a model, threads, latches and locks, damage, failures and recovery.

#[path = "../common/mod.rs"]
mod common;
mod failures;
mod gap_locks;
mod many_threads;
mod node;
mod read_ahead;
mod record_codec;
mod recovery;
mod shared_writes;
mod tree_against_reference;
mod verify_finds;
