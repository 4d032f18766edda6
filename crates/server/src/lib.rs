//! A door for Redis clients to an Azekura store: RESP2 and RESP3, strings in order, transactions that are
//! serializable, answers that are durable.
//!
//! It is no cache and no copy of Redis: every key is a row of an ordered, crash-safe store that may be larger
//! than memory, and a write is answered once it survives power loss. What differs from Redis, command by
//! command, is in `docs/server.md`.
//!
//! ```
//! use azekura_server::{Server, ServerOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = ServerOptions::default();
//! options.listen = "127.0.0.1:0".parse()?;
//! let server = Server::start(azekura::Database::in_memory()?, options)?;
//! println!("redis-cli -p {}", server.address().port());
//! server.stop()?; // answers what was accepted, closes the store
//! # Ok(())
//! # }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | [`server`](Server), `clients` | listening, stopping, the list of connections |
//! | `reactor` | waits for events, serves the connections, hands them over before it blocks |
//! | `connection`, `channel` | one client: read, run, wait until durable, answer; in the clear or by TLS |
//! | `session` | one client's state: protocol, password, `MULTI`, `WATCH`, interactive transaction |
//! | `command` | the table of commands, and what each does: functions over a transaction |
//! | `engine` | runs commands in transactions; here a cluster would route them |
//! | `group` | one transaction for the small writes of many clients |
//! | `cluster` | this server as a node of a cluster: commands go to the owners of their keys |
//! | `keyspace` | keys, values and their ends over the store's tables |
//! | `watch`, `cursor`, `glob` | watched keys, cursors of scans, patterns |
//! | [`resp`](RequestReader) | requests read, replies written |
//! | `http`, `metrics`, `counters` | `/metrics`, `/healthz`, `/livez` and their numbers |
//! | `events` | reports to an operator, through `tracing` |
//! | `budget`, `descriptors` | bounds for all connections together: memory, open files |
//! | [`options`](ServerOptions), [`tls`](TlsFiles), [`error`](ServerError) | settings, and what can be wrong |

// A model has the modules that it is about, and nothing of sockets and stores.
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
pub use options::{Password, ServerOptions};
pub use resp::{ProtocolError, Request, RequestReader, WireLimits};
pub use server::Server;
pub use tls::TlsFiles;
