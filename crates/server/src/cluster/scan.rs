//! Walks over ranges of keys, leaf by leaf and node by node, in order and in both directions.
//!
//! A walk that only reads uses one snapshot of each node (`reader`). If the first step completes the walk, no
//! snapshot has to stay open. A walk that removes keys runs leaf by leaf, and each step is a transaction.
//! Each step returns the key at which it stopped, or the leaf that it has read completely; the next step
//! continues there.
//!
//! Inside an interactive transaction each step is a step of that transaction, at its coordinator. So
//! everything that the walk has read stays unchanged until the transaction ends, by the store's locks and
//! OPEN-1 (`azekura_fatbtree`'s `node::open`). A walk that reaches a leaf of another node is refused.

use std::cell::RefCell;
use std::ops::Bound;

use azekura_fatbtree::{Key, KeyRange as LeafRange, Target, Work};

use super::Cluster;
use super::reader::{self, Reader};
use super::wire::{self, Bytes, Call, Step, Walk, With};
use crate::command::{self, RangeOptions, ScanOptions, Spec};
use crate::error::CommandError;
use crate::keyspace::{self, KeyRange};
use crate::resp::{Reply, Request};
use crate::server::Shared;

/// Maximum of keys visited in one step, because others wait for the step.
const STEP_KEYS: usize = 1024;
/// Approximate limit of the bytes that one step returns.
const STEP_BYTES: u64 = 2 << 20;

/// A walk that a client has requested.
#[derive(Clone)]
struct WalkRequest {
    range: KeyRange,
    with: With,
    is_backward: bool,
    pattern: Option<Vec<u8>>,
    most_found: usize,
    most_looked: usize,
}

impl WalkRequest {
    const fn all(range: KeyRange, with: With) -> Self {
        Self {
            range,
            with,
            is_backward: false,
            pattern: None,
            most_found: usize::MAX,
            most_looked: usize::MAX,
        }
    }
}

/// Result of a walk.
#[derive(Default)]
struct Found {
    items: Vec<Bytes>,
    count: usize,
    /// The last visited key, if the walk stopped before the end of its range.
    stopped_at: Option<Key>,
}

/// A function that runs a step at the leaf of a target, and returns the result and the leaf.
type Leg<'a> = dyn FnMut(Target, Walk) -> Result<(Step, LeafRange), CommandError> + 'a;

/// The steps of walks.
pub(super) struct Legs<'a> {
    leg: Box<Leg<'a>>,
    max_reply_bytes: usize,
    /// `true` if all steps are part of one transaction or reader. A refusal leaves it unchanged.
    is_one_transaction: bool,
    /// Node at which reading walks open snapshots, if each step is a separate transaction.
    snapshots_of: Option<&'a Cluster>,
}

impl<'a> Legs<'a> {
    /// Creates steps that are a transaction each.
    pub(super) fn alone(cluster: &'a Cluster) -> Self {
        let leg = move |target, walk: Walk| {
            let is_write = walk.with == With::Remove;
            let bytes = wire::encode(&Call::Walk(walk));
            let (answer, route_entry) =
                cluster.ask(target, Work::Run { is_write, others: Vec::new(), bytes })?;
            let route_entry = route_entry.ok_or_else(no_leaf)?;
            Ok((wire::decode(&answer)?, route_entry.range))
        };
        Self {
            leg: Box::new(leg),
            max_reply_bytes: cluster.max_reply_bytes,
            is_one_transaction: false,
            snapshots_of: Some(cluster),
        }
    }

    /// Creates steps of one transaction, or of one reader.
    pub(super) fn inside(
        cluster: &Cluster,
        leg: impl FnMut(Target, Walk) -> Result<(Step, LeafRange), CommandError> + 'a,
    ) -> Self {
        Self {
            leg: Box::new(leg),
            max_reply_bytes: cluster.max_reply_bytes,
            is_one_transaction: true,
            snapshots_of: None,
        }
    }

