//! Commands that Redis lacks: ranges of keys in order, and compare-and-set.

use std::ops::{Bound, ControlFlow};

use super::CommandResult;
use super::arguments::{Options, integer, is_word};
use crate::error::CommandError;
use crate::keyspace::{Expiry, KeyRange, Keyspace, Walk};
use crate::resp::{Reply, Request};

/// Parses the bounds of a range in the syntax of `ZRANGEBYLEX`: `-`, `+`, `[key`, `(key`.
fn range(request: Request<'_>) -> Result<KeyRange, CommandError> {
    let bound = |argument: &[u8], open: &[u8]| match argument.split_first() {
        _ if argument == open => Ok(Bound::Unbounded),
        Some((b'[', key)) => Ok(Bound::Included(key.to_vec())),
        Some((b'(', key)) => Ok(Bound::Excluded(key.to_vec())),
        _ => Err(CommandError::Bound),
    };
    Ok(KeyRange { lower: bound(request.arg(1), b"-")?, upper: bound(request.arg(2), b"+")? })
}

#[derive(Debug)]
pub(crate) struct RangeOptions {
    pub(crate) is_backward: bool,
    pub(crate) limit: usize,
    pub(crate) keys_only: bool,
}

/// Parses the range and the options of a request. `allows` contains the accepted options.
pub(crate) fn range_request(
    request: Request<'_>,
    allows: &[&str],
) -> Result<(KeyRange, RangeOptions), CommandError> {
    Ok((range(request)?, RangeOptions::parse(request, allows)?))
}

impl RangeOptions {
    fn parse(request: Request<'_>, allows: &[&str]) -> Result<Self, CommandError> {
        let mut found = Self { is_backward: false, limit: usize::MAX, keys_only: false };
        let mut options = Options::from(request, 3);
        while let Some(option) = options.next() {
            if is_word(option, "AT") {
                return Err(CommandError::NotOffered("AT", "AZ.BEGIN RO AT reads a snapshot"));
            }
            match allows.iter().find(|allowed| is_word(option, allowed)) {
                Some(&"REV") => found.is_backward = true,
                Some(&"KEYS") => found.keys_only = true,
                Some(_) => {
                    let limit = integer(options.value()?)?;
                    found.limit = usize::try_from(limit).map_err(|_| CommandError::NotAnInteger)?;
                }
                None => return Err(CommandError::Syntax),
            }
        }
        Ok(found)
    }
}

/// Runs `AZ.RANGE lo hi [REV] [LIMIT n] [KEYS]`: alternating keys and values, in key order.
pub(super) fn rows(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (range, options) = (range(request)?, RangeOptions::parse(request, &["REV", "LIMIT", "KEYS"])?);
    let mut found = Vec::new();
    let mut left = options.limit;
    if left == 0 {
        return Ok(Reply::Array(found));
    }
    let walk = match (options.is_backward, options.keys_only) {
        (true, _) => Walk::Backward,
        (false, true) => Walk::KeysForward,
        (false, false) => Walk::Forward,
    };
    keys.walk(&range, walk, usize::MAX, |key, record| {
        keys.charge(key.len() + size_of::<Reply>())?;
        found.push(Reply::Bulk(key.to_vec()));
        if !options.keys_only {
            keys.charge(record.value.len() + size_of::<Reply>())?;
            found.push(Reply::Bulk(record.value.to_vec()));
        }
        left -= 1;
        Ok(if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(Reply::Array(found))
}

/// Runs `AZ.COUNT lo hi`.
pub(super) fn count(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let range = range(request)?;
    let mut count = 0;
    keys.walk(&range, Walk::KeysForward, usize::MAX, |_, _| {
        count += 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Reply::Integer(count))
}

/// Runs `AZ.DELRANGE lo hi [LIMIT n]`.
pub(super) fn delete(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (range, options) = (range(request)?, RangeOptions::parse(request, &["LIMIT"])?);
    let mut found = Vec::new();
    if options.limit == 0 {
        return Ok(Reply::Integer(0));
    }
    keys.walk(&range, Walk::KeysForward, usize::MAX, |key, _| {
        keys.charge(key.len() + size_of::<Reply>())?;
        found.push(key.to_vec());
        let is_enough = found.len() == options.limit;
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    for key in &found {
        keys.remove(key)?;
    }
    Ok(Reply::count(found.len()))
}

/// Runs `AZ.CAS key expected new`: stores `new` if the value equals `expected`, and keeps the expiry. Returns
/// 1 or 0.
pub(super) fn compare_and_set(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    let is_as_expected = slot.live.as_ref().is_some_and(|record| record.value() == request.arg(2));
    if is_as_expected {
        let expiry: Expiry = slot.expiry();
        keys.put_existing(request.arg(1), &slot, request.arg(3), expiry)?;
    }
    Ok(Reply::flag(is_as_expected))
}
