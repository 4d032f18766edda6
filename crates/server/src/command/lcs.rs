//! `LCS`: the longest common subsequence of two values.

use azekura_base::blocking;

use super::CommandResult;
use super::arguments::{Options, integer, is_word};
use crate::error::{CommandError, Failure};
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};

/// Largest number of pairs of bytes that are compared: Redis refuses a table of more than 512 MiB, with 4
/// bytes for each pair. The table here has one bit for each pair.
const MAX_PAIRS: usize = (512 << 20) / 4;
/// From this number of pairs on, another thread serves the reactor's other connections meanwhile.
const LONG_PAIRS: usize = 1 << 16;

#[derive(Debug, Default)]
struct LcsOptions {
    gives_ranges: bool,
    gives_length: bool,
    gives_range_lengths: bool,
    min_length: i64,
}

impl LcsOptions {
    fn parse(request: Request<'_>) -> Result<Self, CommandError> {
        let (mut found, mut options) = (Self::default(), Options::from(request, 3));
        while let Some(option) = options.next() {
            if is_word(option, "IDX") {
                found.gives_ranges = true;
            } else if is_word(option, "LEN") {
                found.gives_length = true;
            } else if is_word(option, "WITHMATCHLEN") {
                found.gives_range_lengths = true;
            } else if is_word(option, "MINMATCHLEN") {
                found.min_length = integer(options.value()?)?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        if found.gives_ranges && found.gives_length {
            let reason = "If you want both the length and indexes, please just use IDX.";
            return Err(CommandError::Protocol(reason.into()));
        }
        Ok(found)
    }
}

/// Lengths of the longest common subsequences of all pairs of prefixes of two strings.
struct Table {
    /// Length for the whole strings.
    length: usize,
    /// For each pair of prefixes, in order: `true` if the length without the last byte of the first string
    /// is larger than that without the last byte of the second one.
    is_first_shorter: Vec<u64>,
    columns: usize,
}

impl Table {
    fn of(a: &[u8], b: &[u8], needs_path: bool) -> Self {
        let columns = b.len();
        let mut is_first_shorter = vec![0; if needs_path { (a.len() * columns).div_ceil(64) } else { 0 }];
        let (mut above, mut row) = (vec![0_u32; columns + 1], vec![0_u32; columns + 1]);
        for (i, byte) in a.iter().enumerate() {
            for (j, other) in b.iter().enumerate() {
                row[j + 1] = if byte == other {
                    above[j] + 1
                } else {
                    if needs_path && above[j + 1] > row[j] {
                        let at = i * columns + j;
                        is_first_shorter[at / 64] |= 1_u64 << (at % 64);
                    }
                    above[j + 1].max(row[j])
                };
            }
            std::mem::swap(&mut above, &mut row);
        }
        Self { length: above[columns] as usize, is_first_shorter, columns }
    }

    fn is_first_shorter(&self, i: usize, j: usize) -> bool {
        let at = i * self.columns + j;
        self.is_first_shorter[at / 64] >> (at % 64) & 1 == 1
    }
}

/// A range of equal bytes: its first positions in both strings, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Match {
    a: usize,
    b: usize,
    length: usize,
}

/// Returns the common subsequence, and its ranges of consecutive bytes from the last to the first.
fn subsequence(a: &[u8], b: &[u8], table: &Table) -> (Vec<u8>, Vec<Match>) {
    let (mut found, mut matches): (Vec<u8>, Vec<Match>) = (Vec::new(), Vec::new());
    let (mut i, mut j, mut continues) = (a.len(), b.len(), false);
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            found.push(a[i]);
            match matches.last_mut().filter(|_| continues) {
                Some(last) => *last = Match { a: i, b: j, length: last.length + 1 },
                None => matches.push(Match { a: i, b: j, length: 1 }),
            }
            continues = true;
        } else {
            if table.is_first_shorter(i - 1, j - 1) {
                i -= 1
            } else {
                j -= 1
            }
            continues = false;
        }
    }
    found.reverse();
    (found, matches)
}

