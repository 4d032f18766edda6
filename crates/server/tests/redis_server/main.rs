//! The server through its protocol: a server in this process, clients over loopback.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod answers;
mod clients;
mod commands;
mod count;
mod expiry;
mod failure;
mod groups;
mod model;
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
