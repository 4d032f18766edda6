//! Commands on strings as arrays of bits. Bit 0 is the highest bit of the first byte, as in Redis.

use super::CommandResult;
use super::arguments::{integer, is_word};
use crate::error::CommandError;
use crate::keyspace::{Expiry, Form, Keyspace};
use crate::resp::{Reply, Request};

/// Number of bits of the longest string in Redis, 512 MiB. Here `max_value_bytes` bounds values further.
pub(super) const MAX_BITS: i64 = 1 << 32;

/// Returns the byte position and the mask of a bit.
fn place(argument: &[u8]) -> Result<(usize, u8), CommandError> {
    let bit = integer(argument).map_err(|_| CommandError::BitOffset)?;
    if !(0..MAX_BITS).contains(&bit) {
        return Err(CommandError::BitOffset);
    }
    Ok((usize::try_from(bit / 8).unwrap_or(usize::MAX), 0x80 >> (bit % 8)))
}

/// Runs `GETBIT key offset`.
pub(super) fn getbit(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (byte, mask) = place(request.arg(2))?;
    let found = keys.lend(request.arg(1), |record| {
        let is_inside = byte < record.value_len();
        Ok(if is_inside { record.read(byte..byte + 1)? } else { Vec::new() })
    })?;
    Ok(Reply::flag(found.unwrap_or_default().first().is_some_and(|&byte| byte & mask != 0)))
}

/// Runs `SETBIT key offset 0 | 1`.
pub(super) fn setbit(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (byte, mask) = place(request.arg(2))?;
    let is_set = match request.arg(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(CommandError::Bit.into()),
    };
    let max = keys.context.max_value_bytes;
    if byte >= max {
        return Err(CommandError::ValueTooLong.into());
    }
    let slot = keys.get_for_update(request.arg(1))?;
    let mut value = slot.value().to_vec();
    value.resize(value.len().max(byte + 1), 0);
    let was_set = value[byte] & mask != 0;
    if is_set {
        value[byte] |= mask
    } else {
        value[byte] &= !mask
    }
    if was_set != is_set || value.len() != slot.value().len() {
        keys.put_form(request.arg(1), &slot, &value, slot.expiry(), Form::Changed)?;
    } else if slot.form() != Form::Changed {
        keys.set_form(request.arg(1), &slot, Form::Changed)?;
    }
    Ok(Reply::flag(was_set))
}

/// A range of bits of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: i64,
    /// Last position; without it the range extends to the end of the value.
    end: Option<i64>,
    counts_bits: bool,
}

impl Span {
    /// Parses `[start [end [BYTE | BIT]]]` from argument number `at` on. The first wrong argument determines
    /// the error. `BITPOS` checks the unit before `end`, as `unit_first` says; `BITCOUNT` checks it after
    /// `end`.
    fn parse(request: Request<'_>, at: usize, unit_first: bool) -> Result<Self, CommandError> {
        let mut span = Self::default();
        let given = request.len() - at;
        if given == 0 {
            return Ok(span);
        }
        if given > 3 {
            return Err(CommandError::Syntax);
        }
        span.start = integer(request.arg(at))?;
        let unit = || match request.arg(at + 2) {
            _ if given < 3 => Ok(false),
            unit if is_word(unit, "BIT") => Ok(true),
            unit if is_word(unit, "BYTE") => Ok(false),
            _ => Err(CommandError::Syntax),
        };
        if unit_first {
            unit()?;
        }
        if given > 1 {
            span.end = Some(integer(request.arg(at + 1))?);
        }
        span.counts_bits = unit()?;
        Ok(span)
    }

    /// Returns the bits that `BITCOUNT` counts: none if both positions are negative and in the wrong order.
    fn to_count(self, len: usize) -> Option<(usize, usize)> {
        let is_reversed = self.start < 0 && self.end.is_some_and(|end| end < 0 && self.start > end);
        if is_reversed { None } else { self.of(len) }
    }

    /// Returns the first bit of the range, and the bit after its end, in a value of `len` bytes. Returns
    /// `None` for an empty range.
    fn of(self, len: usize) -> Option<(usize, usize)> {
        let unit = if self.counts_bits { 1 } else { 8 };
        let total = i64::try_from(len * 8 / unit).unwrap_or(i64::MAX);
        let place = |at: i64| if at < 0 { at.saturating_add(total).max(0) } else { at };
        let (start, end) = (self.start, self.end.unwrap_or(-1));
        let (start, end) = (place(start), place(end).min(total - 1));
        let bits = |at: i64| usize::try_from(at).unwrap_or(0) * unit;
        (start <= end).then(|| (bits(start), bits(end + 1)))
    }
}

/// Returns the positions and bytes of `value` that contain bits `from..below`, each with the mask of these
/// bits.
fn masked(value: &[u8], from: usize, below: usize) -> impl Iterator<Item = (usize, u8, u8)> {
    (from / 8..below.div_ceil(8)).map(move |at| {
        let head = if at == from / 8 { 0xff >> (from % 8) } else { 0xff };
        let is_cut = at == below / 8;
        let tail = if is_cut { !(0xff >> (below % 8)) } else { 0xff };
        (at, value[at], head & tail)
    })
}

/// Runs `BITCOUNT key [start end [BYTE | BIT]]`.
pub(super) fn bitcount(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    if request.len() == 3 {
        return Err(CommandError::Syntax.into());
    }
    let span = Span::parse(request, 2, false)?;
    let count = keys.look(request.arg(1), |record| count(record.value, span))?;
    Ok(Reply::count(count.unwrap_or(0)))
}

