//! Nodes of a cluster behind the door: any node takes any key's request.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod interactive;
mod keys;
mod leaving;
mod moves;
mod nodes;
mod pipeline;
mod refusals;
mod restarts;
mod serial;
#[path = "../door/support.rs"]
#[allow(dead_code, reason = "the door's own tests use the rest")]
mod support;
mod watches;
