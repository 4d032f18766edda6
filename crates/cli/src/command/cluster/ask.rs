//! Questions to nodes, as one of their clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_fatbtree::Member;

use super::client::{Client, Reply};
use crate::command::serve;

/// A node on this machine answers within this time, or not at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where clients reach a node.
pub(super) fn clients(member: &Member) -> Result<SocketAddr> {
    member
        .clients
        .with_context(|| format!("the list of members does not say where clients reach node {}", member.pe.0))
}

/// Asks a node.
pub(super) fn ask<A: AsRef<[u8]>>(member: &Member, request: &[A]) -> Result<Reply> {
    ask_patiently(member, request, PATIENCE)
}

/// Asks a node what may take so long.
pub(super) fn ask_patiently<A: AsRef<[u8]>>(
    member: &Member,
    request: &[A],
    patience: Duration,
) -> Result<Reply> {
    let address = clients(member)?;
    let failed = || format!("node {} at {address}", member.pe.0);
    let mut client = Client::connect(address, PATIENCE).with_context(failed)?;
    if let Some(password) = std::env::var_os(serve::PASSWORD) {
        client.ask(&[b"AUTH", password.as_encoded_bytes()]).with_context(failed)?;
    }
    client.set_patience(patience).with_context(failed)?;
    client.ask(request).with_context(failed)
}

/// A reply of names and texts.
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
