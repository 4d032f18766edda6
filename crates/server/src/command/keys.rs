//! Commands on keys, independent of their values.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;

use super::arguments::{Options, database_index, integer, is_word};
use super::{CommandResult, Walk};
use crate::cursor::{Cursors, WINDOW};
use crate::error::{CommandError, Failure};
use crate::glob;
use crate::keyspace::{self, Expiry, Form, KeyRange, Keyspace, RecordRef};
use crate::resp::{Reply, Request};

/// Runs `DEL key…`, `UNLINK key…`.
pub(super) fn delete(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let mut removed = 0;
    for at in 1..request.len() {
        keys.prefetch_from(request, at, 1)?;
        removed += i64::from(keys.remove(request.arg(at))?);
    }
    Ok(Reply::Integer(removed))
}

/// Runs `EXISTS key…`, `TOUCH key…`: a key named twice counts twice.
pub(super) fn exists(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let mut found = 0;
    for at in 1..request.len() {
        keys.prefetch_from(request, at, 1)?;
        found += i64::from(keys.exists(request.arg(at))?);
    }
    Ok(Reply::Integer(found))
}

/// Runs `TYPE key`.
pub(super) fn kind(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    Ok(Reply::Simple(if keys.exists(request.arg(1))? { "string" } else { "none" }))
}

/// Runs `RENAME key newkey`, `RENAMENX key newkey`.
pub(super) fn rename(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let is_careful = is_word(request.arg(0), "RENAMENX");
    let (from, to) = (request.arg(1), request.arg(2));
    let slot = keys.get_for_update(from)?;
    if slot.live.is_none() {
        return Err(CommandError::NoSuchKey.into());
    }
    if from == to {
        return Ok(if is_careful { Reply::flag(false) } else { Reply::OK });
    }
    let target = keys.get_for_update(to)?;
    if is_careful && target.live.is_some() {
        return Ok(Reply::flag(false));
    }
    keys.put_form(to, &target, slot.value(), slot.expiry(), slot.form())?;
    keys.remove_existing(from, &slot)?;
    Ok(if is_careful { Reply::flag(true) } else { Reply::OK })
}

/// Runs `COPY source destination [DB 0] [REPLACE]`.
pub(super) fn copy(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let mut replaces = false;
    let mut options = Options::from(request, 3);
    while let Some(option) = options.next() {
        if is_word(option, "REPLACE") {
            replaces = true;
        } else if is_word(option, "DB") {
            database_index(options.value()?)?;
        } else {
            return Err(CommandError::Syntax.into());
        }
    }
    let (from, to) = (request.arg(1), request.arg(2));
    if from == to {
        return Err(CommandError::Protocol("source and destination objects are the same".into()).into());
    }
    let source = |record: RecordRef<'_>| (record.value.to_vec(), record.expires_ms, record.form);
    let Some((value, expires_ms, form)) = keys.look(from, source)? else { return Ok(Reply::flag(false)) };
    let target = keys.get_for_update(to)?;
    if target.live.is_some() && !replaces {
        return Ok(Reply::flag(false));
    }
    keys.put_form(to, &target, &value, Expiry::from_ms(expires_ms), form)?;
    Ok(Reply::flag(true))
}

/// Runs `OBJECT ENCODING | REFCOUNT | IDLETIME | FREQ key`.
pub(super) fn object(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let word = request.arg(1).to_ascii_uppercase();
    if word == b"FREQ" {
        let refusal = CommandError::Protocol(NO_FREQUENCY.into());
        return if keys.exists(request.arg(2))? { Err(refusal.into()) } else { Ok(Reply::Null) };
    }
    let about = |record: RecordRef<'_>| match word.as_slice() {
        b"ENCODING" => Reply::text(encoding(record)),
        b"REFCOUNT" => Reply::Integer(1),
        // The store does not record uses of keys.
        _ => Reply::Integer(0),
    };
    Ok(keys.look(request.arg(2), about)?.unwrap_or(Reply::Null))
}

