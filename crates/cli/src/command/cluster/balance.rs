//! `cluster balance`: moves leaves until all nodes have the same number, or one of them has none.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use azekura_fatbtree::PeId;

use super::directory::ClusterDirectory;
use super::map::each_leaf;
use crate::{Outcome, progress};

/// Number of attempts to move a leaf. A busy receiver may take longer than writers of a leaf are blocked.
/// Then the leaf stays, and the move is tried again.
const TRIES: usize = 20;
/// Shortest and longest pause before a move is tried again. Each pause is twice the previous one. All
/// attempts together outlast the detection of a node that is down for a moment.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_millis(500);

pub(super) fn balance(
    directory: &ClusterDirectory,
    without: Option<u16>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut takers: Vec<u16> = directory.members.nodes().iter().map(|member| member.pe.0).collect();
    if let Some(node) = without {
        directory.member(PeId(node))?;
        takers.retain(|taker| *taker != node);
    }
    if takers.is_empty() {
        bail!("no other node could take the leaves; start or join another node");
    }
    let (mut owners, mut keys) = (Vec::new(), Vec::new());
    each_leaf(directory, |leaf| {
        owners.push(leaf.node);
        keys.push(leaf.low);
        Ok(())
    })?;
    let moves = plan(&mut owners, &takers);
    let bar = progress::leaves(moves.len());
    for (place, to) in &moves {
        give(directory, &keys[*place], *to)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    writeln!(out, "leaves moved: {}", moves.len())?;
    for (node, leaves) in counts(&owners, &takers) {
        writeln!(out, "node {node}: {leaves} of {} leaves", owners.len())?;
    }
    if let Some(node) = without {
        writeln!(out, "node {node} has no keys; other nodes may still move leaves to it on request")?;
    }
    Ok(Outcome::Well)
}

fn give(directory: &ClusterDirectory, key: &[u8], to: u16) -> Result<()> {
    let to = to.to_string();
    let request: [&[u8]; 4] = [b"AZ.CLUSTER", b"MOVE", key, to.as_bytes()];
    retried(|| directory.ask_any(&request), std::thread::sleep)
        .map(drop)
        .with_context(|| format!("cannot move the leaf of {:?} to node {to}", key.escape_ascii().to_string()))
}

/// Repeats `attempt` up to [`TRIES`] times until it succeeds, with pauses in between.
fn retried<T>(mut attempt: impl FnMut() -> Result<T>, mut sleep: impl FnMut(Duration)) -> Result<T> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        if let Ok(done) = attempt() {
            return Ok(done);
        }
        sleep(pause);
        pause = (pause * 2).min(MOST_PAUSE);
    }
    attempt()
}

/// Returns the number of leaves of each node.
fn counts(owners: &[u16], takers: &[u16]) -> BTreeMap<u16, usize> {
    let mut counts: BTreeMap<u16, usize> = takers.iter().map(|taker| (*taker, 0)).collect();
    for owner in owners {
        *counts.entry(*owner).or_default() += 1;
    }
    counts
}

/// Plans the moves of leaves after which all `takers` have the same number and other nodes none. `owners` are
/// the owners of the leaves in key order, and is updated. The number of moves is minimal. A leaf is moved to
/// the owner of its neighbor if that node lacks leaves. Takes time proportional to the number of leaves.
fn plan(owners: &mut [u16], takers: &[u16]) -> Vec<(usize, u16)> {
    let spare = spare(&counts(owners, takers), takers);
    let mut plan = Plan { owners, spare, moves: Vec::new() };
    let leaves = plan.owners.len();
    for place in 1..leaves {
        plan.give(place, Some(plan.owners[place - 1]));
    }
    for place in (0..leaves).rev() {
        plan.give(place, plan.after(place));
    }
    // The remaining leaves have no neighbor at a node that lacks leaves: each begins a new run there.
    for place in (0..leaves).rev() {
        let beside = plan.after(place).filter(|node| plan.lacks(*node));
        let to = beside.or_else(|| takers.iter().copied().find(|node| plan.lacks(*node)));
        plan.give(place, to);
    }
    plan.moves
}

/// The moves of leaves planned so far.
struct Plan<'a> {
    owners: &'a mut [u16],
    /// Number of leaves that each node must still give away; negative if it must receive leaves.
    spare: BTreeMap<u16, isize>,
    moves: Vec<(usize, u16)>,
}

impl Plan<'_> {
    fn lacks(&self, node: u16) -> bool {
        self.spare[&node] < 0
    }

    /// Returns the owner of the next leaf.
    fn after(&self, place: usize) -> Option<u16> {
        self.owners.get(place + 1).copied()
    }

    /// Plans the move of a leaf, if its owner has one to give away and `to` lacks one.
    fn give(&mut self, place: usize, to: Option<u16>) {
        let from = self.owners[place];
        let Some(to) = to.filter(|to| self.spare[&from] > 0 && self.lacks(*to)) else { return };
        *self.spare.entry(from).or_default() -= 1;
        *self.spare.entry(to).or_default() += 1;
        self.owners[place] = to;
        self.moves.push((place, to));
    }
}

/// Returns the number of leaves that each node must give away; negative numbers are to be received. If the
/// leaves cannot be divided evenly, the nodes with most leaves keep one more.
fn spare(counts: &BTreeMap<u16, usize>, takers: &[u16]) -> BTreeMap<u16, isize> {
    let leaves: usize = counts.values().sum();
    let (each, more) = (leaves / takers.len(), leaves % takers.len());
    let mut by_leaves = takers.to_vec();
    by_leaves.sort_by_key(|taker| (Reverse(counts[taker]), *taker));
    let share = |node: &u16| {
        let place = by_leaves.iter().position(|taker| taker == node);
        place.map_or(0, |place| each + usize::from(place < more))
    };
    counts.iter().map(|(node, leaves)| (*node, *leaves as isize - share(node) as isize)).collect()
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

    #[test]
    fn a_move_is_tried_again_after_growing_pauses() {
        let (mut attempts, mut pauses) = (0, Vec::new());
        let result = retried(
            || {
                attempts += 1;
                if attempts < TRIES { Err(anyhow::anyhow!("busy")) } else { Ok(attempts) }
            },
            |pause| pauses.push(pause),
        );
        assert_eq!(result.ok(), Some(TRIES));
        assert_eq!((pauses.len(), pauses[0], pauses[TRIES - 2]), (TRIES - 1, FIRST_PAUSE, MOST_PAUSE));
        assert!(pauses.is_sorted() && pauses.iter().sum::<Duration>() > Duration::from_secs(5));
        let mut waited = false;
        assert_eq!(retried(|| Ok(1), |_| waited = true).ok(), Some(1));
        assert!(!waited, "the first attempt succeeded");
    }

    #[test]
    fn many_leaves_stay_in_few_stretches() {
        let takers: Vec<u16> = (0..16).collect();
        let (owners, moves) = planned(&vec![3; 100_000], &takers);
        assert!(counts(&owners, &takers).into_values().all(|leaves| leaves == 6_250));
        assert_eq!(moves, 100_000 - 6_250);
        assert_eq!(owners.chunk_by(|a, b| a == b).count(), 16);
    }
}
