//! Servers that are nodes of a cluster. Every node accepts requests for any key.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod here;
mod interactive;
mod keys;
mod leaving;
mod moves;
mod nodes;
mod pipeline;
mod refusals;
mod restarts;
mod same;
mod serial;
mod snapshots;
#[path = "../redis_server/support.rs"]
#[allow(dead_code, reason = "the tests of a single server use the rest")]
mod support;
mod watches;
