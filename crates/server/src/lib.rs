//! A server for Redis clients on an Azekura store. It accepts RESP2 and RESP3, stores strings in key order,
//! runs serializable transactions, and replies to a write when it is durable.
//!
//! Every key is a row of an ordered, crash-safe store that may be larger than memory; a reply to a write is
//! sent only after the write survives power loss. `docs/server.md` lists the differences from Redis by
//! command.
//!
//! ```
//! use azekura_server::{Server, ServerOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = ServerOptions::default();
//! options.listen = "127.0.0.1:0".parse()?;
//! let server = Server::start(azekura::Database::in_memory()?, options)?;
//! println!("redis-cli -p {}", server.address().tcp().unwrap().port());
//! server.stop()?; // replies to all accepted requests, closes the store
//! # Ok(())
//! # }
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`server`](Server), `clients` | listener, shutdown, the list of connections |
//! | `reactor` | event loops, and the threads that drive them |
//! | `connection`, `channel` | a client connection, plain or with TLS: read, run, wait until durable, reply |
//! | `listener` | addresses for clients, and the sockets behind them |
//! | `session` | state of one client: protocol, login, `MULTI`, `WATCH`, interactive transaction |
//! | `command` | the command table, and each command as a function over a transaction |
//! | `engine` | runs commands in transactions of the store |
//! | `group` | one transaction for the small writes of many clients |
//! | `cluster` | this server as a node of a cluster: routes commands to the owners of their keys |
//! | `keyspace` | keys, values and expiry times in the store's tables |
//! | `watch`, `cursor`, `glob` | watched keys, scan cursors, patterns |
//! | [`resp`](RequestReader) | request parser, reply encoder |
//! | `http`, `metrics`, `counters` | `/metrics`, `/healthz`, `/livez` and their counters |
//! | `events` | log events for the operator, through `tracing` |
//! | `budget`, `descriptors` | limits over all connections: memory, open files |
//! | [`options`](ServerOptions), [`tls`](TlsFiles), [`error`](ServerError) | settings, and errors |

// A loom model includes the modules that it tests by path; the rest of the crate is not compiled for it.
#![cfg(not(loom))]
#![forbid(unsafe_code)]

mod budget;
mod channel;
mod clients;
mod cluster;
mod command;
mod connection;
mod counters;
mod cursor;
mod descriptors;
mod engine;
mod error;
mod events;
mod glob;
mod group;
mod http;
mod keyspace;
mod listener;
mod metrics;
mod options;
mod reactor;
mod resp;
mod server;
mod session;
mod tls;
mod watch;

pub use cluster::ClusterOptions;
pub use engine::Clock;
pub use error::ServerError;
pub use listener::ListenAddress;
pub use options::{Password, ServerOptions};
pub use resp::{ProtocolError, Request, RequestReader, WireLimits};
pub use server::Server;
pub use tls::TlsFiles;