fn count(value: &[u8], span: Span) -> usize {
    let Some((from, below)) = span.to_count(value.len()) else { return 0 };
    masked(value, from, below).map(|(_, byte, mask)| (byte & mask).count_ones() as usize).sum()
}

/// Runs `BITPOS key 0 | 1 [start [end [BYTE | BIT]]]`.
pub(super) fn bitpos(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let is_set = match integer(request.arg(2))? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::BitArgument.into()),
    };
    let span = Span::parse(request, 3, true)?;
    let found = keys.look(request.arg(1), |record| position(record.value, is_set, span))?;
    // A missing key counts as a value of zeros.
    let found = found.unwrap_or(if is_set { None } else { Some(0) });
    Ok(found.map_or(Reply::Integer(-1), Reply::count))
}

/// Returns the first bit with the given value. Zeros follow the end of the value, unless the request has an
/// end.
fn position(value: &[u8], is_set: bool, span: Span) -> Option<usize> {
    let (from, below) = span.of(value.len())?;
    let flip = if is_set { 0 } else { 0xff };
    let found = masked(value, from, below).find_map(|(at, byte, mask)| {
        let wanted = (byte ^ flip) & mask;
        (wanted != 0).then(|| at * 8 + wanted.leading_zeros() as usize)
    });
    found.or((!is_set && span.end.is_none()).then_some(value.len() * 8))
}

/// Runs `BITOP AND | OR | XOR | NOT destination key…`: shorter values count as filled up with zeros.
pub(super) fn bitop(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    type Combine = fn(u8, u8) -> u8;
    let operations: [(&str, Combine); 3] =
        [("AND", |a, b| a & b), ("OR", |a, b| a | b), ("XOR", |a, b| a ^ b)];
    let is_not = is_word(request.arg(1), "NOT");
    let combine =
        operations.iter().find(|(name, _)| is_word(request.arg(1), name)).map(|(_, combine)| combine);
    if combine.is_none() && !is_not {
        return Err(CommandError::Syntax.into());
    }
    if is_not && request.len() != 4 {
        return Err(CommandError::BitNot.into());
    }
    let destination = request.arg(2);
    // Acquires the write lock at once, although the value may only be read.
    let slot = keys.get_for_update(destination)?;
    let mut result: Option<Vec<u8>> = None;
    for key in request.from(3) {
        let value = keys.look(key, |record| record.value.to_vec())?.unwrap_or_default();
        result = Some(match (result, combine) {
            (Some(result), Some(combine)) => combined(result, value, *combine),
            (_, Some(_)) => value,
            (_, None) => value.iter().map(|byte| !byte).collect(),
        });
    }
    let result = result.unwrap_or_default();
    if !result.is_empty() {
        keys.put_form(destination, &slot, &result, Expiry::Never, Form::Changed)?;
    } else if slot.live.is_some() {
        keys.remove_existing(destination, &slot)?;
    }
    Ok(Reply::count(result.len()))
}

fn combined(a: Vec<u8>, b: Vec<u8>, combine: fn(u8, u8) -> u8) -> Vec<u8> {
    let (mut long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    for (at, byte) in long.iter_mut().enumerate() {
        *byte = combine(*byte, short.get(at).copied().unwrap_or(0));
    }
    long
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: i64, end: Option<i64>, counts_bits: bool) -> Span {
        Span { start, end, counts_bits }
    }

    /// Returns the set bits by testing each bit, as a reference.
    fn plain(value: &[u8], from: usize, below: usize) -> Vec<usize> {
        (from..below).filter(|bit| value[bit / 8] & (0x80 >> (bit % 8)) != 0).collect()
    }

    #[test]
    fn counts_and_positions_of_every_span_are_those_found_bit_by_bit() {
        let value = [0b1010_0101, 0, 0xff, 0b0001_1000];
        for from in 0..32_usize {
            for to in 0..32_usize {
                let bits = span(i64::try_from(from).unwrap(), Some(i64::try_from(to).unwrap()), true);
                let wanted = plain(&value, from, to + 1);
                assert_eq!(count(&value, bits), wanted.len(), "{from}..={to}");
                assert_eq!(position(&value, true, bits), wanted.first().copied(), "{from}..={to}");
                let zero = (from..=to).find(|bit| !wanted.contains(bit));
                assert_eq!(position(&value, false, bits), zero, "{from}..={to}");
            }
        }
    }

    #[test]
    fn places_count_from_the_end_and_an_open_end_has_zeros_behind_it() {
        let value = [0xff, 0xff];
        assert_eq!(position(&value, false, span(0, None, false)), Some(16));
        assert_eq!(position(&value, false, span(0, Some(-1), false)), None);
        assert_eq!(count(&value, span(-1, Some(-1), false)), 8);
        assert_eq!(count(&value, span(-3, Some(-2), true)), 2);
        assert_eq!(count(&value, span(i64::MIN, Some(i64::MAX), true)), 16);
        assert_eq!(count(&value, span(-1, Some(-2), false)), 0);
        // Positions before the beginning are moved to the beginning. Only `BITCOUNT` compares their order
        // before that.
        assert_eq!(count(&value, span(-2, Some(-9), false)), 0);
        assert_eq!(position(&value, true, span(-2, Some(-9), false)), Some(0));
        assert_eq!(position(&[0xff], false, span(-8, Some(-9), false)), None);
        assert_eq!(count(&[], span(0, None, false)), 0);
    }
}