/// Error of Redis without an LFU policy.
const NO_FREQUENCY: &str = "An LFU maxmemory policy is not selected, access frequency not tracked. Please \
                            note that when switching between policies at runtime LRU and LFU data will take \
                            some time to adjust.";

/// Returns the encoding that Redis would use for the value.
fn encoding(record: RecordRef<'_>) -> &'static str {
    match record.form {
        Form::Assigned if integer(record.value).is_ok() => "int",
        Form::Assigned | Form::Text if record.value.len() <= MAX_EMBEDDED => "embstr",
        _ => "raw",
    }
}

/// Longest string that Redis stores together with its object (`OBJ_ENCODING_EMBSTR_SIZE_LIMIT`).
const MAX_EMBEDDED: usize = 44;

/// Runs `MEMORY USAGE key [SAMPLES n]`: the size of the key's record, without the overhead of pages.
pub(super) fn memory(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let mut options = Options::from(request, 3);
    if let Some(option) = options.next()
        && !(is_word(option, "SAMPLES") && integer(options.value()?)? >= 0 && options.next().is_none())
    {
        return Err(CommandError::Syntax.into());
    }
    let bytes = keys.lend(request.arg(2), |record| Ok(record.stored_bytes() + request.arg(2).len()))?;
    Ok(bytes.map_or(Reply::Null, Reply::count))
}

/// Runs `RANDOMKEY`.
pub(super) fn random_key(keys: &Keyspace<'_>, _: Request<'_>) -> CommandResult {
    let key = keys.random_key(any_of)?;
    keys.charge(key.as_ref().map_or(0, Vec::len))?;
    Ok(Reply::bulk_or_null(key))
}

/// Returns a random number below `count`, or 0 if `count` is 0.
pub(crate) fn any_of(count: usize) -> usize {
    // Each `RandomState` has different hash keys, so each number differs.
    let number = RandomState::new().build_hasher().finish();
    number.checked_rem(count as u64).and_then(|rest| usize::try_from(rest).ok()).unwrap_or(0)
}

/// Runs `FLUSHDB`, `FLUSHALL [ASYNC | SYNC]`.
pub(super) fn flush(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    flush_options(request)?;
    keys.remove_all()?;
    Ok(Reply::OK)
}

/// Checks the options of `FLUSHDB`.
pub(crate) fn flush_options(request: Request<'_>) -> Result<(), CommandError> {
    let is_option = |option| is_word(option, "ASYNC") || is_word(option, "SYNC");
    let is_fine = request.len() < 3 && request.from(1).all(is_option);
    if is_fine { Ok(()) } else { Err(CommandError::Syntax) }
}

/// Options of `SCAN`.
pub(crate) struct ScanOptions<'a> {
    pub(crate) pattern: Option<&'a [u8]>,
    pub(crate) count: usize,
    /// `true` if the request asks for a type other than `string`. No key has such a type, so nothing is
    /// found.
    pub(crate) is_other_type: bool,
}

impl<'a> ScanOptions<'a> {
    /// Parses the cursor and the options of a request.
    pub(crate) fn of(request: Request<'a>) -> Result<(u64, Self), CommandError> {
        let cursor = std::str::from_utf8(request.arg(1)).ok().and_then(|text| text.parse().ok());
        Ok((cursor.ok_or(CommandError::Cursor)?, Self::parse(request)?))
    }

    /// Returns the keys that a scan with this cursor has left.
    pub(crate) fn range(&self, cursors: &Cursors, cursor: u64) -> Result<KeyRange, Failure> {
        let position = cursors.position(cursor)?.ok_or(CommandError::Cursor)?;
        Ok(range_of(self.pattern).from(position))
    }

    /// Returns `true` if the options select this key.
    pub(crate) fn wants(&self, key: &[u8]) -> bool {
        !self.is_other_type && self.pattern.is_none_or(|pattern| glob::matches(pattern, key))
    }

