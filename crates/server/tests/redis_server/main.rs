//! Tests of the server through its protocol: a server in this process, and clients over loopback.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod answers;
mod clients;
mod commands;
mod count;
mod expiry;
mod failure;
mod groups;
mod model;
mod prefetch;
mod reactors;
mod scan;
mod security;
mod serial;
mod snapshots;
mod stop;
mod support;
mod tls;
mod transactions;
mod unix_socket;
mod wire;