    /// Runs a command on ranges of keys.
    pub(super) fn walk(
        &mut self,
        shared: &Shared,
        spec: &Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        let count = |found: &Found| Reply::count(found.count);
        let bulks =
            |found: Found| Reply::Array(found.items.into_iter().map(|Bytes(b)| Reply::Bulk(b)).collect());
        match spec.name {
            "dbsize" => Ok(count(&self.read(WalkRequest::all(KeyRange::ALL, With::Count))?)),
            "keys" => {
                let pattern = request.arg(1).to_vec();
                let range = command::range_of(Some(&pattern));
                Ok(bulks(
                    self.read(WalkRequest { pattern: Some(pattern), ..WalkRequest::all(range, With::Keys) })?,
                ))
            }
            "scan" => self.scan(shared, request),
            "randomkey" => {
                let any = keyspace::random_key(|range, walk| self.end_of(range, walk), command::any_of)?;
                Ok(Reply::bulk_or_null(any))
            }
            "az.range" => {
                let (range, options) = command::range_request(request, &["REV", "LIMIT", "KEYS"])?;
                let RangeOptions { is_backward, limit, keys_only } = options;
                let with = if keys_only { With::Keys } else { With::Rows };
                Ok(bulks(self.read(WalkRequest {
                    is_backward,
                    most_found: limit,
                    ..WalkRequest::all(range, with)
                })?))
            }
            "az.count" => {
                let (range, _) = command::range_request(request, &[])?;
                Ok(count(&self.read(WalkRequest::all(range, With::Count))?))
            }
            "az.delrange" => {
                let (range, options) = command::range_request(request, &["LIMIT"])?;
                let wanted =
                    WalkRequest { most_found: options.limit, ..WalkRequest::all(range, With::Remove) };
                Ok(count(&self.remove(wanted)?))
            }
            "flushdb" | "flushall" => {
                command::flush_options(request)?;
                self.remove(WalkRequest::all(KeyRange::ALL, With::Remove))?;
                Ok(Reply::OK)
            }
            _ => Err(CommandError::NotInCluster(spec.name.to_ascii_uppercase(), "it has no key")),
        }
    }

