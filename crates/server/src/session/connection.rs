//! Commands on the connection: login, protocol, name.

use super::info::REDIS_VERSION;
use super::{MAX_FAILED_LOGINS, Session};
use crate::command::{database_index, integer, is_word, short_text};
use crate::error::CommandError;
use crate::events::Refusal;
use crate::resp::{Protocol, Reply, Request};

/// Longest name of a client or its library.
const MAX_NAME_BYTES: usize = 256;

/// Runs `WAIT replicas milliseconds`: there are no replicas.
pub(super) fn wait(request: Request<'_>) -> Result<Reply, CommandError> {
    integer(request.arg(1))?;
    let timeout = integer(request.arg(2)).map_err(|_| CommandError::Timeout)?;
    if timeout < 0 { Err(CommandError::NegativeTimeout) } else { Ok(Reply::Integer(0)) }
}

/// Runs `PING [message]`.
pub(super) fn ping(request: Request<'_>) -> Result<Reply, CommandError> {
    match request.len() {
        1 => Ok(Reply::Simple("PONG")),
        2 => Ok(Reply::Bulk(request.arg(1).to_vec())),
        _ => Err(CommandError::Arity("ping".into())),
    }
}

/// Runs `SELECT 0`.
pub(super) fn select(request: Request<'_>) -> Result<Reply, CommandError> {
    database_index(request.arg(1)).map(|()| Reply::OK)
}

pub(super) fn is_name(name: &[u8]) -> Result<Vec<u8>, CommandError> {
    let is_fine = name.len() <= MAX_NAME_BYTES && name.iter().all(u8::is_ascii_graphic);
    if is_fine { Ok(name.to_vec()) } else { Err(CommandError::ClientName) }
}

impl Session {
    /// Runs `HELLO [2 | 3 [AUTH user password] [SETNAME name]]`.
    pub(super) fn hello(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        let protocol = match request.arg(1) {
            b"" if request.len() == 1 => self.protocol,
            b"2" => Protocol::Resp2,
            b"3" => Protocol::Resp3,
            version if integer(version).is_err() => return Err(CommandError::ProtocolVersion),
            _ => return Err(CommandError::NoProto),
        };
        let (mut at, mut login, mut name) = (2, None, None);
        while at < request.len() {
            if is_word(request.arg(at), "AUTH") && at + 2 < request.len() {
                login = Some((request.arg(at + 1), request.arg(at + 2)));
                at += 3;
            } else if is_word(request.arg(at), "SETNAME") && at + 1 < request.len() {
                name = Some(is_name(request.arg(at + 1))?);
                at += 2;
            } else {
                return Err(CommandError::HelloOption(short_text(request.arg(at))));
            }
        }
        if let Some((user, password)) = login {
            self.log_in(user, password)?;
        }
        if !self.is_authenticated {
            return Err(CommandError::HelloNoAuth);
        }
        self.protocol = protocol;
        let mut about = self.client.about.lock();
        about.protocol = protocol.number();
        if let Some(name) = name {
            about.name = name;
        }
        drop(about);
        Ok(self.greeting())
    }

    fn greeting(&self) -> Reply {
        let id = i64::try_from(self.client.id).unwrap_or(i64::MAX);
        Reply::Map(vec![
            (Reply::text("server"), Reply::text("azekura")),
            (Reply::text("version"), Reply::text(REDIS_VERSION)),
            (Reply::text("proto"), Reply::Integer(self.protocol.number())),
            (Reply::text("id"), Reply::Integer(id)),
            (Reply::text("mode"), Reply::text("standalone")),
            (Reply::text("role"), Reply::text("master")),
            (Reply::text("modules"), Reply::Array(Vec::new())),
        ])
    }

    /// Runs `AUTH [user] password`.
    pub(super) fn auth(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        match request.len() {
            2 if self.shared.options.password.is_none() => Err(CommandError::AuthNotSet),
            2 => self.log_in(b"default", request.arg(1)),
            3 => self.log_in(request.arg(1), request.arg(2)),
            _ => Err(CommandError::Syntax),
        }?;
        Ok(Reply::OK)
    }

    fn log_in(&mut self, user: &[u8], given: &[u8]) -> Result<(), CommandError> {
        // The password is compared first and in constant time, for every user. Without a configured password,
        // the default user logs in with any password.
        let is_it = self.shared.options.password.as_ref().is_none_or(|password| password.is(given));
        if is_it && user == b"default" {
            self.is_authenticated = true;
            return Ok(());
        }
        self.shared.counters.failed_logins.inc();
        self.shared.events.refused(&self.client.socket.peer, Refusal::WrongPassword);
        self.failed_logins += 1;
        self.ends |= self.failed_logins >= MAX_FAILED_LOGINS;
        Err(CommandError::WrongPass)
    }
}
