//! `CLIENT`: the list of clients, and the properties that a client sets for itself.

use std::collections::HashSet;
use std::time::Duration;

use super::Session;
use super::connection::is_name;
use crate::clients::Client;
use crate::command::{self, integer, is_word};
use crate::error::CommandError;
use crate::resp::{Reply, Request};

impl Session {
    /// Runs `CLIENT ID | GETNAME | SETNAME name | SETINFO attribute value | INFO | LIST | KILL … | UNBLOCK id
    /// | GETREDIR | REPLY ON | NO-EVICT … | NO-TOUCH …`.
    pub(super) fn client_command(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        let id = i64::try_from(self.client.id).unwrap_or(i64::MAX);
        let word = request.arg(1).to_ascii_uppercase();
        match (word.as_slice(), request.len()) {
            (b"ID", 2) => Ok(Reply::Integer(id)),
            (b"GETNAME", 2) => {
                let name = self.client.about.lock().name.clone();
                Ok(if name.is_empty() { Reply::Null } else { Reply::Bulk(name) })
            }
            (b"SETNAME", 3) => {
                self.client.about.lock().name = is_name(request.arg(2))?;
                Ok(Reply::OK)
            }
            (b"SETINFO", 4) => self.set_info(request),
            (b"INFO", 2) => Ok(Reply::Verbatim(self.client.line() + "\n")),
            (b"LIST", _) => self.list(request),
            (b"KILL", 3..) => self.kill(request),
            // No command blocks a client, and the server never sends unrequested messages.
            (b"UNBLOCK", 3 | 4) => {
                let is_reason = ["TIMEOUT", "ERROR"].iter().any(|word| is_word(request.arg(3), word));
                if request.len() == 4 && !is_reason {
                    let reason = "CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
                    return Err(CommandError::Protocol(reason.into()));
                }
                integer(request.arg(2)).map(|_| Reply::Integer(0))
            }
            (b"REPLY", 3) => match request.arg(2).to_ascii_uppercase().as_slice() {
                b"ON" => Ok(Reply::OK),
                b"OFF" | b"SKIP" => Err(CommandError::NotOffered("CLIENT REPLY", "each request has a reply")),
                _ => Err(CommandError::Syntax),
            },
            (b"GETREDIR", 2) => Ok(Reply::Integer(-1)),
            // Keys are never evicted, and uses of keys are not recorded.
            (b"NO-EVICT" | b"NO-TOUCH", 3)
                if ["ON", "OFF"].iter().any(|word| is_word(request.arg(2), word)) =>
            {
                Ok(Reply::OK)
            }
            _ => Err(CommandError::Syntax),
        }
    }

    fn set_info(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        let mut about = self.client.about.lock();
        let about = match request.arg(2).to_ascii_uppercase().as_slice() {
            b"LIB-NAME" => &mut about.library,
            b"LIB-VER" => &mut about.library_version,
            _ => return Err(CommandError::ClientAttribute(command::short_text(request.arg(2)))),
        };
        let wrong = |_| CommandError::ClientValue(command::short_text(request.arg(2)));
        *about = is_name(request.arg(3)).map_err(wrong)?;
        Ok(Reply::OK)
    }

    /// Runs `CLIENT LIST [TYPE type] [ID id…]`.
    fn list(&self, request: Request<'_>) -> Result<Reply, CommandError> {
        let wanted = ClientFilter::parse_list(request)?;
        let clients = self.shared.clients.list();
        let lines = clients.iter().filter(|client| wanted.fits(client)).map(|client| client.line() + "\n");
        Ok(Reply::Verbatim(lines.collect()))
    }

    /// Runs `CLIENT KILL address`, `CLIENT KILL [ID id…] [ADDR address] [LADDR address] [TYPE type] [USER
    /// name] [MAXAGE seconds] [SKIPME yes | no]`.
    fn kill(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        let is_old_form = request.len() == 3;
        let wanted = if is_old_form {
            ClientFilter { address: Some(text(request.arg(2))), ..ClientFilter::default() }
        } else {
            ClientFilter::parse_kill(request)?
        };
        let own = self.client.id;
        let spares_own = wanted.spares_own.unwrap_or(!is_old_form);
        let found: Vec<_> = self.shared.clients.list();
        let found = found.iter().filter(|client| wanted.fits(client) && !(spares_own && client.id == own));
        let mut killed = 0;
        for client in found {
            killed += 1;
            // The reply must still be sent, so the own connection ends after it.
            if client.id == own { self.ends = true } else { client.cut() }
        }
        match (is_old_form, killed) {
            (true, 0) => Err(CommandError::Protocol("No such client".into())),
            (true, _) => Ok(Reply::OK),
            (false, killed) => Ok(Reply::Integer(killed)),
        }
    }
}