    fn scan(&mut self, shared: &Shared, request: Request<'_>) -> Result<Reply, CommandError> {
        let cursors = &shared.engine.context.cursors;
        let (cursor, options) = ScanOptions::of(request)?;
        let range = options.range(cursors, cursor)?;
        let found = self.read(WalkRequest {
            pattern: options.pattern.map(<[u8]>::to_vec),
            most_looked: options.count,
            ..WalkRequest::all(range.clone(), With::Keys)
        })?;
        let legs = RefCell::new(self);
        let next_keys = |last: &[u8], count| {
            let rest = range.clone().after(last.to_vec());
            let next = legs
                .borrow_mut()
                .read(WalkRequest { most_found: count, ..WalkRequest::all(rest, With::Keys) })?;
            Ok(next.items.into_iter().map(|Bytes(key)| key).collect())
        };
        let (more, next) = command::end_of_scan(cursors, found.stopped_at, next_keys)?;
        let found = found.items.into_iter().map(|Bytes(key)| key).chain(more);
        let wanted = found.filter(|key| options.wants(key));
        Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(wanted.map(Reply::Bulk).collect())]))
    }

    /// Removes the keys of a walk.
    fn remove(&mut self, wanted: WalkRequest) -> Result<Found, CommandError> {
        // Unreachable owners are detected before any key is removed (GATEWAY-4).
        if self.is_one_transaction || wanted.most_found < usize::MAX {
            self.go(WalkRequest { with: With::Count, ..wanted.clone() })?;
        } else {
            self.reach_all(wanted.range.clone())?;
        }
        self.go(wanted)
    }

    /// Requests the first key of each leaf of a range.
    pub(super) fn reach_all(&mut self, range: KeyRange) -> Result<(), CommandError> {
        let mut rest = Some(range);
        while let Some(range) = rest.take() {
            let walk = Walk {
                with: With::Count,
                lower: range.lower.clone().map(Bytes),
                upper: range.upper.clone().map(Bytes),
                is_backward: false,
                pattern: None,
                most_found: 1,
                most_looked: 1,
                most_bytes: 0,
            };
            let (_, leaf) = self.step(&range, walk)?;
            rest = rest_of(range, false, None, &leaf);
        }
        Ok(())
    }

    /// Returns the first key of a walk over `range`.
    fn end_of(&mut self, range: &KeyRange, walk: keyspace::Walk) -> Result<Option<Key>, CommandError> {
        let is_backward = matches!(walk, keyspace::Walk::Backward);
        let found = self.go(WalkRequest {
            is_backward,
            most_found: 1,
            ..WalkRequest::all(range.clone(), With::Keys)
        })?;
        Ok(found.items.into_iter().next().map(|Bytes(key)| key))
    }

    /// Runs a walk that only reads, over one snapshot of each node.
    fn read(&mut self, wanted: WalkRequest) -> Result<Found, CommandError> {
        let Some(cluster) = self.snapshots_of else { return self.go(wanted) };
        if let Some(found) = self.steps(wanted.clone(), 1)? {
            return Ok(found);
        }
        let mut last = no_leaf();
        for _ in 0..reader::MOST_TRIES {
            let mut reader = Reader::new(cluster, reader::leaf_range(&wanted.range));
            let leg = |target, walk| reader.walk_leg(cluster, target, walk).map_err(CommandError::from);
            let found = Legs::inside(cluster, leg).go(wanted.clone());
            match found.and_then(|found| reader.finish(cluster).map(|()| found)) {
                Err(error @ CommandError::Retry(_)) => last = error,
                done => return done,
            }
        }
        Err(last)
    }

    /// Runs all steps of a walk.
    fn go(&mut self, wanted: WalkRequest) -> Result<Found, CommandError> {
        self.steps(wanted, usize::MAX)?.ok_or_else(no_leaf)
    }

    /// Runs at most `most_steps` steps of a walk. Returns `None` if the walk is not complete then.
    fn steps(&mut self, wanted: WalkRequest, most_steps: usize) -> Result<Option<Found>, CommandError> {
        let WalkRequest { mut range, with, is_backward, pattern, most_found, most_looked } = wanted;
        let (mut found, mut looked, mut bytes, mut steps) = (Found::default(), 0, 0, 0);
        while found.count < most_found && looked < most_looked {
            if steps == most_steps {
                return Ok(None);
            }
            steps += 1;
            let walk = Walk {
                with,
                lower: range.lower.clone().map(Bytes),
                upper: range.upper.clone().map(Bytes),
                is_backward,
                pattern: pattern.clone().map(Bytes),
                most_found: (most_found - found.count) as u64,
                most_looked: (most_looked - looked).min(STEP_KEYS) as u64,
                most_bytes: STEP_BYTES,
            };
            let is_lasting = with == With::Remove && !self.is_one_transaction;
            let done = if is_lasting { found.count } else { 0 };
            let (step, leaf) = self.step(&range, walk).map_err(|error| error.after_removing(done))?;
            found.count += usize::try_from(step.count).unwrap_or(usize::MAX);
            looked += usize::try_from(step.looked).unwrap_or(usize::MAX);
            bytes += step.found.iter().map(|Bytes(item)| item.len() + size_of::<Reply>()).sum::<usize>();
            if bytes > self.max_reply_bytes {
                return Err(CommandError::ReplyTooLong(self.max_reply_bytes));
            }
            found.items.extend(step.found);
            found.stopped_at = step.stopped_at.map(|Bytes(key)| key);
            match rest_of(range, is_backward, found.stopped_at.as_ref(), &leaf) {
                Some(rest) => range = rest,
                None => {
                    found.stopped_at = None;
                    return Ok(Some(found));
                }
            }
            // A step that reached a limit stopped at a key; any other step continues in the next leaf.
        }
        Ok(Some(found))
    }

    fn step(&mut self, range: &KeyRange, walk: Walk) -> Result<(Step, LeafRange), CommandError> {
        let target = match (walk.is_backward, &range.lower, &range.upper) {
            (false, Bound::Unbounded, _) => Target::At(Key::new()),
            (false, Bound::Included(key) | Bound::Excluded(key), _) => Target::At(key.clone()),
            (true, _, Bound::Unbounded) => Target::Before(None),
            (true, _, Bound::Excluded(key)) => Target::Before(Some(key.clone())),
            (true, _, Bound::Included(key)) => Target::Before(Some(successor(key))),
        };
        (self.leg)(target, walk)
    }
}

