//! Tests of the file systems: the fault simulation, the operating system, and what all have in common.

#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod fault_bytes;
mod fault_failures;
mod fault_names;
mod fault_random;
mod os;
