//! Holders of one object in order of time, with sums from which the holders during a long wait follow without
//! a look at each hold.
//!
//! In a convoy, a wait lasts for hundreds of holds, and each of them is in the waits of all waiting threads.
//! The state of the holder during a whole hold is the same for all of them, so it is computed once.

use super::blame::{BlameSums, Holder, Piece};
use super::quick::QuickMap;

/// Smallest number of holds in a wait for which the sums are used.
pub(super) const LEAST_HOLDS: usize = 16;

/// The parts of the time in which an object was held, in order of time.
#[derive(Debug, Default)]
pub(super) struct Convoy {
    pieces: Vec<Piece>,
    /// Unknown time before each piece and the pieces before it.
    unknown: Vec<u64>,
    by_holder: Vec<ByHolder>,
    /// Indexes of each thread's pieces.
    by_thread: QuickMap<usize, Vec<u32>>,
}

/// The pieces of one holder, and sums over them.
#[derive(Debug)]
struct ByHolder {
    holder: Holder,
    /// Indexes of the pieces.
    pieces: Vec<u32>,
    /// Sums over the first pieces; one more than pieces.
    sums: Vec<[u64; SUMS]>,
    /// Time in which the holder waited, by site: index of the piece, and the sum up to this piece.
    via: Vec<(u32, Vec<(u32, u64)>)>,
}

const SUMS: usize = 6;

fn numbers(sums: &BlameSums) -> [u64; SUMS] {
    [sums.waited, sums.holder_ran, sums.holder_waited, sums.holder_off, sums.holder_preempted, sums.handover]
}

impl Convoy {
    /// Adds the next piece: its holder, the sums of the time before it and in it, and the unknown time before
    /// it.
    pub(super) fn push(&mut self, piece: Piece, holder: Holder, sums: &BlameSums, unknown: u64) {
        let at = self.pieces.len() as u32;
        self.pieces.push(piece);
        self.unknown.push(self.unknown.last().copied().unwrap_or(0) + unknown);
        self.by_thread.entry(piece.thread).or_default().push(at);
        // A program has few operations, and few threads that hold a lock outside of operations.
        let found = self.by_holder.iter().position(|by| by.holder == holder);
        let found = found.unwrap_or_else(|| {
            let (pieces, via) = (Vec::new(), Vec::new());
            self.by_holder.push(ByHolder { holder, pieces, sums: vec![[0; SUMS]], via });
            self.by_holder.len() - 1
        });
        let by = &mut self.by_holder[found];
        by.pieces.push(at);
        let mut total = by.sums[by.sums.len() - 1];
        total.iter_mut().zip(numbers(sums)).for_each(|(total, more)| *total += more);
        by.sums.push(total);
        for (site, ns) in &sums.via {
            let found = by.via.iter().position(|via| via.0 == *site).unwrap_or_else(|| {
                by.via.push((*site, Vec::new()));
                by.via.len() - 1
            });
            let sums = &mut by.via[found].1;
            sums.push((at, sums.last().map_or(0, |last| last.1) + ns));
        }
    }

    /// Returns the end of the last piece.
    pub(super) fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    /// Returns the indexes of the pieces during a wait; `None` if the waiter itself has one of them.
    pub(super) fn during(&self, waiter: usize, begin: u64, end: u64) -> Option<(usize, usize)> {
        let first = self.pieces.partition_point(|piece| piece.end <= begin);
        let last = first + self.pieces[first..].partition_point(|piece| piece.begin < end);
        let own = self.by_thread.get(&waiter).map(Vec::as_slice).unwrap_or_default();
        let next = own.get(own.partition_point(|at| (*at as usize) < first));
        next.is_none_or(|at| *at as usize >= last).then_some((first, last))
    }

    pub(super) fn piece(&self, at: usize) -> Piece {
        self.pieces[at]
    }

    /// Returns the unknown time before the pieces `from..to`.
    pub(super) fn unknown(&self, from: usize, to: usize) -> u64 {
        let before = |at: usize| at.checked_sub(1).map_or(0, |at| self.unknown[at]);
        before(to) - before(from)
    }

