//! `BITFIELD`: integers of any number of bits inside a string.

use super::CommandResult;
use super::arguments::{beginning, integer, is_word};
use crate::error::CommandError;
use crate::keyspace::{Form, Keyspace};
use crate::resp::{Reply, Request, number};

/// Type of an integer: its sign, and its number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldType {
    is_signed: bool,
    bits: u32,
}

/// Treatment of a result that the type cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

/// A subcommand of a request.
#[derive(Clone, Copy, Debug)]
struct Operation {
    action: Action,
    field: FieldType,
    /// Number of the first bit.
    offset: u64,
    overflow: Overflow,
}

impl FieldType {
    fn parse(argument: &[u8]) -> Result<Self, CommandError> {
        let text = beginning(argument, usize::MAX);
        let (is_signed, most) = match text.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => return Err(CommandError::FieldType),
        };
        let bits = number(&text[1..]).filter(|bits| (1..=most).contains(bits));
        let bits = bits.and_then(|bits| u32::try_from(bits).ok()).ok_or(CommandError::FieldType)?;
        Ok(Self { is_signed, bits })
    }

    /// Parses the number of the first bit; `#n` is the position of integer `n` in an array of this type.
    fn offset(self, argument: &[u8]) -> Result<u64, CommandError> {
        let (digits, scale) = match argument.strip_prefix(b"#") {
            Some(digits) => (digits, i64::from(self.bits)),
            None => (argument, 1),
        };
        let offset = number(digits).and_then(|number: i64| number.checked_mul(scale));
        let offset = offset.filter(|offset| (0..super::bit::MAX_BITS).contains(offset));
        offset.and_then(|offset| u64::try_from(offset).ok()).ok_or(CommandError::BitOffset)
    }

    /// Returns the integer in `value`; bits after its end are zeros.
    fn read(self, value: &[u8], offset: u64) -> i128 {
        let bit = |at: u64| {
            let byte = usize::try_from(at / 8).ok().and_then(|at| value.get(at)).copied().unwrap_or(0);
            u64::from(byte >> (7 - at % 8) & 1)
        };
        let bits = (offset..offset + u64::from(self.bits)).fold(0, |number, at| number << 1 | bit(at));
        let is_negative = self.is_signed && bits >> (self.bits - 1) & 1 == 1;
        i128::from(bits) - if is_negative { 1 << self.bits } else { 0 }
    }

    /// Stores the low bits of a number. `value` contains all bits of the integer.
    fn write(self, value: &mut [u8], offset: u64, number: i128) {
        for (bit, at) in (0..self.bits).rev().zip(offset..) {
            let Some(byte) = usize::try_from(at / 8).ok().and_then(|at| value.get_mut(at)) else { return };
            let mask = 0x80 >> (at % 8);
            if number >> bit & 1 == 1 { *byte |= mask } else { *byte &= !mask }
        }
    }

    /// Returns the number that the type holds for `number`; `None` if the operation fails.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i128> {
        let values = 1_i128 << self.bits;
        let least = if self.is_signed { -(values / 2) } else { 0 };
        let range = least..least + values;
        match overflow {
            _ if range.contains(&number) => Some(number),
            Overflow::Fail => None,
            Overflow::Saturate => Some(if number < least { least } else { least + values - 1 }),
            Overflow::Wrap => Some((number - least).rem_euclid(values) + least),
        }
    }
}

impl Operation {
    /// Parses the subcommands of a request.
    fn parse_all(request: Request<'_>) -> Result<Vec<Self>, CommandError> {
        let (mut operations, mut overflow, mut at) = (Vec::new(), Overflow::Wrap, 2);
        while at < request.len() {
            let (word, rest) = (request.arg(at), request.len() - at - 1);
            if is_word(word, "OVERFLOW") && rest >= 1 {
                overflow = match request.arg(at + 1) {
                    word if is_word(word, "WRAP") => Overflow::Wrap,
                    word if is_word(word, "SAT") => Overflow::Saturate,
                    word if is_word(word, "FAIL") => Overflow::Fail,
                    _ => return Err(CommandError::OverflowType),
                };
                at += 2;
                continue;
            }
            let action: fn(i64) -> Action = match word {
                word if is_word(word, "GET") && rest >= 2 => |_| Action::Get,
                word if is_word(word, "SET") && rest >= 3 => Action::Set,
                word if is_word(word, "INCRBY") && rest >= 3 => Action::Add,
                _ => return Err(CommandError::Syntax),
            };
            let field = FieldType::parse(request.arg(at + 1))?;
            let offset = field.offset(request.arg(at + 2))?;
            let has_number = action(0) != Action::Get;
            let number = if has_number { integer(request.arg(at + 3))? } else { 0 };
            operations.push(Self { action: action(number), field, offset, overflow });
            at += if has_number { 4 } else { 3 };
        }
        Ok(operations)
    }

    fn is_write(&self) -> bool {
        self.action != Action::Get
    }

