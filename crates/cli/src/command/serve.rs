//! `serve`: a server for Redis clients.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura::Database;
use azekura_auth::AuthKey;
use azekura_fatbtree::{FileMeta, Membership, PeId};
use azekura_server::{ClusterOptions, ListenAddress, Password, Server, ServerError, ServerOptions, TlsFiles};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

use crate::arguments::{StoreArguments, limit_bytes, seconds, socket_address};
use crate::logging::{self, LogFormat};
use crate::store::read_short;
use crate::{Outcome, UsageError, signals};

const EXAMPLES: &str = "\
Examples:
  azekura serve my.db                                    on 127.0.0.1:6379; creates the store
  redis-cli set greeting hello
  redis-cli az.range - + limit 10                        keys in order
  azekura serve my.db --listen 0.0.0.0:6379 --auth password.txt --tls cert.pem key.pem
  azekura serve my.db --listen unix:/run/my.sock         for this machine: redis-cli -s /run/my.sock
  azekura serve my.db --metrics 127.0.0.1:9121           /metrics for Prometheus, and /healthz
  azekura serve my.db --log-format json                  events on stderr, one JSON object a line
  azekura serve node-0.db --cluster cluster.toml --node 0   a node: see azekura cluster --help

A write is acknowledged when it survives power loss (see --durability). Ctrl-C or SIGTERM answers
the requests that have arrived, closes the store, and ends with exit code 0; a second signal ends
the process at once. Neither loses an acknowledged write.
Without --auth the environment variable AZEKURA_PASSWORD has the password, if it is set.
docs/server.md lists the commands and the differences from Redis.";

/// The environment variable with the password.
pub(crate) const PASSWORD: &str = "AZEKURA_PASSWORD";

/// Interval of log syncs with relaxed durability, as in Redis with `appendfsync everysec`.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The failures that an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Durability {
    /// Power loss, and the end of the process.
    #[default]
    Full,
    /// The end of the process only.
    Relaxed,
}

/// Serve a store to Redis clients (RESP2 and RESP3)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// Address for clients; port 0 takes a free port; unix:PATH is a Unix socket for this user's programs on
    /// this machine [default: 127.0.0.1:6379, or the address in the list of members]
    #[arg(long, value_name = "HOST:PORT", value_parser = listen_address)]
    listen: Option<ListenAddress>,

    /// File with the password for clients; required for an address that other machines can reach
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,

    /// Certificate chain and private key (PEM) for TLS
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"])]
    tls: Option<Vec<PathBuf>>,

    /// Address for /metrics, /healthz and /livez; without TLS and without a password
    #[arg(long, value_name = "HOST:PORT", value_parser = socket_address)]
    metrics: Option<SocketAddr>,

    /// Failures that an acknowledged write survives; with relaxed, a power loss can lose the last second,
    /// always whole transactions (as Redis with appendfsync everysec). A node of a cluster needs full
    #[arg(long, value_enum, default_value_t)]
    durability: Durability,

    /// Largest number of connections; fewer if the limit of open files (ulimit -Hn) is too low
    #[arg(long, value_name = "N", default_value = "1024",
        value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_clients: usize,

    /// Number of threads that run requests, without those that wait [default: adapts, at most one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    reactors: Option<u16>,

    /// Largest value or argument
    #[arg(long, value_name = "SIZE", value_parser = limit_bytes, default_value = "16M")]
    max_value: usize,

    /// Largest request, and largest queue of a MULTI
    #[arg(long, value_name = "SIZE", value_parser = limit_bytes, default_value = "64M")]
    max_request: usize,

    /// Largest memory of the unfinished requests of all connections together, and of their unsent replies
    #[arg(long, value_name = "SIZE", value_parser = limit_bytes, default_value = "256M")]
    max_unfinished: usize,

    /// Largest reply to one transaction
    #[arg(long, value_name = "SIZE", value_parser = limit_bytes, default_value = "64M")]
    max_reply: usize,

    /// Close connections without a request for this long; 0 is never [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    idle_timeout: Option<Duration>,

    /// Probe TCP clients without traffic for this long, and close those that do not answer; 0 is never
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300")]
    tcp_keepalive: Duration,

    /// Close connections that have not sent the password after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    login_timeout: Duration,

    /// List of members (cluster.toml): serve as a node of this cluster
    #[arg(long, value_name = "FILE", requires = "node")]
    cluster: Option<PathBuf>,

    /// Number of this node in the list
    #[arg(long, value_name = "N", requires = "cluster", value_parser = clap::value_parser!(u16))]
    node: Option<u16>,

    /// Serve with a new store although the cluster has a record of an older store of this node, which is
    /// lost. Rows that only the lost store had are gone
    #[arg(long, requires = "cluster")]
    accept_loss: bool,

    /// Serve with a restored or compacted store although another node is down, and cannot confirm that the
    /// store still owns its keys. Keys that have moved to that node since the backup then have two owners
    #[arg(long, requires = "cluster")]
    accept_restored: bool,

    /// Longest wait for the answer of another node; a request for a key of a node that is known to be down is
    /// refused at once [default: 1.5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "cluster")]
    request_timeout: Option<Duration>,

    /// Largest clock difference between nodes; nodes with a larger one are refused, because keys could expire
    /// too early there [default: 2]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, requires = "cluster")]
    max_clock_offset: Option<Duration>,

    /// Roll back interactive transactions that are open for longer
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    transaction_timeout: Duration,

    /// Log requests that take at least this long, up to their durable commit; 0 logs each
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    slow_request: Duration,

    /// Format of the log on stderr; the environment variable RUST_LOG filters it, as in warn,azekura=debug
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

