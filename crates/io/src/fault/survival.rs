//! `Survival`: the part of the unsynced changes that a power loss keeps, determined by a seed.
//!
//! A crash has one pattern for bytes and one for names. So over many seeds the simple cases (nothing,
//! everything, or everything up to a moment is kept) are as common as the irregular ones.

use std::ops::Range;

use super::choice::Choice;
use super::sectors::Sectors;

/// The pattern by which a crash keeps unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Temper {
    /// Everything has reached the disk.
    All,
    /// Nothing has reached the disk.
    Nothing,
    /// The disk wrote in order: everything before one I/O is kept, that I/O may be torn, and nothing after it
    /// is kept.
    InOrder,
    /// Each change is kept whole or lost, independently of the others.
    Whole,
    /// Each change is kept, lost, or torn, independently of the others.
    Torn,
}

/// The surviving part of one change.
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
    /// Returns the decisions for `seed`; `unsynced` are the numbers of the I/Os that are not durable.
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

    /// Returns the decision that everything survives, or nothing.
    pub(crate) const fn uniform(all: bool) -> Self {
        let temper = if all { Temper::All } else { Temper::Nothing };
        Self { choice: Choice::new(0), bytes: temper, names: temper, interrupted: 0 }
    }

    /// Returns the surviving part of the write of `bytes` by I/O `io`; an empty range stands for a change of
    /// length.
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
