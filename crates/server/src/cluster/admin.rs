//! `AZ.CLUSTER`: the nodes, the placement of keys, and moves of leaves.

use std::fmt::Write as _;

use azekura_fatbtree::tcp::{LinkState, NodeStatus};
use azekura_fatbtree::{Answer, Key, KeyRange, PeId, RouteEntry, Target, Work};

use super::Cluster;
use crate::command::is_word;
use crate::error::CommandError;
use crate::resp::{Reply, Request};

/// Default limit of `MAP`: number of leaves.
const MAP_LEAVES: usize = 1000;

impl Cluster {
    /// Runs `AZ.CLUSTER MAP [FROM key] [LIMIT n] | STATUS | MEMBERS | SPLIT key | MOVE key node | RELOAD |
    /// LEAVE [VERSION n]`.
    pub(crate) fn administer(&self, request: Request<'_>) -> Result<Reply, CommandError> {
        let word = request.arg(1).to_ascii_uppercase();
        match (word.as_slice(), request.len()) {
            (b"MAP", 2..) => self.map(request),
            (b"STATUS", 2) => {
                let status = self.at_node(|here| Box::pin(async move { here.status() }))?;
                Ok(status_reply(&status))
            }
            (b"MEMBERS", 2) => self.members(),
            (b"SPLIT", 3) => self.split(request.arg(2)),
            (b"MOVE", 4) => self.change(request.arg(2), Work::Move { to: self.member(request.arg(3))? }),
            (b"RELOAD", 2) => self.reload(),
            (b"LEAVE", 2) => self.leave(None),
            (b"LEAVE", 4) if is_word(request.arg(2), "VERSION") => {
                self.leave(Some(crate::command::integer(request.arg(3))?))
            }
            _ => {
                let word = String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
                Err(CommandError::UnknownWord("az.cluster", word))
            }
        }
    }

