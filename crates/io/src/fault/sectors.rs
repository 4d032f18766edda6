//! `Sectors`: the 512-byte sectors of a write that reached the disk.
//!
//! A disk writes a sector whole or not at all. This is assumed for all disks.

use std::ops::Range;

use super::choice::Choice;

/// Number of bytes that a disk writes whole or not at all.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// A subset of the sectors that a range of bytes touches.
#[derive(Clone, Debug)]
pub(crate) struct Sectors {
    first: u64,
    count: u64,
    bits: Vec<u64>,
}

/// Returns the sectors that a range of bytes touches.
pub(crate) const fn touched(bytes: &Range<u64>) -> Range<u64> {
    if bytes.start >= bytes.end {
        return 0..0;
    }
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES)
}

impl Sectors {
    /// Returns all or none of the sectors of a range of bytes.
    pub(crate) fn uniform(bytes: &Range<u64>, all: bool) -> Self {
        let touched = touched(bytes);
        let count = touched.end - touched.start;
        let word = if all { u64::MAX } else { 0 };
        Self { first: touched.start, count, bits: vec![word; count.div_ceil(64) as usize] }
    }

    /// Returns the sectors before a random one: a write that a power loss or a full disk has cut off.
    pub(crate) fn prefix(bytes: &Range<u64>, choice: &mut Choice) -> Self {
        let mut sectors = Self::uniform(bytes, false);
        let kept = choice.below(sectors.count + 1);
        (0..kept).for_each(|i| sectors.set_nth(i, true));
        sectors
    }

    /// Returns a torn write: a random subset, or one of the shapes that often break programs (all but one
    /// sector, only the first, only the last).
    pub(crate) fn torn(bytes: &Range<u64>, choice: &mut Choice) -> Self {
        let mut sectors = Self::uniform(bytes, false);
        let shape = choice.below(8);
        match shape {
            0 | 1 if sectors.count > 0 => {
                sectors = Self::uniform(bytes, shape == 0);
                let odd_one = choice.below(sectors.count);
                sectors.set_nth(odd_one, shape == 1);
            }
            2 if sectors.count > 0 => sectors.set_nth(0, true),
            3 if sectors.count > 0 => sectors.set_nth(sectors.count - 1, true),
            4 => return Self::prefix(bytes, choice),
            _ => sectors.bits.iter_mut().for_each(|word| *word = choice.bits()),
        }
        sectors
    }

    fn set_nth(&mut self, i: u64, kept: bool) {
        let mask = 1 << (i % 64);
        let word = &mut self.bits[(i / 64) as usize];
        if kept { *word |= mask } else { *word &= !mask }
    }

    /// Returns `true` if sector `sector` of the file is in the subset.
    pub(crate) fn contains(&self, sector: u64) -> bool {
        let i = sector.wrapping_sub(self.first);
        i < self.count && self.bits[(i / 64) as usize] >> (i % 64) & 1 == 1
    }

    /// Adds or removes a sector of the file.
    pub(crate) fn set(&mut self, sector: u64, kept: bool) {
        debug_assert!((self.first..self.first + self.count).contains(&sector));
        self.set_nth(sector - self.first, kept);
    }

    /// Returns the range of sectors from which the subset is taken.
    pub(crate) const fn range(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    /// Returns the maximal runs of bytes in the subset, limited to `bytes`.
    pub(crate) fn runs(&self, bytes: &Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (w, &word) in self.bits.iter().enumerate() {
            let (mut at, mut rest) = (w as u64 * 64, word);
            let end = (at + 64).min(self.count);
            while rest != 0 && at < end {
                let skip = u64::from(rest.trailing_zeros());
                let len = u64::from((rest >> skip).trailing_ones());
                let run = (at + skip).min(end)..(at + skip + len).min(end);
                push_run(
                    &mut runs,
                    (self.first + run.start) * SECTOR_BYTES..(self.first + run.end) * SECTOR_BYTES,
                );
                at += skip + len;
                rest = rest.checked_shr((skip + len) as u32).unwrap_or(0);
            }
        }
        runs.iter_mut().for_each(|run| *run = run.start.max(bytes.start)..run.end.min(bytes.end));
        runs
    }
}

fn push_run(runs: &mut Vec<Range<u64>>, run: Range<u64>) {
    match runs.last_mut() {
        _ if run.is_empty() => {}
        Some(last) if last.end == run.start => last.end = run.end,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_exactly_the_sectors_of_the_subset() {
        let mut choice = Choice::new(7);
        for round in 0..2000 {
            let start = choice.below(2000);
            let bytes = start..start + 1 + choice.below(200_000);
            let sectors = match round % 4 {
                0 => Sectors::uniform(&bytes, round % 8 == 0),
                1 => Sectors::prefix(&bytes, &mut choice),
                _ => Sectors::torn(&bytes, &mut choice),
            };
            let mut expected: Vec<Range<u64>> = Vec::new();
            for sector in sectors.range().filter(|&s| sectors.contains(s)) {
                push_run(&mut expected, sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES);
            }
            for run in &mut expected {
                *run = run.start.max(bytes.start)..run.end.min(bytes.end);
            }
            assert_eq!(sectors.runs(&bytes), expected, "round {round}");
        }
    }

    #[test]
    fn a_range_touches_the_sectors_it_overlaps() {
        assert_eq!(touched(&(0..512)), 0..1);
        assert_eq!(touched(&(511..513)), 0..2);
        assert_eq!(touched(&(1024..1025)), 2..3);
        assert!(touched(&(100..100)).is_empty());
    }
}
