//! Strings that are numbers.

use super::CommandResult;
use super::arguments::{integer, is_word};
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};

/// `INCR key`, `INCRBY key n`, `DECR key`, `DECRBY key n`
pub(super) fn add(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let by = if request.len() == 3 { integer(request.arg(2))? } else { 1 };
    let is_less = is_word(request.arg(0), "DECR") || is_word(request.arg(0), "DECRBY");
    let by = if is_less { by.checked_neg().ok_or(CommandError::Overflow)? } else { by };
    let slot = keys.take_up(request.arg(1))?;
    let old = if slot.live.is_some() { integer(slot.value())? } else { 0 };
    let new = old.checked_add(by).ok_or(CommandError::Overflow)?;
    keys.put_over(request.arg(1), &slot, new.to_string().as_bytes(), slot.ends())?;
    Ok(Reply::Integer(new))
}

/// `INCRBYFLOAT key n`
pub(super) fn add_float(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let by = float(request.arg(2))?;
    let slot = keys.take_up(request.arg(1))?;
    let old = if slot.live.is_some() { float(slot.value())? } else { 0.0 };
    let new = old + by;
    if !new.is_finite() {
        return Err(CommandError::NotFinite.into());
    }
    // The shortest digits that read back as the same number, without an exponent.
    let text = new.to_string().into_bytes();
    keys.put_over(request.arg(1), &slot, &text, slot.ends())?;
    Ok(Reply::Bulk(text))
}

fn float(argument: &[u8]) -> Result<f64, CommandError> {
    let number: Option<f64> = std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok());
    number.filter(|n| !n.is_nan()).ok_or(CommandError::NotAFloat)
}
