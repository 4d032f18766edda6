//! `cluster balance`: moves leaves until the nodes have as many as each other, or one of them has none.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, bail};

use super::home::Home;
use super::map::each_leaf;
use crate::{Outcome, progress};

/// A receiver that is busy may take longer than a leaf is kept from writers: then the leaf stays, and is offered again.
const TRIES: usize = 20;

pub(super) fn balance(home: &Home, without: Option<u16>, out: &mut dyn Write) -> Result<Outcome> {
    let mut takers: Vec<u16> = home.members.nodes().iter().map(|member| member.pe.0).collect();
    if let Some(node) = without {
        if !takers.contains(&node) {
            bail!("there is no node {node}");
        }
        takers.retain(|taker| *taker != node);
    }
    if takers.is_empty() {
        bail!("no other node could take the leaves");
    }
    let (mut owners, mut keys) = (Vec::new(), Vec::new());
    each_leaf(home, |leaf| {
        owners.push(leaf.node);
        keys.push(leaf.low);
        Ok(())
    })?;
    let moves = plan(&mut owners, &takers);
    let bar = progress::leaves(moves.len());
    for (place, to) in &moves {
        give(home, &keys[*place], *to)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    writeln!(out, "leaves moved: {}", moves.len())?;
    for (node, leaves) in counts(&owners, &takers) {
        writeln!(out, "node {node}: {leaves} of {} leaves", owners.len())?;
    }
    if let Some(node) = without {
        writeln!(out, "node {node} has no keys; others may still give it some if they are told to")?;
    }
    Ok(Outcome::Well)
}

fn give(home: &Home, key: &[u8], to: u16) -> Result<()> {
    let to = to.to_string();
    let request: [&[u8]; 4] = [b"AZ.CLUSTER", b"MOVE", key, to.as_bytes()];
    for _ in 1..TRIES {
        if home.ask_any(&request).is_ok() {
            return Ok(());
        }
    }
    home.ask_any(&request)
        .map(drop)
        .with_context(|| format!("cannot move the leaf of {:?} to node {to}", key.escape_ascii().to_string()))
}

/// How many leaves each node has.
fn counts(owners: &[u16], takers: &[u16]) -> BTreeMap<u16, usize> {
    let mut counts: BTreeMap<u16, usize> = takers.iter().map(|taker| (*taker, 0)).collect();
    for owner in owners {
        *counts.entry(*owner).or_default() += 1;
    }
    counts
}

/// Which leaf goes to which node, so that `takers` have as many as each other, and nobody else any. `owners` are those of the leaves in key order, before
/// and afterwards. No more are moved than must be; one goes to who has its neighbour, if it can.
fn plan(owners: &mut [u16], takers: &[u16]) -> Vec<(usize, u16)> {
    let mut moves = Vec::new();
    loop {
        let counts = counts(owners, takers);
        let least = takers.iter().copied().min_by_key(|taker| counts[taker]);
        let most = counts.iter().filter(|(node, _)| takers.contains(node)).max_by_key(|(_, leaves)| **leaves);
        let other = counts.iter().find(|(node, leaves)| !takers.contains(node) && **leaves > 0);
        let (Some(to), Some((most, _))) = (least, most) else { return moves };
        let from = match other {
            Some((other, _)) => *other,
            None if counts[most] > counts[&to] + 1 => *most,
            None => return moves,
        };
        let is_beside = |place: &usize| {
            let before = place.checked_sub(1).map(|before| owners[before]);
            before == Some(to) || owners.get(place + 1) == Some(&to)
        };
        let own: Vec<usize> = (0..owners.len()).filter(|place| owners[*place] == from).collect();
        let place = own.iter().copied().find(is_beside).or(own.last().copied());
        let Some(place) = place else { return moves };
        owners[place] = to;
        moves.push((place, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(owners: &[u16], takers: &[u16]) -> (Vec<u16>, usize) {
        let mut owners = owners.to_vec();
        let moves = plan(&mut owners, takers).len();
        (owners, moves)
    }

    #[test]
    fn leaves_are_shared_evenly_with_as_few_moves_as_can_be() {
        assert_eq!(planned(&[0, 0, 0, 0, 0, 0, 1], &[0, 1]), (vec![0, 0, 0, 0, 1, 1, 1], 2));
        let (owners, moves) = planned(&[0; 10], &[0, 1, 2]);
        assert_eq!((counts(&owners, &[0, 1, 2]).into_values().max(), moves), (Some(4), 6));
        assert_eq!(planned(&[0, 1, 2], &[0, 1, 2]).1, 0);
        assert_eq!(planned(&[0], &[0, 1, 2]).1, 0);
    }

    #[test]
    fn a_node_that_takes_none_gets_rid_of_all() {
        let (owners, moves) = planned(&[0, 1, 1, 1, 2], &[0, 2]);
        assert_eq!((owners.contains(&1), moves), (false, 3));
        let counts = counts(&owners, &[0, 2]);
        assert!(counts[&0].abs_diff(counts[&2]) <= 1);
        assert_eq!(planned(&[5, 5], &[1]), (vec![1, 1], 2));
    }
}
