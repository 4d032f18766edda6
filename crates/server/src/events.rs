//! Events: reports to an operator, through `tracing`.
//!
//! An event has addresses, counts, times, command names and error messages of the store. An event never has a
//! key, a value, a password or another argument of a request. Events that clients can cause are limited in
//! number ([`RateLimit`]); the field `suppressed` counts the omitted events.
//!
//! | event | level |
//! |---|---|
//! | server started, server stopping, server stopped | info |
//! | connection refused or closed, with the reason | warn |
//! | slow request | warn |
//! | interactive transaction rolled back at its time limit | warn |
//! | request failed in the store | error; warn if it may succeed later |
//! | request refused: it would wait for a lock | warn |
//! | panic while a request was served | error |
//! | connections cannot be accepted | error |

use std::time::Duration;

use azekura::{Error, ErrorKind};
use azekura_base::rate_limit::RateLimit;
use tracing::{error, warn};

use crate::clients::Client;
use crate::command::TABLE;
use crate::error::NO_THREAD;

/// Reason for which the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OtherUser,
    TooManyClients,
    WrongPassword,
    NoPasswordInTime,
    NoHandshakeInTime,
    Tls,
    Protocol,
    TooLarge,
    Http,
    TooMuchUnfinished,
    Stalled,
    RepliesNotTaken,
    TooMuchUnsent,
}

impl Refusal {
    const COUNT: usize = 13;

    const fn reason(self) -> &'static str {
        match self {
            Self::OtherUser => "the client runs as another user than the server, and not as root",
            Self::TooManyClients => "too many clients: raise --max-clients",
            Self::WrongPassword => "wrong password",
            Self::NoPasswordInTime => "no password within --login-timeout",
            Self::NoHandshakeInTime => "no complete TLS handshake within --login-timeout",
            Self::Tls => "the TLS handshake failed: the client may use no TLS, or another version of it",
            Self::Protocol => "not a request of RESP2 or RESP3",
            Self::TooLarge => {
                "a request is larger than --max-value or --max-request, or than 64 KiB before the login"
            }
            Self::Http => "an HTTP request, possibly sent by a web page to this port",
            Self::TooMuchUnfinished => "the unfinished requests of all connections exceed --max-unfinished",
            Self::Stalled => {
                "the unfinished requests of all connections exceed --max-unfinished, and this client has \
                 sent no byte of the rest of its request for a second"
            }
            Self::TooMuchUnsent => {
                "the unsent replies of all connections exceed --max-unfinished, and this client has most"
            }
            Self::RepliesNotTaken => "the client read no byte of its replies within the write timeout",
        }
    }
}

/// The slowest of the requests of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slowest {
    pub(crate) time: Duration,
    /// The index of its command in the table of commands.
    pub(crate) command: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Events {
    refused: [RateLimit; Refusal::COUNT],
    slow: RateLimit,
    expired: RateLimit,
    failed: RateLimit,
    would_block: RateLimit,
    panicked: RateLimit,
    accept: RateLimit,
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Events {
    pub(crate) fn refused(&self, address: &str, refusal: Refusal) {
        if let Some(suppressed) = self.refused[refusal as usize].admit() {
            warn!(address, reason = refusal.reason(), suppressed, "connection refused");
        }
    }

    /// Reports a batch of requests that took `total` from the read to the durable commit.
    pub(crate) fn slow(&self, client: &Client, requests: u64, slowest: Slowest, total: Duration) {
        if let Some(suppressed) = self.slow.admit() {
            let command = TABLE.get(slowest.command).map_or("none", |spec| spec.name);
            let (command_ms, total_ms) = (millis(slowest.time), millis(total));
            let (address, client) = (&*client.socket.peer, client.id);
            warn!(address, client, command, command_ms, requests, total_ms, suppressed, "slow request");
        }
    }

    pub(crate) fn transaction_expired(&self, client: &Client, limit: Duration) {
        if let Some(suppressed) = self.expired.admit() {
            let (address, client, limit_ms) = (&*client.socket.peer, client.id, millis(limit));
            warn!(address, client, limit_ms, suppressed, "interactive transaction rolled back at its limit");
        }
    }

    /// Reports a request that failed in the store. Conflicts are not reported, because clients retry them.
    pub(crate) fn failed(&self, failed: &Error) {
        if matches!(failed, Error::WouldBlock { .. }) {
            if let Some(suppressed) = self.would_block.admit() {
                warn!(reason = NO_THREAD, suppressed, "request refused: it would wait for a lock");
            }
            return;
        }
        let kind = failed.kind();
        let is_event =
            matches!(kind, ErrorKind::Busy | ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::Closed);
        if let Some(suppressed) = is_event.then(|| self.failed.admit()).flatten() {
            let error = failed.full_message();
            match kind {
                ErrorKind::Busy => {
                    warn!(%error, suppressed, "request failed in the store; it may succeed later")
                }
                _ => error!(%error, suppressed, "request failed in the store"),
            }
        }
    }

    pub(crate) fn panicked(&self, client: &Client) {
        if let Some(suppressed) = self.panicked.admit() {
            let command = client.last_command_name();
            let (address, client) = (&*client.socket.peer, client.id);
            error!(address, client, command, suppressed, "panic in a request: connection closed");
        }
    }

    pub(crate) fn cannot_accept(&self, error: &std::io::Error) {
        if let Some(suppressed) = self.accept.admit() {
            error!(%error, suppressed, "cannot accept connections; retrying");
        }
    }
}