    fn run(&self, value: &mut [u8]) -> Reply {
        let old = self.field.read(value, self.offset);
        let (new, is_new_returned) = match self.action {
            Action::Get => return integer_reply(old),
            // Redis reads the argument of an unsigned type as an unsigned number.
            Action::Set(number) if !self.field.is_signed => (i128::from(number.cast_unsigned()), false),
            Action::Set(number) => (i128::from(number), false),
            Action::Add(number) => (old + i128::from(number), true),
        };
        let Some(new) = self.field.fit(new, self.overflow) else { return Reply::Null };
        self.field.write(value, self.offset, new);
        integer_reply(if is_new_returned { new } else { old })
    }
}

fn integer_reply(number: i128) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX)) // a type has at most 64 bits
}

/// Runs `BITFIELD key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value | INCRBY type
/// offset increment]…`.
pub(super) fn bitfield(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let operations = Operation::parse_all(request)?;
    keys.charge(operations.len() * size_of::<Reply>())?;
    let last = |operation: &Operation| operation.offset + u64::from(operation.field.bits) - 1;
    let Some(last) = operations.iter().filter(|one| one.is_write()).map(last).max() else {
        return read_only(keys, request.arg(1), &operations);
    };
    let len = usize::try_from(last / 8 + 1).unwrap_or(usize::MAX);
    if len > keys.context.max_value_bytes {
        return Err(CommandError::ValueTooLong.into());
    }
    let slot = keys.get_for_update(request.arg(1))?;
    let mut value = slot.value().to_vec();
    // As in Redis, the value grows also if each operation fails.
    value.resize(value.len().max(len), 0);
    let replies = operations.iter().map(|operation| operation.run(&mut value)).collect();
    if value != slot.value() {
        keys.put_form(request.arg(1), &slot, &value, slot.expiry(), Form::Changed)?;
    } else if slot.form() != Form::Changed {
        keys.set_form(request.arg(1), &slot, Form::Changed)?;
    }
    Ok(Reply::Array(replies))
}

/// Runs `BITFIELD_RO key [GET type offset]…`.
pub(super) fn bitfield_ro(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let operations = Operation::parse_all(request)?;
    keys.charge(operations.len() * size_of::<Reply>())?;
    if operations.iter().any(Operation::is_write) {
        return Err(CommandError::BitfieldReadOnly.into());
    }
    read_only(keys, request.arg(1), &operations)
}

fn read_only(keys: &Keyspace<'_>, key: &[u8], operations: &[Operation]) -> CommandResult {
    let found = keys.look(key, |record| {
        operations.iter().map(|one| integer_reply(one.field.read(record.value, one.offset))).collect()
    })?;
    Ok(Reply::Array(found.unwrap_or_else(|| operations.iter().map(|_| Reply::Integer(0)).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str) -> FieldType {
        FieldType::parse(text.as_bytes()).expect("a type")
    }

    #[test]
    fn types_have_1_to_64_bits() {
        assert_eq!(field("i64"), FieldType { is_signed: true, bits: 64 });
        assert_eq!(field("u63"), FieldType { is_signed: false, bits: 63 });
        for wrong in ["", "i", "u0", "i0", "u64", "i65", "i-1", "i08", "8", "I8", "i 8"] {
            assert!(FieldType::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(field("i5").offset(b"#3"), Ok(15));
        assert_eq!(field("i5").offset(b"3"), Ok(3));
        for wrong in ["", "#", "-1", "#-1", "x", "4294967296", "#9223372036854775807"] {
            assert!(field("i5").offset(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_integer_of_each_type_is_read_as_it_was_written() {
        for (is_signed, bits) in (1..=64).map(|bits| (true, bits)).chain((1..64).map(|bits| (false, bits))) {
            let field = FieldType { is_signed, bits };
            let values = 1_i128 << bits;
            let least = if is_signed { -(values / 2) } else { 0 };
            for number in [least, least + 1, -1, 0, 1, least + values - 2, least + values - 1] {
                let number = field.fit(number, Overflow::Wrap).expect("wraps");
                for offset in [0, 1, 7, 8, 13] {
                    let mut value = [0b1010_1010; 16];
                    field.write(&mut value, offset, number);
                    assert_eq!(field.read(&value, offset), number, "{field:?} {number} at {offset}");
                    let untouched = |at: u64| at < offset || at >= offset + u64::from(bits);
                    for at in (0..128).filter(|&at| untouched(at)) {
                        let bit = value[usize::try_from(at / 8).unwrap()] >> (7 - at % 8) & 1;
                        assert_eq!(u64::from(bit), 1 - at % 2, "{field:?} at {offset} changed bit {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_overflow_wraps_saturates_or_fails() {
        for (kind, number, wrapped, saturated) in [
            ("u8", 256, 0, 255),
            ("u8", -1, 255, 0),
            ("i8", 128, -128, 127),
            ("i8", -129, 127, -128),
            ("i64", i128::from(i64::MAX) + 1, i128::from(i64::MIN), i128::from(i64::MAX)),
            ("i1", 1, -1, 0),
        ] {
            let field = field(kind);
            assert_eq!(field.fit(number, Overflow::Wrap), Some(wrapped), "{kind} {number}");
            assert_eq!(field.fit(number, Overflow::Saturate), Some(saturated), "{kind} {number}");
            assert_eq!(field.fit(number, Overflow::Fail), None, "{kind} {number}");
        }
    }
}