impl Serve {
    pub(crate) fn run(&self, store: &StoreArguments) -> Result<Outcome> {
        logging::start(self.log_format)?;
        match self.serve(store) {
            Err(error) if self.log_format == LogFormat::Json => {
                tracing::error!(error = %format!("{error:#}"), "azekura serve failed");
                Ok(Outcome::Failed)
            }
            done => done,
        }
    }

    fn serve(&self, store: &StoreArguments) -> Result<Outcome> {
        // The records of moves must be synced, because the other node forgets the leaf.
        if self.cluster.is_some() && self.durability == Durability::Relaxed {
            return Err(UsageError(
                "--durability relaxed is not offered with --cluster: a power loss after the move of a leaf \
                 could lose the whole leaf, or give it two owners"
                    .to_owned(),
            )
            .into());
        }
        let options = self.options()?;
        options.validate()?; // Before a store is created.
        // Before the store is opened, so that a signal in the meantime is not lost.
        let mut signals = signals::to_stop()?;
        let interval = (self.durability == Durability::Relaxed).then_some(SYNC_INTERVAL);
        let db = store.open_to_serve(&self.path, interval)?;
        let server = Server::start(db.clone(), options)?;
        // A server serves also if the reader of its stdout has ended, or the disk of its log is full.
        let _ = self.print_addresses(&server, &mut std::io::stdout());
        let most = server.max_clients();
        if most < self.max_clients {
            tracing::warn!(
                max_clients = most,
                wanted = self.max_clients,
                "fewer connections than --max-clients: the process may open no more files, and the store \
                 needs 256; raise the limit (ulimit -Hn)"
            );
        }
        let mut byte = [0];
        signals.read_exact(&mut byte).context("cannot wait for a signal")?;
        tracing::info!("signal received: stopping; a second signal ends the process at once");
        stop(server, &db)?;
        Ok(Outcome::Well)
    }

