//! Sends requests to nodes, as a client.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_fatbtree::Member;

use super::client::{Client, Reply};
use crate::command::serve;

/// Time limit for an answer of a node on this machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the address of a node for clients.
pub(super) fn clients(member: &Member) -> Result<SocketAddr> {
    member
        .clients
        .with_context(|| format!("the list of members does not say where clients reach node {}", member.pe.0))
}

/// Sends a request to a node and returns the reply.
pub(super) fn ask<A: AsRef<[u8]>>(member: &Member, request: &[A]) -> Result<Reply> {
    ask_within(member, request, TIMEOUT)
}

/// Sends a request as [`ask`] does, if it may take up to `timeout`.
pub(super) fn ask_within<A: AsRef<[u8]>>(member: &Member, request: &[A], timeout: Duration) -> Result<Reply> {
    let address = clients(member)?;
    let failed = || format!("node {} at {address}", member.pe.0);
    let mut client = Client::connect(address, TIMEOUT).with_context(failed)?;
    if let Some(password) = std::env::var_os(serve::PASSWORD) {
        client.ask(&[b"AUTH", password.as_encoded_bytes()]).with_context(failed)?;
    }
    client.set_timeout(timeout).with_context(failed)?;
    client.ask(request).with_context(failed)
}

/// Returns a reply of names and texts as a map.
pub(super) fn pairs(reply: &Reply) -> BTreeMap<String, String> {
    let text = |reply: &Reply| match reply {
        Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    match reply {
        Reply::Array(items) => items.chunks_exact(2).map(|two| (text(&two[0]), text(&two[1]))).collect(),
        _ => BTreeMap::new(),
    }
}