    fn parse(request: Request<'a>) -> Result<Self, CommandError> {
        let mut scan = Self { pattern: None, count: 10, is_other_type: false };
        let mut options = Options::from(request, 2);
        while let Some(option) = options.next() {
            let value = options.value()?;
            if is_word(option, "MATCH") {
                scan.pattern = Some(value);
            } else if is_word(option, "COUNT") {
                scan.count = usize::try_from(integer(value)?).unwrap_or(0);
                if scan.count == 0 {
                    return Err(CommandError::Syntax);
                }
            } else if is_word(option, "TYPE") {
                scan.is_other_type = !is_word(value, "string");
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(scan)
    }
}

/// Returns the range of the keys that can match a pattern: those that begin with its literal prefix.
pub(crate) fn range_of(pattern: Option<&[u8]>) -> KeyRange {
    pattern.map_or(KeyRange::ALL, |pattern| KeyRange::prefix(&glob::literal_prefix(pattern)))
}

/// Runs `SCAN cursor [MATCH pattern] [COUNT n] [TYPE t]`: the next keys in order; visits about `n` keys.
pub(super) fn scan(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (cursor, options) = ScanOptions::of(request)?;
    let range = options.range(&keys.context.cursors, cursor)?;
    let mut found = Vec::new();
    let walked = keys.walk(&range, keyspace::Walk::KeysForward, options.count, |key, _| {
        if options.wants(key) {
            keys.charge(key.len() + size_of::<Reply>())?;
            found.push(Reply::Bulk(key.to_vec()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let next_keys = |last: &[u8], count| {
        let mut next = Vec::new();
        keys.walk(&range.clone().after(last.to_vec()), keyspace::Walk::KeysForward, usize::MAX, |key, _| {
            next.push(key.to_vec());
            Ok(if next.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(next)
    };
    let (more, next) = end_of_scan(&keys.context.cursors, walked.stopped_at, next_keys)?;
    for key in more.into_iter().filter(|key| options.wants(key)) {
        keys.charge(key.len() + size_of::<Reply>())?;
        found.push(Reply::Bulk(key));
    }
    Ok(Reply::Array(vec![Reply::text(next.to_string()), Reply::Array(found)]))
}

/// Ends a step of a scan that stopped at a key. Returns the additional keys of this step, and the cursor of
/// the next step (CURSOR-1). `next_keys(key, n)` returns at most `n` keys after `key`.
pub(crate) fn end_of_scan(
    cursors: &Cursors,
    stopped_at: Option<Vec<u8>>,
    next_keys: impl Fn(&[u8], usize) -> Result<Vec<Vec<u8>>, Failure>,
) -> Result<(Vec<Vec<u8>>, u64), Failure> {
    let Some(last) = stopped_at else { return Ok((Vec::new(), 0)) };
    let next = next_keys(&last, 1)?;
    let Some(first) = next.first() else { return Ok((Vec::new(), 0)) };
    if let Some(cursor) = cursors.between(&last, first)? {
        return Ok((Vec::new(), cursor));
    }
    let mut more = next_keys(&last, WINDOW)?;
    if more.len() < WINDOW {
        return Ok((more, 0)); // the range has no more keys
    }
    more.insert(0, last);
    let (count, cursor) = cursors.cut(&more)?;
    more.truncate(count);
    more.remove(0);
    Ok((more, cursor))
}

/// Runs `DBSIZE`, `KEYS pattern`.
pub(crate) fn walk_all(keys: &Keyspace<'_>, walk: Walk, request: Request<'_>) -> CommandResult {
    if walk == Walk::Count
        && let Some(count) = keys.kept_count()?
    {
        return Ok(Reply::count(count));
    }
    let pattern = (walk == Walk::List).then(|| request.arg(1));
    let (mut found, mut count) = (Vec::new(), 0);
    keys.walk(&range_of(pattern), keyspace::Walk::KeysForward, usize::MAX, |key, _| {
        if let Some(pattern) = pattern {
            if glob::matches(pattern, key) {
                keys.charge(key.len() + size_of::<Reply>())?;
                found.push(Reply::Bulk(key.to_vec()));
            }
        } else {
            count += 1;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(match walk {
        Walk::Count => Reply::count(count),
        Walk::List => Reply::Array(found),
    })
}
