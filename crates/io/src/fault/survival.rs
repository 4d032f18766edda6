//! `Survival`: the part of the unsynced changes that a power loss keeps, determined by a seed.
//!
//! One crash has one pattern for bytes and one for names, so that over many seeds the simple cases (nothing
//! kept, everything kept, everything up to a moment) are as common as the irregular ones.

use std::ops::Range;

use super::choice::Choice;
use super::sectors::Sectors;

/// Treatment of unsynced changes in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Temper {
    /// Everything had just reached the disk.
    All,
    /// The disk had written nothing back yet.
    Nothing,
    /// The disk wrote in order: everything before one I/O, that one torn, nothing after it.
    InOrder,
    /// Each change independently is kept whole or lost: reordered.
    Whole,
    /// Each change independently is kept, lost, or torn.
    Torn,
}

/// Surviving part of one write.
#[derive(Debug)]
pub(crate) struct Fate {
    /// The sectors that survive.
    pub(crate) sectors: Sectors,
    /// `true` if the length that the change gave the file survives, even if its bytes are lost.
    pub(crate) length: bool,
}

/// The decisions of one crash.
#[derive(Debug)]
pub(crate) struct Survival {
    choice: Choice,
    bytes: Temper,
    names: Temper,
    /// The I/O that the power loss interrupted, for [`Temper::InOrder`].
    interrupted: u64,
}

impl Survival {
    /// Decides by `seed`; `unsynced` are the numbers of the I/Os that are not durable.
    pub(crate) fn new(seed: u64, mut unsynced: Vec<u64>) -> Self {
        let mut choice = Choice::new(seed);
        unsynced.sort_unstable();
        unsynced.dedup();
        let interrupted = choice.below(unsynced.len() as u64) as usize;
        Self {
            bytes: temper(&mut choice),
            names: temper(&mut choice),
            interrupted: unsynced.get(interrupted).copied().unwrap_or(0),
            choice,
        }
    }

    /// Decides that everything survives, or nothing.
    pub(crate) const fn uniform(all: bool) -> Self {
        let temper = if all { Temper::All } else { Temper::Nothing };
        Self { choice: Choice::new(0), bytes: temper, names: temper, interrupted: 0 }
    }

    /// Returns the surviving part of the write of `bytes` (of the change of length, if they are none) by I/O
    /// `io`.
    pub(crate) fn of_write(&mut self, io: u64, bytes: &Range<u64>) -> Fate {
        let whole = |kept| Fate { sectors: Sectors::uniform(bytes, kept), length: kept };
        match self.bytes {
            Temper::All => whole(true),
            Temper::Nothing => whole(false),
            Temper::InOrder if io != self.interrupted => whole(io < self.interrupted),
            Temper::InOrder => self.torn(bytes),
            Temper::Whole => whole(self.choice.coin()),
            Temper::Torn => match self.choice.below(4) {
                0 => whole(true),
                1 => whole(false),
                _ => self.torn(bytes),
            },
        }
    }

    fn torn(&mut self, bytes: &Range<u64>) -> Fate {
        Fate { sectors: Sectors::torn(bytes, &mut self.choice), length: self.choice.coin() }
    }

    /// Returns `true` if the change of names by I/O `io` survives; it is never torn.
    pub(crate) fn keeps_name(&mut self, io: u64) -> bool {
        match self.names {
            Temper::All => true,
            Temper::Nothing => false,
            Temper::InOrder => io < self.interrupted || io == self.interrupted && self.choice.coin(),
            Temper::Whole | Temper::Torn => self.choice.coin(),
        }
    }
}

fn temper(choice: &mut Choice) -> Temper {
    match choice.below(8) {
        0 => Temper::All,
        1 => Temper::Nothing,
        2 | 3 => Temper::InOrder,
        4 | 5 => Temper::Whole,
        _ => Temper::Torn,
    }
}
