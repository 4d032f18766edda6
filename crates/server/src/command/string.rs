//! Commands on strings.

use std::ops::Range;

use super::CommandResult;
use super::arguments::{Options, TimeOrigin, TimeUnit, end_option, integer, is_word, later_ms};
use crate::error::{CommandError, Failure};
use crate::keyspace::{Expiry, Form, Keyspace, Record, Slot};
use crate::resp::{Reply, Request};

/// Runs `GET key`.
pub(super) fn get(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    Ok(keys.get(request.arg(1))?.map_or(Reply::Null, Record::into_reply))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    IfAbsent,
    IfPresent,
}

/// An expiry option of a request: its unit and origin, and its argument. A repeated option replaces the
/// argument.
#[derive(Clone, Copy, Debug)]
struct EndOption<'a> {
    kind: (TimeUnit, TimeOrigin),
    argument: &'a [u8],
}

impl<'a> EndOption<'a> {
    /// Parses an option and its argument. Returns `false` if `option` is another option, or contradicts an
    /// earlier expiry option.
    fn take(end: &mut Option<Self>, option: &[u8], options: &mut Options<'a>) -> Result<bool, CommandError> {
        let Some(kind) = end_option(option) else { return Ok(false) };
        if end.is_some_and(|end| end.kind != kind) {
            return Ok(false);
        }
        *end = Some(Self { kind, argument: options.value()? });
        Ok(true)
    }

    fn ms(self, now_ms: u64, command: &'static str) -> Result<u64, CommandError> {
        later_ms(self.argument, self.kind, now_ms, command)
    }
}

/// Options of `SET`.
#[derive(Debug, Default)]
struct SetOptions {
    condition: Option<Condition>,
    gives_old: bool,
    keeps_end: bool,
    ends_ms: Option<u64>,
}

impl SetOptions {
    fn parse(request: Request<'_>, now_ms: u64) -> Result<Self, CommandError> {
        let (mut set, mut end) = (Self::default(), None);
        let mut options = Options::from(request, 3);
        while let Some(option) = options.next() {
            if is_word(option, "NX") && set.condition != Some(Condition::IfPresent) {
                set.condition = Some(Condition::IfAbsent);
            } else if is_word(option, "XX") && set.condition != Some(Condition::IfAbsent) {
                set.condition = Some(Condition::IfPresent);
            } else if is_word(option, "GET") {
                set.gives_old = true;
            } else if is_word(option, "KEEPTTL") && end.is_none() {
                set.keeps_end = true;
            } else if set.keeps_end || !EndOption::take(&mut end, option, &mut options)? {
                return Err(CommandError::Syntax);
            }
        }
        // The options are checked before the time: as in Redis, a syntax error takes precedence.
        set.ends_ms = end.map(|end| end.ms(now_ms, "set")).transpose()?;
        Ok(set)
    }

    const fn is_blind(&self) -> bool {
        self.condition.is_none() && !self.gives_old && !self.keeps_end
    }
}

/// Runs `SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
pub(super) fn set(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (key, value) = (request.arg(1), request.arg(2));
    let set = SetOptions::parse(request, keys.clock_ms())?;
    if set.is_blind() {
        keys.put(key, value, Expiry::from_ms(set.ends_ms))?;
        return Ok(Reply::OK);
    }
    let slot = keys.get_for_update(key)?;
    let is_done = match set.condition {
        None => true,
        Some(Condition::IfAbsent) => slot.live.is_none(),
        Some(Condition::IfPresent) => slot.live.is_some(),
    };
    if is_done {
        let expiry = if set.keeps_end { slot.expiry() } else { Expiry::from_ms(set.ends_ms) };
        keys.put_existing(key, &slot, value, expiry)?;
    }
    Ok(match (set.gives_old, is_done) {
        (true, _) => slot.into_reply(keys)?,
        (false, true) => Reply::OK,
        (false, false) => Reply::Null,
    })
}

/// Runs `SETNX key value`.
pub(super) fn setnx(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    if slot.live.is_none() {
        keys.put_existing(request.arg(1), &slot, request.arg(2), Expiry::Never)?;
    }
    Ok(Reply::flag(slot.live.is_none()))
}

/// Runs `SETEX key seconds value`, `PSETEX key milliseconds value`.
pub(super) fn setex(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let is_seconds = is_word(request.arg(0), "SETEX");
    let end = end_option(if is_seconds { b"EX" } else { b"PX" }).ok_or(CommandError::Syntax)?;
    let command = if is_seconds { "setex" } else { "psetex" };
    let at = later_ms(request.arg(2), end, keys.clock_ms(), command)?;
    keys.put(request.arg(1), request.arg(3), Expiry::AtMs(at))?;
    Ok(Reply::OK)
}

/// Runs `GETSET key value`.
pub(super) fn getset(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    keys.put_existing(request.arg(1), &slot, request.arg(2), Expiry::Never)?;
    Ok(slot.into_reply(keys)?)
}

/// Runs `GETDEL key`.
pub(super) fn getdel(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    if slot.live.is_some() {
        keys.remove_existing(request.arg(1), &slot)?;
    }
    Ok(slot.into_reply(keys)?)
}