/// A filter of clients: all given conditions must hold.
#[derive(Debug, Default)]
struct ClientFilter {
    ids: HashSet<u64>,
    address: Option<String>,
    local: Option<String>,
    min_age: Option<Duration>,
    /// `true` if the filter asks for a client type other than `normal`; no client has such a type.
    is_of_other_type: bool,
    spares_own: Option<bool>,
}

fn text(argument: &[u8]) -> String {
    String::from_utf8_lossy(argument).into_owned()
}

impl ClientFilter {
    fn parse_list(request: Request<'_>) -> Result<Self, CommandError> {
        let mut wanted = Self::default();
        match request.arg(2) {
            b"" if request.len() == 2 => {}
            word if is_word(word, "TYPE") && request.len() == 4 => wanted.set_type(request.arg(3))?,
            word if is_word(word, "ID") && request.len() > 3 => {
                for id in request.from(3) {
                    let id = integer(id).map_err(|_| CommandError::Protocol("Invalid client ID".into()))?;
                    wanted.ids.insert(u64::try_from(id).unwrap_or(0)); // no client has number 0
                }
            }
            _ => return Err(CommandError::Syntax),
        }
        Ok(wanted)
    }

    fn parse_kill(request: Request<'_>) -> Result<Self, CommandError> {
        let mut wanted = Self::default();
        let arguments: Vec<_> = request.from(2).collect();
        let (pairs, rest) = arguments.as_chunks::<2>();
        if pairs.is_empty() || !rest.is_empty() {
            return Err(CommandError::Syntax);
        }
        for &[word, value] in pairs {
            match word.to_ascii_uppercase().as_slice() {
                b"ID" => wanted.add_id(value)?,
                b"ADDR" => wanted.address = Some(text(value)),
                b"LADDR" => wanted.local = Some(text(value)),
                // `default` is the only user.
                b"USER" if value == b"default" => {}
                b"USER" => return Err(CommandError::NoSuchUser(text(&value[..value.len().min(64)]))),
                b"TYPE" => wanted.set_type(value)?,
                b"MAXAGE" => {
                    let seconds = u64::try_from(integer(value)?).map_err(|_| CommandError::NotAnInteger)?;
                    wanted.min_age = Some(Duration::from_secs(seconds));
                }
                b"SKIPME" if is_word(value, "yes") => wanted.spares_own = Some(true),
                b"SKIPME" if is_word(value, "no") => wanted.spares_own = Some(false),
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(wanted)
    }

    fn add_id(&mut self, argument: &[u8]) -> Result<(), CommandError> {
        let id = integer(argument).ok().and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
        self.ids.insert(id.ok_or(CommandError::ClientId)?);
        Ok(())
    }

    fn set_type(&mut self, argument: &[u8]) -> Result<(), CommandError> {
        let is_type = ["normal", "master", "replica", "slave", "pubsub"];
        if !is_type.iter().any(|name| is_word(argument, name)) {
            return Err(CommandError::ClientType(text(&argument[..argument.len().min(64)])));
        }
        self.is_of_other_type = !is_word(argument, "normal");
        Ok(())
    }

    fn fits(&self, client: &Client) -> bool {
        let is = |wanted: &Option<String>, is: &dyn Fn() -> String| {
            wanted.as_ref().is_none_or(|wanted| *wanted == is())
        };
        !self.is_of_other_type
            && (self.ids.is_empty() || self.ids.contains(&client.id))
            && is(&self.address, &|| client.socket.peer.clone())
            && is(&self.local, &|| client.socket.local.clone())
            && self.min_age.is_none_or(|age| client.age() >= age)
    }
}
