//! Requests to nodes, as a client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_fatbtree::Member;
use redis::Value;

use crate::command::serve;

/// Time limit for an answer of a node on this machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the address of a node for clients.
pub(super) fn clients(member: &Member) -> Result<SocketAddr> {
    member
        .clients
        .with_context(|| format!("the list of members does not say where clients reach node {}", member.pe.0))
}

/// Sends a request to a node and returns the reply.
pub(super) fn ask<A: AsRef<[u8]>>(member: &Member, request: &[A]) -> Result<Value> {
    ask_patiently(member, request, PATIENCE)
}

/// As [`ask`], for a request that may take `patience`.
pub(super) fn ask_patiently<A: AsRef<[u8]>>(
    member: &Member,
    request: &[A],
    patience: Duration,
) -> Result<Value> {
    let address = clients(member)?;
    let failed = || format!("node {} at {address}", member.pe.0);
    let client = redis::Client::open(format!("redis://{address}/")).with_context(failed)?;
    let mut connection = client.get_connection_with_timeout(PATIENCE).with_context(failed)?;
    connection.set_read_timeout(Some(patience)).with_context(failed)?;
    if let Some(password) = std::env::var_os(serve::PASSWORD) {
        redis::cmd("AUTH").arg(password.as_encoded_bytes()).exec(&mut connection).with_context(failed)?;
    }
    let mut command = redis::Cmd::new();
    for argument in request {
        command.arg(argument.as_ref());
    }
    command.query(&mut connection).with_context(failed)
}

/// Returns a reply of names and texts as a map.
pub(super) fn pairs(reply: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    match reply {
        Value::Array(items) => items.chunks_exact(2).map(|two| (text(&two[0]), text(&two[1]))).collect(),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), text(value))).collect(),
        _ => BTreeMap::new(),
    }
}
