//! Tests of the log: order, replay, threads, failures, power loss and damage.

#![cfg(not(loom))]

mod append_and_replay;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod damage;
mod hazards;
mod lsn_range;
mod protocols;
mod stress;
