//! Counts the waits of threads for cache lines, by line and by the place of the access in the source.

use crate::coherence::{Served, Time};
use crate::lines::Map;
use crate::name::{in_repository, source};
use std::panic::Location;

/// A place in the source, and the cost of its accesses.
#[derive(Clone, Copy, Debug)]
pub struct PlaceStalls {
    /// The place.
    pub place: &'static Location<'static>,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of accesses with a transfer of the line.
    pub misses: u64,
    /// Time beyond that of hits, for all accesses.
    pub stall: Time,
    /// The part of `stall` in the queue for a busy line.
    pub queued: Time,
    /// The part of `stall` on the line that cost most.
    pub on_hottest_line: Time,
}

/// Returns a description of a place: file, line, and the accessed expression if the source is at the path of
/// the build.
#[must_use]
pub fn name(place: &Location<'_>) -> String {
    let file = in_repository(place.file());
    let text = source(&file).unwrap_or_default();
    let line = text.lines().nth(place.line() as usize - 1).unwrap_or_default().trim();
    format!("{file}:{} {line}", place.line()).trim_end().to_owned()
}

/// Counts in progress.
#[derive(Debug, Default)]
pub struct Stalls {
    places: Map<usize, Tally>,
    lines: Map<(u32, u32), Time>,
}

#[derive(Debug)]
struct Tally {
    number: u32,
    stalls: PlaceStalls,
}

impl Stalls {
    /// Adds one access.
    pub fn add(&mut self, line: u32, place: &'static Location<'static>, served: &Served) {
        let next = self.places.len() as u32;
        let tally = self.places.entry(std::ptr::from_ref(place).addr()).or_insert_with(|| Tally {
            number: next,
            stalls: PlaceStalls { place, accesses: 0, misses: 0, stall: 0, queued: 0, on_hottest_line: 0 },
        });
        tally.stalls.accesses += 1;
        if served.is_miss {
            tally.stalls.misses += 1;
        }
        if served.stall > 0 {
            tally.stalls.stall += served.stall;
            tally.stalls.queued += served.queued;
            *self.lines.entry((line, tally.number)).or_default() += served.stall;
        }
    }

    /// Removes all counts.
    pub fn clear(&mut self) {
        self.places.clear();
        self.lines.clear();
    }

    /// Returns the places, the costliest first.
    #[must_use]
    pub fn by_place(&self) -> Vec<PlaceStalls> {
        let mut hottest: Map<u32, Time> = Map::default();
        for (&(_, place), &stall) in &self.lines {
            let most = hottest.entry(place).or_default();
            *most = stall.max(*most);
        }
        let mut all: Vec<PlaceStalls> = self
            .places
            .values()
            .map(|tally| PlaceStalls {
                on_hottest_line: hottest.get(&tally.number).copied().unwrap_or(0),
                ..tally.stalls
            })
            .collect();
        // The compiler may store one place several times.
        let at = |p: &PlaceStalls| (p.place.file(), p.place.line(), p.place.column());
        all.sort_by_key(at);
        all.dedup_by(|again, kept| {
            let is_same = at(again) == at(kept);
            if is_same {
                kept.accesses += again.accesses;
                kept.misses += again.misses;
                kept.stall += again.stall;
                kept.queued += again.queued;
                kept.on_hottest_line = kept.on_hottest_line.max(again.on_hottest_line);
            }
            is_same
        });
        all.sort_by_key(|p| std::cmp::Reverse(p.stall)); // stable
        all
    }
}
