//! Settings of a server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use azekura::Durability;
use subtle::ConstantTimeEq;

use crate::cluster::ClusterOptions;
use crate::engine::Clock;
use crate::error::ServerError;
use crate::listener::ListenAddress;
use crate::resp::WireLimits;

/// The password of clients.
#[derive(Clone)]
pub struct Password(Vec<u8>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

impl Password {
    /// Creates a password; a line break at the end is removed.
    ///
    /// # Errors
    ///
    /// [`ServerError::Password`] if it is empty or longer than 512 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, ServerError> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        match bytes.len() {
            0 => Err(ServerError::Password("empty")),
            513.. => Err(ServerError::Password("longer than 512 bytes")),
            _ => Ok(Self(bytes.to_vec())),
        }
    }

    /// Compares a password in constant time: the time reveals at most its length.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        self.0.ct_eq(given).into()
    }
}

/// Settings of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Address for clients; 127.0.0.1:6379 by default. Port 0 selects a free port. A Unix socket is for
    /// clients of the server's user and of root.
    pub listen: ListenAddress,
    /// Address for `/metrics`, `/healthz` and `/livez`; none by default.
    pub metrics: Option<SocketAddr>,
    /// Password for clients; none by default, which only a loopback address and a Unix socket allow.
    pub password: Option<Password>,
    /// Certificates and key; by default connections use no TLS.
    pub tls: Option<crate::tls::TlsFiles>,
    /// Durability before the reply to a write; by default the reply waits until the write is durable.
    pub durability: Durability,
    /// Maximum of concurrent connections. The server lowers it if the process may not open that number of
    /// files, two for each reactor, and 256 more, which are reserved for the store.
    /// [`Server::max_clients`](crate::Server::max_clients) returns the number in use.
    pub max_clients: usize,
    /// Maximum of reactors: event loops that each serve a share of the connections. By default the number of
    /// processors.
    pub reactors: usize,
    /// Adapts the number of reactors to the load by trial (default). Otherwise all reactors are used.
    pub adapts_reactors: bool,
    /// Lets single-key requests that arrive together share a transaction (default). Only for measurements.
    pub groups_writes: bool,
    /// Bounds of a request.
    pub wire: WireLimits,
    /// Bound of the incomplete requests of all connections together, in bytes: requests that have arrived in
    /// part, and requests that `MULTI` has queued. Also the bound of the unsent replies of all connections
    /// together. Up to 64 KiB of each connection do not count.
    pub max_unfinished_bytes: usize,
    /// Bound of the replies of one transaction, in bytes.
    pub max_reply_bytes: usize,
    /// Time without a request after which a connection is closed; by default never.
    pub idle_timeout: Option<Duration>,
    /// Time without traffic after which the system probes a TCP client, which ends the connection of a client
    /// that does not answer; `None`: never. The default is 300 seconds, as in Redis.
    pub tcp_keepalive: Option<Duration>,
    /// Time without a login, or without a complete handshake of TLS, after which a connection is closed.
    pub login_timeout: Duration,
    /// Time after which a client that accepts no bytes is disconnected.
    pub write_timeout: Duration,
    /// Time after which an interactive transaction is rolled back, because it holds locks.
    pub transaction_timeout: Duration,
    /// Least duration, from reading a request to its durable commit, for which the request is reported as a
    /// slow-request event. Zero reports each request.
    pub slow_request: Duration,
    /// Longest time in which accepted requests are completed when the server stops.
    pub drain_timeout: Duration,
    /// The clock for expiry.
    pub clock: Clock,
    /// Interval at which expired keys are removed while some key has an expiry; ten times as long otherwise.
    pub expiry_interval: Duration,
    /// The cluster of the server and its node there; none by default.
    pub cluster: Option<ClusterOptions>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 6379))),
            metrics: None,
            password: None,
            tls: None,
            durability: Durability::Immediate,
            max_clients: 1024,
            reactors: std::thread::available_parallelism().map_or(1, usize::from),
            adapts_reactors: true,
            groups_writes: true,
            wire: WireLimits::default(),
            max_unfinished_bytes: 256 << 20,
            max_reply_bytes: 64 << 20,
            idle_timeout: None,
            tcp_keepalive: Some(Duration::from_secs(300)),
            login_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            transaction_timeout: Duration::from_secs(10),
            slow_request: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(10),
            clock: Clock::System,
            expiry_interval: Duration::from_millis(100),
            cluster: None,
        }
    }
}

/// Longest time of an option. Longer times count as this one, because the sum of a time and the present must
/// not overflow.
const LONGEST_TIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl ServerOptions {
    /// Limits all times to [`LONGEST_TIME`].
    pub(crate) fn limit_times(&mut self) {
        let times = [
            &mut self.login_timeout,
            &mut self.write_timeout,
            &mut self.transaction_timeout,
            &mut self.drain_timeout,
            &mut self.expiry_interval,
        ];
        for time in times.into_iter().chain(&mut self.idle_timeout) {
            *time = (*time).min(LONGEST_TIME);
        }
    }

    /// Checks the settings; [`Server::start`](crate::Server::start) does too.
    ///
    /// # Errors
    ///
    /// [`ServerError::PublicWithoutPassword`], [`ServerError::RelaxedNode`].
    pub fn validate(&self) -> Result<(), ServerError> {
        if self.password.is_none() && self.listen.is_public() {
            return Err(ServerError::PublicWithoutPassword(self.listen.clone()));
        }
        if self.cluster.is_some() && self.durability == Durability::Relaxed {
            return Err(ServerError::RelaxedNode);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use azekura_auth::AuthKey;
    use azekura_fatbtree::{FileMeta, PeId};

    use super::*;

    #[test]
    fn a_password_is_compared_whole_and_never_shown() {
        let password = Password::new(b"secret\r\n").expect("fine");
        assert!(password.is(b"secret"));
        assert!(!password.is(b"secre") && !password.is(b"secret\n") && !password.is(b""));
        assert!(!format!("{password:?}").contains("secret"));
        assert!(Password::new(b"\n").is_err());
        assert!(Password::new(&[b'a'; 513]).is_err());
    }

    #[test]
    fn a_node_of_a_cluster_needs_immediate_durability() {
        let meta = Arc::new(FileMeta::new(Path::new("members")));
        let cluster = ClusterOptions::new(meta, PeId(0), AuthKey::new(&[1; 32]).expect("fine"));
        let mut options = ServerOptions { cluster: Some(cluster), ..Default::default() };
        assert!(options.validate().is_ok());
        options.durability = Durability::Relaxed;
        assert!(matches!(options.validate(), Err(ServerError::RelaxedNode)));
    }

    #[test]
    fn a_public_address_needs_a_password() {
        let mut options =
            ServerOptions { listen: "0.0.0.0:0".parse().expect("address"), ..Default::default() };
        assert!(matches!(options.validate(), Err(ServerError::PublicWithoutPassword(_))));
        options.password = Some(Password::new(b"x").expect("fine"));
        assert!(options.validate().is_ok());
        options.password = None;
        for private in ["[::1]:0", "unix:/run/azekura.sock"] {
            options.listen = private.parse().expect("address");
            assert!(options.validate().is_ok(), "{private}");
        }
    }
}