    fn print_addresses(&self, server: &Server, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "serving {} on {}", self.path.display(), server.address())?;
        if let (Some(address), Some(node)) = (server.node_address(), self.node) {
            writeln!(out, "node {node} of {}, for other nodes on {address}", self.cluster_name())?;
        }
        if let Some(address) = server.metrics_address() {
            writeln!(out, "metrics on http://{address}/metrics")?;
        }
        out.flush()
    }

    fn options(&self) -> Result<ServerOptions> {
        let mut options = ServerOptions::default();
        if let (Some(file), Some(node)) = (&self.cluster, self.node) {
            let (mut cluster, clients) = membership(file, PeId(node))?;
            cluster.node.is_loss_accepted = self.accept_loss;
            cluster.node.is_copy_accepted = self.accept_restored;
            if let Some(most) = self.max_clock_offset {
                cluster.node.max_clock_offset = most;
            }
            if let Some(timeout) = self.request_timeout {
                cluster.node.request_timeout = timeout;
                cluster.node.read_timeout = cluster.node.read_timeout.min(timeout);
            }
            options.cluster = Some(cluster);
            options.listen = clients.map_or(options.listen, ListenAddress::Tcp);
        }
        options.listen = self.listen.clone().unwrap_or(options.listen);
        options.metrics = self.metrics;
        options.password = self.password()?;
        options.tls = self.tls.as_deref().and_then(|files| match files {
            [certificates, key] => Some(TlsFiles { certificates: certificates.clone(), key: key.clone() }),
            _ => None,
        });
        if let Some(reactors) = self.reactors {
            options.reactors = reactors.into();
            options.adapts_reactors = false;
        }
        options.max_clients = self.max_clients;
        options.wire.max_bulk_bytes = self.max_value;
        options.wire.max_request_bytes = self.max_request;
        options.max_unfinished_bytes = self.max_unfinished;
        options.max_reply_bytes = self.max_reply;
        options.login_timeout = self.login_timeout;
        options.idle_timeout = self.idle_timeout.filter(|time| !time.is_zero()); // as in Redis
        options.tcp_keepalive = Some(self.tcp_keepalive).filter(|time| !time.is_zero());
        options.transaction_timeout = self.transaction_timeout;
        options.slow_request = self.slow_request;
        Ok(options)
    }

    fn cluster_name(&self) -> String {
        self.cluster.as_ref().map_or_else(String::new, |file| file.display().to_string())
    }

    fn password(&self) -> Result<Option<Password>> {
        if let Some(path) = &self.auth {
            let bytes = read_short(path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(Some(
                Password::new(&bytes).with_context(|| format!("password file {}", path.display()))?,
            ));
        }
        match std::env::var_os(PASSWORD) {
            None => Ok(None),
            Some(text) => Ok(Some(Password::new(text.as_encoded_bytes()).context(PASSWORD)?)),
        }
    }
}

/// Stops the server and closes the store. A request that runs beyond the time limits of the stop is no error:
/// the client has received no reply to it, and every acknowledged write is durable.
fn stop(server: Server, db: &Database) -> Result<()> {
    match server.stop() {
        Err(ServerError::StillInUse) => {
            tracing::warn!("a request has not ended within the time limit: its client receives no reply");
        }
        done => done?,
    }
    match db.close() {
        Err(azekura::Error::StillInUse { transactions }) => {
            tracing::warn!(transactions, "the store is not closed: the next opening recovers it");
        }
        done => done?,
    }
    Ok(())
}

/// Returns the settings of a node of a cluster, and its address for clients.
fn membership(file: &Path, node: PeId) -> Result<(ClusterOptions, Option<SocketAddr>)> {
    let members = Membership::read(file)
        .with_context(|| format!("cannot read the list of members {}", file.display()))?;
    let member = members.node(node);
    let member = member.with_context(|| format!("{} has no node {}", file.display(), node.0))?;
    let path = members.key_file();
    let key = AuthKey::read(path).with_context(|| format!("cannot read the key file {}", path.display()))?;
    Ok((ClusterOptions::new(Arc::new(FileMeta::new(file)), node, key), member.clients))
}

/// Parses `HOST:PORT` or `unix:PATH`.
fn listen_address(text: &str) -> Result<ListenAddress, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("no path after unix:".into()),
        Some(path) => Ok(ListenAddress::Unix(path.into())),
        None => socket_address(text).map(ListenAddress::Tcp),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use azekura::TableDefinition;

    use super::*;

    #[test]
    fn a_request_that_outlasts_the_time_limit_is_no_failure_of_the_stop() {
        let db = Database::in_memory().expect("memory");
        let mut options = ServerOptions::default();
        options.listen = "127.0.0.1:0".parse().expect("an address");
        options.drain_timeout = Duration::from_millis(1);
        let server = Server::start(db.clone(), options).expect("a server");
        // The request waits for this lock until the server has stopped.
        let holder = db.begin().expect("the store is open");
        let keys = TableDefinition::<[u8], [u8]>::new("redis.keys");
        holder.table(&keys).and_then(|keys| keys.get_for_update(b"k")).expect("no other lock");
        let mut client = TcpStream::connect(server.address().tcp().expect("a port")).expect("it listens");
        client.write_all(b"SET k v\r\n").expect("it listens");
        while !holder.has_waiters() {
            std::thread::yield_now();
        }
        stop(server, &db).expect("no failure");
        holder.abort().expect("it is open");
    }
}