/// Runs `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
pub(super) fn getex(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let mut options = Options::from(request, 2);
    let (mut end, mut persists) = (None, false);
    while let Some(option) = options.next() {
        if is_word(option, "PERSIST") && end.is_none() {
            persists = true;
        } else if persists || !EndOption::take(&mut end, option, &mut options)? {
            return Err(CommandError::Syntax.into());
        }
    }
    if end.is_none() && !persists {
        return get(keys, request);
    }
    let slot = keys.get_for_update(request.arg(1))?;
    if slot.live.is_none() {
        return Ok(Reply::Null);
    }
    let ends_ms = end.map(|end| end.ms(keys.clock_ms(), "getex")).transpose()?;
    let expiry = Expiry::from_ms(ends_ms);
    if slot.expiry() != expiry {
        keys.put_form(request.arg(1), &slot, slot.value(), expiry, slot.form())?;
    }
    Ok(slot.into_reply(keys)?)
}

/// Runs `MGET key…`.
pub(super) fn mget(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let values = (1..request.len()).map(|at| {
        keys.prefetch_from(request, at, 1)?;
        keys.charge(size_of::<Reply>())?;
        Ok(keys.get(request.arg(at))?.map_or(Reply::Null, Record::into_reply))
    });
    values.collect::<Result<_, Failure>>().map(Reply::Array)
}

/// Returns the positions of the keys of pairs of key and value, from the second argument on.
fn pairs(request: Request<'_>) -> Result<impl Iterator<Item = usize>, CommandError> {
    if request.len().is_multiple_of(2) {
        let name = String::from_utf8_lossy(request.arg(0)).to_ascii_lowercase();
        return Err(CommandError::Arity(name));
    }
    Ok((1..request.len()).step_by(2))
}

/// Runs `MSET key value…`.
pub(super) fn mset(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    for at in pairs(request)? {
        keys.prefetch_from(request, at, 2)?;
        keys.put(request.arg(at), request.arg(at + 1), Expiry::Never)?;
    }
    Ok(Reply::OK)
}

/// Runs `MSETNX key value…`.
pub(super) fn msetnx(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    for at in pairs(request)? {
        keys.prefetch_from(request, at, 2)?;
        if keys.get_for_update(request.arg(at))?.live.is_some() {
            return Ok(Reply::flag(false));
        }
    }
    for at in pairs(request)? {
        keys.put(request.arg(at), request.arg(at + 1), Expiry::Never)?;
    }
    Ok(Reply::flag(true))
}

/// Runs `STRLEN key`.
pub(super) fn strlen(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    Ok(Reply::count(keys.lend(request.arg(1), |record| Ok(record.value_len()))?.unwrap_or(0)))
}

/// Runs `APPEND key value`.
pub(super) fn append(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    let value = [slot.value(), request.arg(2)].concat();
    let form = if slot.live.is_some() { Form::Changed } else { Form::Assigned };
    keys.put_form(request.arg(1), &slot, &value, slot.expiry(), form)?;
    Ok(Reply::count(value.len()))
}

/// Runs `GETRANGE key start end`, `SUBSTR key start end`.
pub(super) fn getrange(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (start, end) = (integer(request.arg(2))?, integer(request.arg(3))?);
    let part = keys.lend(request.arg(1), |record| {
        let part = part(record.value_len(), start, end);
        keys.charge(part.len())?;
        Ok(record.read(part)?)
    })?;
    Ok(Reply::Bulk(part.unwrap_or_default()))
}

/// Returns the bytes `start..=end` of a value of `len` bytes. Negative positions count from the end of the
/// value.
fn part(len: usize, start: i64, end: i64) -> Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    // Both positions count from the end and are in the wrong order: the result is empty, as in Redis.
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end || len == 0 {
        return 0..0;
    }
    let place = |at: i64| usize::try_from(at).unwrap_or(0);
    place(start)..place(end) + 1
}

/// Runs `SETRANGE key offset value`.
pub(super) fn setrange(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let offset = usize::try_from(integer(request.arg(2))?).map_err(|_| CommandError::Offset)?;
    let new = request.arg(3);
    if new.is_empty() {
        return strlen(keys, request);
    }
    if offset.checked_add(new.len()).is_none_or(|end| end > keys.context.max_value_bytes) {
        return Err(CommandError::ValueTooLong.into());
    }
    let slot: Slot = keys.get_for_update(request.arg(1))?;
    let mut value = slot.value().to_vec();
    value.resize(value.len().max(offset + new.len()), 0);
    value[offset..offset + new.len()].copy_from_slice(new);
    keys.put_form(request.arg(1), &slot, &value, slot.expiry(), Form::Changed)?;
    Ok(Reply::count(value.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_documentation_of_redis() {
        let value = b"This is a string";
        let part = |value: &[u8], start, end| value[part(value.len(), start, end)].to_vec();
        assert_eq!(part(value, 0, 3), b"This");
        assert_eq!(part(value, -3, -1), b"ing");
        assert_eq!(part(value, 0, -1), value);
        assert_eq!(part(value, 10, 100), b"string");
        assert_eq!(part(value, 5, 3), b"");
        assert_eq!(part(value, i64::MIN, i64::MAX), value);
        assert_eq!(part(value, 0, i64::MIN), b"T");
        assert_eq!(part(b"", 0, -1), b"");
    }
}