pub(super) fn no_leaf() -> CommandError {
    CommandError::Unknown("an answer without its leaf".into())
}

/// Returns the first key after `key`.
pub(super) fn successor(key: &[u8]) -> Key {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// Returns the rest of a range after a step that stopped at a key or has read all of its leaf. Returns `None`
/// if the rest is empty.
fn rest_of(
    range: KeyRange,
    is_backward: bool,
    stopped_at: Option<&Key>,
    leaf: &LeafRange,
) -> Option<KeyRange> {
    let rest = match (is_backward, stopped_at) {
        (false, Some(key)) => KeyRange { lower: Bound::Excluded(key.clone()), ..range },
        (true, Some(key)) => KeyRange { upper: Bound::Excluded(key.clone()), ..range },
        (false, None) => KeyRange { lower: Bound::Included(leaf.high.clone()?), ..range },
        (true, None) if leaf.low.is_empty() => return None,
        (true, None) => KeyRange { upper: Bound::Excluded(leaf.low.clone()), ..range },
    };
    wire::clip(rest, &LeafRange::all())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps over two leaves with two keys each, separated at `m`. The owner of the second leaf
    /// fails at the steps for which `fails` returns `true`.
    fn legs<'a>(
        removed: &'a RefCell<u64>,
        fails: impl Fn(With) -> bool + 'a,
        error: impl Fn() -> CommandError + 'a,
    ) -> Legs<'a> {
        let leg = move |target: Target, walk: Walk| {
            let is_second = matches!(&target, Target::At(key) if key.as_slice() >= b"m".as_slice());
            if is_second && fails(walk.with) {
                return Err(error());
            }
            if walk.with == With::Remove {
                *removed.borrow_mut() += 2;
            }
            let leaf = match is_second {
                true => LeafRange { low: b"m".to_vec(), high: None },
                false => LeafRange { low: Key::new(), high: Some(b"m".to_vec()) },
            };
            Ok((Step { count: 2, looked: 2, ..Step::default() }, leaf))
        };
        Legs { leg: Box::new(leg), max_reply_bytes: 1 << 20, is_one_transaction: false, snapshots_of: None }
    }

    fn away() -> CommandError {
        CommandError::Unreachable("node 2 cannot be reached: refused".into())
    }

    #[test]
    fn all_leaves_are_reached_before_the_first_key_is_removed() {
        let removed = RefCell::new(0);
        let all = WalkRequest::all(KeyRange::ALL, With::Remove);
        let limited = WalkRequest { most_found: 4, ..all.clone() };
        for wanted in [all, limited] {
            let refused = legs(&removed, |_| true, away).remove(wanted).map(|found| found.count);
            assert_eq!(refused, Err(away()));
            assert_eq!(*removed.borrow(), 0);
        }
        // A limit that the first leaf fills needs no other leaf.
        let few = WalkRequest { most_found: 2, ..WalkRequest::all(KeyRange::ALL, With::Remove) };
        assert_eq!(legs(&removed, |_| true, away).remove(few).map(|found| found.count), Ok(2));
    }

    #[test]
    fn a_failure_after_the_first_leaf_tells_how_many_keys_were_removed() {
        let removed = RefCell::new(0);
        let all = || WalkRequest::all(KeyRange::ALL, With::Remove);
        let removes = |with| with == With::Remove;
        let partly = legs(&removed, removes, away).remove(all()).map(|found| found.count);
        let why = "UNAVAIL node 2 cannot be reached: refused".to_owned();
        assert_eq!(partly, Err(CommandError::Partial { done: 2, why }));
        let unknown = || CommandError::Unknown("no answer".into());
        let partly = legs(&removed, removes, unknown).remove(all()).map(|found| found.count);
        assert_eq!(partly, Err(CommandError::Partial { done: 2, why: "UNKNOWN no answer".into() }));
    }
}
