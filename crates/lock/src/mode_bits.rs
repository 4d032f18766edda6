//! Mode bits: lock modes as small bit sets, so that compatibility with a queue costs two ANDs.
//!
//! A *mode bit* is one part of a mode. A table mode is one bit; a key mode has at most one bit for its gap
//! and one for its record. Tables and keys have five bits each and are never in the same queue.
//!
//! - **BITS-1** Two modes are compatible exactly when no bit of one conflicts with a bit of the other.
//! - **BITS-2** The supremum of two modes is a function of the union of their bits.
//!
//! The tests at the end of this file check both against `mode` for every pair.

use crate::mode::{GapMode, KeyMode, RecordMode, TableMode};

/// The bits of one mode, or the union of several; bits 0 to 4.
pub(crate) type ModeBits = u8;

/// Number of distinct bits in one queue.
pub(crate) const BIT_COUNT: usize = 5;
/// The set of all bits.
pub(crate) const ALL: ModeBits = (1 << BIT_COUNT) - 1;

const GAP: [ModeBits; 4] = [0, 1, 2, 4];
const RECORD: [ModeBits; 3] = [0, 8, 16];

/// The family of modes in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Key = 0,
    Table = 1,
}

pub(crate) const fn of_table(mode: TableMode) -> ModeBits {
    1 << mode as u8
}

pub(crate) const fn of_key(mode: KeyMode) -> ModeBits {
    GAP[mode.gap as usize] | RECORD[mode.record as usize]
}

/// Returns the key mode with these bits.
pub(crate) const fn key_mode(mode_bits: ModeBits) -> KeyMode {
    let gap = match mode_bits & 7 {
        0 => GapMode::None,
        1 => GapMode::I,
        2 => GapMode::S,
        _ => GapMode::X,
    };
    let record = match mode_bits >> 3 {
        0 => RecordMode::None,
        1 => RecordMode::S,
        _ => RecordMode::X,
    };
    KeyMode { gap, record }
}

/// Returns `true` if the bits have S or X on the gap, which excludes inserts.
pub(crate) const fn closes_gap(mode_bits: ModeBits) -> bool {
    mode_bits & (GAP[GapMode::S as usize] | GAP[GapMode::X as usize]) != 0
}

/// Returns the table mode with this bit; `None` for no bit.
pub(crate) const fn table_mode(mode_bits: ModeBits) -> Option<TableMode> {
    if mode_bits == 0 { None } else { Some(TableMode::ALL[mode_bits.trailing_zeros() as usize]) }
}

/// Returns all bits that conflict with one of `mode_bits`.
#[inline]
pub(crate) const fn conflicts(family: Family, mode_bits: ModeBits) -> ModeBits {
    CONFLICTS[family as usize][(mode_bits & ALL) as usize]
}

/// Returns the bits of the supremum of the modes with this union of bits.
#[inline]
pub(crate) const fn normal(family: Family, mode_bits: ModeBits) -> ModeBits {
    NORMAL[family as usize][(mode_bits & ALL) as usize]
}

const SETS: usize = 1 << BIT_COUNT;
const CONFLICTS: [[ModeBits; SETS]; 2] = [conflicts_of_sets(Family::Key), conflicts_of_sets(Family::Table)];
const NORMAL: [[ModeBits; SETS]; 2] = [normal_sets(Family::Key), normal_sets(Family::Table)];

/// Returns `true` if two mode bits of one family conflict, according to the modes that consist of one bit.
const fn conflict(family: Family, one: usize, other: usize) -> bool {
    match family {
        Family::Key => !key_mode(1 << one).is_compatible(key_mode(1 << other)),
        Family::Table => !TableMode::ALL[one].is_compatible(TableMode::ALL[other]),
    }
}

/// Returns the bits of the supremum of the mode with these bits and one more bit. Zero bits are not a mode.
const fn with(family: Family, mode_bits: ModeBits, one: usize) -> ModeBits {
    match (family, table_mode(mode_bits)) {
        (Family::Key, _) => of_key(key_mode(mode_bits).supremum(key_mode(1 << one))),
        (Family::Table, Some(mode)) => of_table(mode.supremum(TableMode::ALL[one])),
        (Family::Table, None) => of_table(TableMode::ALL[one]),
    }
}

const fn conflicts_of_sets(family: Family) -> [ModeBits; SETS] {
    let mut table = [0; SETS];
    let mut set = 0;
    while set < SETS {
        let mut pair = 0;
        while pair < BIT_COUNT * BIT_COUNT {
            let (ours, theirs) = (pair / BIT_COUNT, pair % BIT_COUNT);
            if set >> ours & 1 == 1 && conflict(family, ours, theirs) {
                table[set] |= 1 << theirs;
            }
            pair += 1;
        }
        set += 1;
    }
    table
}

const fn normal_sets(family: Family) -> [ModeBits; SETS] {
    let mut table = [0; SETS];
    let mut set = 0;
    while set < SETS {
        let mut one = 0;
        while one < BIT_COUNT {
            if set >> one & 1 == 1 {
                table[set] = with(family, table[set], one);
            }
            one += 1;
        }
        set += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_bits_say_the_same_as_the_modes() {
        for a in TableMode::ALL {
            for b in TableMode::ALL {
                let (x, y) = (of_table(a), of_table(b));
                assert_eq!(conflicts(Family::Table, x) & y == 0, a.is_compatible(b), "BITS-1 {a} {b}");
                assert_eq!(table_mode(normal(Family::Table, x | y)), Some(a.supremum(b)), "BITS-2 {a} {b}");
            }
        }
        for a in KeyMode::all() {
            assert_eq!(key_mode(of_key(a)), a);
            assert_eq!(closes_gap(of_key(a)), matches!(a.gap, GapMode::S | GapMode::X));
            for b in KeyMode::all() {
                let (x, y) = (of_key(a), of_key(b));
                assert_eq!(conflicts(Family::Key, x) & y == 0, a.is_compatible(b), "BITS-1 {a} {b}");
                assert_eq!(key_mode(normal(Family::Key, x | y)), a.supremum(b), "BITS-2 {a} {b}");
            }
        }
        assert_eq!(table_mode(normal(Family::Table, 0)), None);
    }
}
