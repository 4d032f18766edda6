//! Modes as small bit sets, so that compatibility with a queue costs two ANDs.
//!
//! A *claim* is one part of a mode: a table mode is one claim; a key mode is at most one claim for its gap
//! and one for its record. Tables and keys have five claims each and never meet in one queue.
//!
//! - **CLAIM-1** Two modes are compatible exactly when no claim of one conflicts with a claim of the other.
//! - **CLAIM-2** The supremum of two modes is a function of the union of their claims.
//!
//! Both are checked against `mode` for every pair, at the foot of this file.

use crate::mode::{GapMode, KeyMode, RecordMode, TableMode};

/// Claims of one mode, or the union of several; bits 0 to 4.
pub(crate) type Claims = u8;

/// Number of different claims in one queue.
pub(crate) const CLAIMS: usize = 5;
/// Every claim.
pub(crate) const ALL: Claims = (1 << CLAIMS) - 1;

const GAP: [Claims; 4] = [0, 1, 2, 4];
const RECORD: [Claims; 3] = [0, 8, 16];

/// The family of modes in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Key = 0,
    Table = 1,
}

pub(crate) const fn of_table(mode: TableMode) -> Claims {
    1 << mode as u8
}

pub(crate) const fn of_key(mode: KeyMode) -> Claims {
    GAP[mode.gap as usize] | RECORD[mode.record as usize]
}

/// The key mode with these claims.
pub(crate) const fn key_mode(claims: Claims) -> KeyMode {
    let gap = match claims & 7 {
        0 => GapMode::None,
        1 => GapMode::I,
        2 => GapMode::S,
        _ => GapMode::X,
    };
    let record = match claims >> 3 {
        0 => RecordMode::None,
        1 => RecordMode::S,
        _ => RecordMode::X,
    };
    KeyMode { gap, record }
}

/// Returns `true` if the claims have S or X on the gap, which excludes inserts.
pub(crate) const fn closes_gap(claims: Claims) -> bool {
    claims & (GAP[GapMode::S as usize] | GAP[GapMode::X as usize]) != 0
}

/// The table mode with this claim; `None` for no claim.
pub(crate) const fn table_mode(claims: Claims) -> Option<TableMode> {
    if claims == 0 { None } else { Some(TableMode::ALL[claims.trailing_zeros() as usize]) }
}

/// Every claim that conflicts with one of `claims`.
#[inline]
pub(crate) const fn conflicts(family: Family, claims: Claims) -> Claims {
    CONFLICTS[family as usize][(claims & ALL) as usize]
}

/// Returns the claims of the supremum of the modes with this union.
#[inline]
pub(crate) const fn normal(family: Family, claims: Claims) -> Claims {
    NORMAL[family as usize][(claims & ALL) as usize]
}

const SETS: usize = 1 << CLAIMS;
const CONFLICTS: [[Claims; SETS]; 2] = [conflicts_of_sets(Family::Key), conflicts_of_sets(Family::Table)];
const NORMAL: [[Claims; SETS]; 2] = [normal_sets(Family::Key), normal_sets(Family::Table)];

/// Returns `true` if two claims of one family conflict, by the modes that consist of one claim.
const fn conflict(family: Family, one: usize, other: usize) -> bool {
    match family {
        Family::Key => !key_mode(1 << one).is_compatible(key_mode(1 << other)),
        Family::Table => !TableMode::ALL[one].is_compatible(TableMode::ALL[other]),
    }
}

/// Returns the claims of the least mode above these and one more claim. Zero claims belong to no mode.
const fn with(family: Family, claims: Claims, one: usize) -> Claims {
    match (family, table_mode(claims)) {
        (Family::Key, _) => of_key(key_mode(claims).supremum(key_mode(1 << one))),
        (Family::Table, Some(mode)) => of_table(mode.supremum(TableMode::ALL[one])),
        (Family::Table, None) => of_table(TableMode::ALL[one]),
    }
}

const fn conflicts_of_sets(family: Family) -> [Claims; SETS] {
    let mut table = [0; SETS];
    let mut set = 0;
    while set < SETS {
        let mut pair = 0;
        while pair < CLAIMS * CLAIMS {
            let (ours, theirs) = (pair / CLAIMS, pair % CLAIMS);
            if set >> ours & 1 == 1 && conflict(family, ours, theirs) {
                table[set] |= 1 << theirs;
            }
            pair += 1;
        }
        set += 1;
    }
    table
}

const fn normal_sets(family: Family) -> [Claims; SETS] {
    let mut table = [0; SETS];
    let mut set = 0;
    while set < SETS {
        let mut one = 0;
        while one < CLAIMS {
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
    fn claims_say_the_same_as_the_modes() {
        for a in TableMode::ALL {
            for b in TableMode::ALL {
                let (x, y) = (of_table(a), of_table(b));
                assert_eq!(conflicts(Family::Table, x) & y == 0, a.is_compatible(b), "CLAIM-1 {a} {b}");
                assert_eq!(table_mode(normal(Family::Table, x | y)), Some(a.supremum(b)), "CLAIM-2 {a} {b}");
            }
        }
        for a in KeyMode::all() {
            assert_eq!(key_mode(of_key(a)), a);
            assert_eq!(closes_gap(of_key(a)), matches!(a.gap, GapMode::S | GapMode::X));
            for b in KeyMode::all() {
                let (x, y) = (of_key(a), of_key(b));
                assert_eq!(conflicts(Family::Key, x) & y == 0, a.is_compatible(b), "CLAIM-1 {a} {b}");
                assert_eq!(key_mode(normal(Family::Key, x | y)), a.supremum(b), "CLAIM-2 {a} {b}");
            }
        }
        assert_eq!(table_mode(normal(Family::Table, 0)), None);
    }
}