/// Runs `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]`.
pub(super) fn lcs(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let options = LcsOptions::parse(request)?;
    let len = |key: &[u8]| Ok::<_, Failure>(keys.lend(key, |record| Ok(record.value_len()))?.unwrap_or(0));
    let pairs = |a: usize, b: usize| (a + 1).saturating_mul(b + 1);
    // Before the values are read: their lengths decide.
    if pairs(len(request.arg(1))?, len(request.arg(2))?) > MAX_PAIRS {
        return Err(CommandError::LcsMemory.into());
    }
    let read = |key: &[u8]| keys.look(key, |record| record.value.to_vec());
    let a = read(request.arg(1))?.unwrap_or_default();
    let b = read(request.arg(2))?.unwrap_or_default();
    // Again: another client may have changed a value meanwhile.
    let pairs = pairs(a.len(), b.len());
    if pairs > MAX_PAIRS {
        return Err(CommandError::LcsMemory.into());
    }
    if pairs >= LONG_PAIRS {
        blocking::announce();
    }
    let table = Table::of(&a, &b, !options.gives_length);
    if options.gives_length {
        return Ok(Reply::count(table.length));
    }
    let (found, matches) = subsequence(&a, &b, &table);
    if !options.gives_ranges {
        keys.charge(found.len())?;
        return Ok(Reply::Bulk(found));
    }
    let is_long = |range: &&Match| i64::try_from(range.length).is_ok_and(|len| len >= options.min_length);
    let range =
        |from: usize, length: usize| Reply::Array(vec![Reply::count(from), Reply::count(from + length - 1)]);
    let shown = |found: &Match| {
        // Each range has three arrays and up to five numbers.
        keys.charge(8 * size_of::<Reply>())?;
        let mut parts = vec![range(found.a, found.length), range(found.b, found.length)];
        if options.gives_range_lengths {
            parts.push(Reply::count(found.length));
        }
        Ok(Reply::Array(parts))
    };
    let ranges = matches.iter().filter(is_long).map(shown).collect::<Result<_, CommandError>>()?;
    Ok(Reply::Map(vec![
        (Reply::text("matches"), Reply::Array(ranges)),
        (Reply::text("len"), Reply::count(table.length)),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_documentation_of_redis() {
        let (a, b) = (&b"ohmytext"[..], &b"mynewtext"[..]);
        let table = Table::of(a, b, true);
        let (found, matches) = subsequence(a, b, &table);
        assert_eq!((table.length, found.as_slice()), (6, &b"mytext"[..]));
        assert_eq!(matches, [Match { a: 4, b: 5, length: 4 }, Match { a: 2, b: 0, length: 2 }]);
        assert_eq!(Table::of(a, b, false).length, 6);
    }

    #[test]
    fn every_result_is_a_common_subsequence_of_the_computed_length() {
        let text = |seed: u32| -> Vec<u8> {
            let mut state = seed;
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                b'a' + u8::try_from(state >> 30).unwrap()
            };
            (0..seed % 23).map(next).collect()
        };
        let is_subsequence = |part: &[u8], whole: &[u8]| {
            let mut rest = whole.iter();
            part.iter().all(|byte| rest.any(|other| other == byte))
        };
        for (a, b) in (0..40).flat_map(|a| (0..40).map(move |b| (text(a), text(b * 7)))) {
            let table = Table::of(&a, &b, true);
            let (found, matches) = subsequence(&a, &b, &table);
            assert_eq!(found.len(), table.length);
            assert!(is_subsequence(&found, &a) && is_subsequence(&found, &b));
            assert_eq!(matches.iter().map(|range| range.length).sum::<usize>(), found.len());
            for Match { a: i, b: j, length } in matches {
                assert_eq!(a[i..i + length], b[j..j + length]);
            }
        }
    }
}
