//! Damaged parts of a trace file, and the number and the time of the events in them.
//!
//! Each block of events has the number of the thread's earlier events, so a gap in the events of a thread is
//! known exactly when a later block of this thread is read. The end block has the number of all events.

use crate::event::{DAMAGED, Event, EventKind};
use std::collections::BTreeMap;

/// The parts of a trace file that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Damage {
    /// Offset of the first damaged part.
    pub offset: u64,
    /// Number of damaged parts.
    pub parts: u64,
    /// Number of bytes in them.
    pub bytes: u64,
    /// Number of events in them.
    pub events: u64,
    /// `true` if `events` is exact. Otherwise the end block is missing, and `events` is a lower bound.
    pub is_exact: bool,
    /// Ticks before the first and after the last of these events; equal if there are none.
    pub between: (u64, u64),
}

/// Detects gaps in the events of threads.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    damage: Option<Damage>,
    threads: BTreeMap<u32, Progress>,
    /// Ticks of the clock samples before the first damaged part and after the last one.
    clock: (u64, Option<u64>),
}

/// The events of a thread so far.
#[derive(Debug, Default, Clone, Copy)]
struct Progress {
    events: u64,
    /// Ticks of the first event of the thread's last block.
    ticks: u64,
}

impl Gaps {
    pub(super) fn is_damaged(&self) -> bool {
        self.damage.is_some()
    }

    /// Takes a damaged part. `clock` is the time of the last clock sample.
    pub(super) fn damaged(&mut self, offset: u64, bytes: u64, clock: u64) {
        let damage = self.damage.get_or_insert_with(|| {
            self.clock.0 = clock;
            Damage { offset, ..Damage::default() }
        });
        damage.parts += 1;
        damage.bytes += bytes;
        self.clock.1 = None;
    }

    /// Takes a clock sample.
    pub(super) fn clock(&mut self, ticks: u64) {
        if self.damage.is_some() {
            self.clock.1.get_or_insert(ticks);
        }
    }

    /// Takes a block with `count` events of a thread, the first one at `first` ticks, after `before` events.
    /// Returns the event to insert before them if events are missing.
    pub(super) fn block(
        &mut self,
        tag: u32,
        before: u64,
        count: u64,
        first: u64,
    ) -> Result<Option<Event>, &'static str> {
        let progress = self.threads.entry(tag).or_default();
        let missing = before.checked_sub(progress.events).ok_or("events of a thread come twice")?;
        let since = progress.ticks;
        progress.events = before.checked_add(count).ok_or("more events than 64 bits count")?;
        if count > 0 {
            progress.ticks = first;
        }
        if missing == 0 {
            return Ok(None);
        }
        let damage = self.damage.as_mut().ok_or("events of a thread are missing")?;
        let since = if since == 0 { self.clock.0 } else { since };
        damage.events = damage.events.saturating_add(missing);
        let until = if count > 0 { first } else { self.clock.1.unwrap_or(u64::MAX) };
        damage.include(since, until);
        let lost = Event { object: missing, flags: DAMAGED, ..Event::new(first, EventKind::Lost) };
        Ok((count > 0).then_some(lost))
    }

    /// Returns the damage of the whole file. `read` is the number of events that were read, `all` is that of
    /// the end block, and `last` the ticks of the last clock sample.
    pub(super) fn finish(&self, read: u64, all: Option<u64>, last: u64) -> Option<Damage> {
        let mut damage = self.damage?;
        let missing = all.map_or(damage.events, |all| all.saturating_sub(read));
        if missing > damage.events {
            // A thread has no block after the damaged one.
            damage.include(self.clock.0, self.clock.1.unwrap_or(u64::MAX));
        }
        (damage.events, damage.is_exact) = (missing, all.is_some());
        let (begin, end) = damage.between;
        damage.between = (begin.min(last), end.min(last));
        Some(damage)
    }
}

impl Damage {
    /// Extends the time of the missing events.
    fn include(&mut self, since: u64, until: u64) {
        self.between = match self.between {
            (0, 0) => (since, until),
            (begin, end) => (begin.min(since), end.max(until)),
        };
    }
}