    /// Calls `add` for each holder of the pieces `from..to` with the sums over its pieces.
    pub(super) fn for_each_holder(&self, from: usize, to: usize, mut add: impl FnMut(Holder, &BlameSums)) {
        let (from, to) = (from as u32, to as u32);
        for by in &self.by_holder {
            let first = by.pieces.partition_point(|at| *at < from);
            let last = first + by.pieces[first..].partition_point(|at| *at < to);
            if first == last {
                continue;
            }
            let [waited, holder_ran, holder_waited, holder_off, holder_preempted, handover] =
                std::array::from_fn(|i| by.sums[last][i] - by.sums[first][i]);
            let mut sums = BlameSums {
                waited,
                holder_ran,
                holder_waited,
                holder_off,
                holder_preempted,
                handover,
                ..BlameSums::default()
            };
            for (site, via) in &by.via {
                let until = |at: u32| {
                    let after = via.partition_point(|sum| sum.0 < at);
                    after.checked_sub(1).map_or(0, |last| via[last].1)
                };
                let ns = until(to) - until(from);
                if ns > 0 {
                    sums.via.insert(*site, ns);
                }
            }
            add(by.holder, &sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::blame::{Blame, blame_with};
    use super::super::pair::{HoldSpan, ThreadSpans, WaitSpan};
    use super::*;
    use crate::WaitKind;
    use std::collections::BTreeMap;

    /// Returns threads that wait for each other's holds of two objects at random times. Every seventh hold
    /// overlaps the next one, as if it was recorded late; some waits are inside of holds.
    fn threads(seed: u64, count: usize) -> Vec<ThreadSpans> {
        let mut state = seed;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % below
        };
        let mut threads: Vec<ThreadSpans> =
            (1..=count as u32).map(|tag| ThreadSpans { tag, ..ThreadSpans::default() }).collect();
        for object in [1, 2] {
            let mut now = 0;
            for i in 0..400 {
                let (begin, length) = (now + random(60), 1 + random(90));
                now = begin + length;
                let end = now + if i % 7 == 0 { random(70) } else { 0 };
                let operation = random(3) as u16;
                let hold = HoldSpan { site: 5, object, operation, begin, end, weight: 1, shared: false };
                threads[random(count as u64) as usize].holds.push(hold);
            }
        }
        for thread in &mut threads {
            thread.holds.sort_by_key(|hold| hold.end);
            let mut now = 0;
            while now < 30_000 {
                let begin = now + random(300);
                now = begin + random(5_000);
                thread.waits.push(WaitSpan {
                    site: if random(4) == 0 { 6 } else { 5 },
                    object: 1 + random(2),
                    kind: WaitKind::Latch,
                    holder: 0,
                    holder_in: 0,
                    op: None,
                    parent: None,
                    begin,
                    end: Some(now),
                    cpu: 0,
                    is_woken: true,
                    inside: (0, 0),
                });
            }
        }
        threads
    }

    #[test]
    fn the_sums_are_those_of_the_single_holds() {
        let rows = |threads: &[ThreadSpans], sampling: u32, least: usize| {
            let mut rows = Blame::default();
            blame_with(threads, sampling, least, &mut rows);
            let row = |sums: &BlameSums| (numbers(sums), sums.count, sums.via.clone());
            rows.iter().map(|(key, sums)| (format!("{key:?}"), row(sums))).collect::<BTreeMap<_, _>>()
        };
        for seed in 1..40 {
            for count in [2, 5] {
                let threads = threads(seed * 0x9e37_79b9, count);
                for sampling in [1, 64] {
                    let plain = rows(&threads, sampling, usize::MAX);
                    assert!(plain.values().any(|row| !row.2.is_empty()), "holders waited");
                    assert_eq!(rows(&threads, sampling, 2), plain, "seed {seed}, {count} threads");
                }
            }
        }
    }
}