    /// Runs `MAP`. The reply has for each leaf, in key order: its first key, its exclusive end (nil for the
    /// last leaf), its node, its number at that node, and its version.
    fn map(&self, request: Request<'_>) -> Result<Reply, CommandError> {
        let (mut from, mut limit) = (Key::new(), MAP_LEAVES);
        let mut options = request.from(2);
        while let Some(option) = options.next() {
            let value = options.next().ok_or(CommandError::Syntax)?;
            if is_word(option, "FROM") {
                from = value.to_vec();
            } else if is_word(option, "LIMIT") {
                limit = usize::try_from(crate::command::integer(value)?)
                    .map_err(|_| CommandError::NotAnInteger)?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let mut leaves = Vec::new();
        let mut next = Some(from);
        while let Some(from) = next.take()
            && leaves.len() < limit
        {
            let route_entry = self.leaf_at(from)?;
            next = route_entry.range.high.clone();
            leaves.push(leaf_reply(route_entry));
        }
        Ok(Reply::Array(leaves))
    }

    fn leaf_at(&self, key: Key) -> Result<RouteEntry, CommandError> {
        // The limit 0 reads no rows; the answer contains the leaf.
        let within = KeyRange { high: Some(key.clone()), low: key.clone() };
        let (answer, route_entry) = self.call(Target::At(key), Work::Rows { within, limit: 0 })?;
        match (answer, route_entry) {
            (Answer::Rows { .. }, Some(route_entry)) => Ok(route_entry),
            _ => Err(CommandError::Unavailable("an answer without its leaf".into())),
        }
    }

    fn change(&self, key: &[u8], work: Work) -> Result<Reply, CommandError> {
        self.call(Target::At(key.to_vec()), work)?;
        Ok(Reply::OK)
    }

    fn member(&self, argument: &[u8]) -> Result<PeId, CommandError> {
        let number = crate::command::integer(argument)?;
        u16::try_from(number).map(PeId).map_err(|_| CommandError::NotAnInteger)
    }

    /// Runs `MEMBERS`. The reply has for each node: its number, its address for nodes, and its address for
    /// clients (nil if unknown).
    fn members(&self) -> Result<Reply, CommandError> {
        let members = self.meta.members().map_err(|error| CommandError::Unavailable(error.to_string()))?;
        let member = |member: &azekura_fatbtree::Member| {
            Reply::Array(vec![
                Reply::Integer(member.pe.0.into()),
                Reply::text(member.address.to_string()),
                member.clients.map_or(Reply::Null, |address| Reply::text(address.to_string())),
            ])
        };
        Ok(Reply::Array(members.nodes().iter().map(member).collect()))
    }

    /// Runs `SPLIT`. Every node stores the first key of a leaf, so it may not be longer than a row's key.
    fn split(&self, key: &[u8]) -> Result<Reply, CommandError> {
        let (len, max) = (key.len(), self.max_key_bytes);
        if len > max { Err(CommandError::KeyTooLong { len, max }) } else { self.change(key, Work::Split) }
    }

    /// Runs `RELOAD`: reads the list of members again.
    fn reload(&self) -> Result<Reply, CommandError> {
        let members = self.meta.members().map_err(|error| CommandError::Unavailable(error.to_string()))?;
        let learned =
            self.at_node(move |here| Box::pin(async move { here.learn_members(&members).await }))?;
        learned.map_err(|error| CommandError::Protocol(error.to_string()))?;
        Ok(Reply::OK)
    }

    /// Runs `LEAVE`: this node leaves the cluster. The reply is sent when all other nodes have acknowledged
    /// this. Refused if the list of members does not have the given version.
    fn leave(&self, version: Option<i64>) -> Result<Reply, CommandError> {
        let left = self.at_node(move |here| {
            Box::pin(async move {
                let known = here.node.list_versions().0;
                if let Some(version) = version.filter(|version| u64::try_from(*version) != Ok(known)) {
                    return Err(format!(
                        "wrong version: this node goes by version {known} of the list of members, not by \
                         {version}"
                    ));
                }
                here.leave().await.map_err(|error| error.to_string())
            })
        })?;
        left.map_err(CommandError::Protocol)?;
        Ok(Reply::OK)
    }

    /// Returns the reason that some keys cannot be served, if any.
    pub(crate) fn health(&self) -> Result<(), String> {
        let status = self.at_node(|here| Box::pin(async move { here.status() }));
        let status = status.map_err(|error| error.to_string())?;
        if let Some(failure) = status.failure {
            return Err(failure);
        }
        if !status.is_settled {
            return Err(
                "this node waits for the answers of all other nodes before it serves its keys".to_owned()
            );
        }
        match status.links.iter().find(|link| link.state != LinkState::Up) {
            None => Ok(()),
            Some(link) => Err(format!("node {} cannot be reached: {}", link.pe.0, state_text(&link.state))),
        }
    }

    /// Appends the lines of `INFO`.
    pub(crate) fn tell(&self, text: &mut String) {
        let Ok(status) = self.at_node(|here| Box::pin(async move { here.status() })) else { return };
        let waits = ("azekura_waits", self.waits.recent().to_string());
        let served = ("azekura_served_here", self.served_here.recent().to_string());
        for (name, value) in lines(&status).into_iter().chain([waits, served]) {
            let _ = write!(text, "{name}:{value}\r\n");
        }
    }
}

fn leaf_reply(RouteEntry { range, pe, page, version }: RouteEntry) -> Reply {
    let number = |number: u64| Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let high = range.high.map_or(Reply::Null, Reply::Bulk);
    Reply::Array(vec![
        Reply::Bulk(range.low),
        high,
        Reply::Integer(pe.0.into()),
        number(page.0),
        number(version),
    ])
}

fn join(nodes: &[PeId]) -> String {
    nodes.iter().map(|pe| pe.0.to_string()).collect::<Vec<_>>().join(" ")
}

fn lines(status: &NodeStatus) -> Vec<(&'static str, String)> {
    let counts = status.counts;
    let up = status.links.iter().filter(|link| link.state == LinkState::Up).count();
    vec![
        ("azekura_node", status.pe.0.to_string()),
        ("azekura_nodes", (status.links.len() + 1).to_string()),
        ("azekura_nodes_reached", up.to_string()),
        ("azekura_members_version", status.list.0.to_string()),
        ("azekura_members_newest", status.list.1.to_string()),
        ("azekura_left", join(&status.left)),
        ("azekura_settled", u8::from(status.is_settled).to_string()),
        ("azekura_leaves", status.leaves.to_string()),
        ("azekura_index_pages", status.index.0.to_string()),
        ("azekura_index_levels", status.index.1.to_string()),
        ("azekura_open_transactions", status.open_transactions.to_string()),
        ("azekura_worked", counts.worked.to_string()),
        ("azekura_sent_on", counts.sent_on.to_string()),
        ("azekura_lost", counts.lost.to_string()),
        ("azekura_splits", counts.splits.to_string()),
        ("azekura_merges", counts.merges.to_string()),
        ("azekura_moved", counts.moved.to_string()),
        ("azekura_moves_undone", counts.moves_undone.to_string()),
        ("azekura_refused_frames", counts.refused_frames.to_string()),
        ("azekura_connections_admitted", status.listener.admitted.to_string()),
        ("azekura_connections_refused", status.listener.refused.to_string()),
        ("azekura_last_refusals", Vec::from(status.listener.last_refusals.clone()).join(" | ")),
        ("azekura_failure", status.failure.clone().unwrap_or_default()),
    ]
}

fn status_reply(status: &NodeStatus) -> Reply {
    let mut pairs: Vec<_> = lines(status)
        .into_iter()
        .map(|(name, value)| (Reply::text(name.trim_start_matches("azekura_")), Reply::text(value)))
        .collect();
    let link = |link: &azekura_fatbtree::tcp::LinkStatus| {
        Reply::Array(vec![
            Reply::Integer(link.pe.0.into()),
            Reply::text(link.address.to_string()),
            Reply::text(state_text(&link.state)),
        ])
    };
    pairs.push((Reply::text("links"), Reply::Array(status.links.iter().map(link).collect())));
    Reply::Map(pairs)
}

fn state_text(state: &LinkState) -> String {
    match state {
        LinkState::Up => "up".to_owned(),
        LinkState::Calling => "calling".to_owned(),
        LinkState::Lost(why) | LinkState::Down(why) => format!("down: {why}"),
    }
}
