//! Commands on strings that contain numbers.

use super::CommandResult;
use super::arguments::{integer, is_word};
use super::long_double::LongDouble;
use crate::error::CommandError;
use crate::keyspace::{Form, Keyspace};
use crate::resp::{Reply, Request};

/// Runs `INCR key`, `INCRBY key n`, `DECR key`, `DECRBY key n`.
pub(super) fn add(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let by = if request.len() == 3 { integer(request.arg(2))? } else { 1 };
    let is_less = is_word(request.arg(0), "DECR") || is_word(request.arg(0), "DECRBY");
    let by = if is_less { by.checked_neg().ok_or(CommandError::DecrementOverflow)? } else { by };
    let slot = keys.get_for_update(request.arg(1))?;
    let old = if slot.live.is_some() { integer(slot.value())? } else { 0 };
    let new = old.checked_add(by).ok_or(CommandError::Overflow)?;
    keys.put_existing(request.arg(1), &slot, new.to_string().as_bytes(), slot.expiry())?;
    Ok(Reply::Integer(new))
}

/// Runs `INCRBYFLOAT key n`.
pub(super) fn add_float(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let float = |text| LongDouble::parse(text).ok_or(CommandError::NotAFloat);
    let slot = keys.get_for_update(request.arg(1))?;
    let old = if slot.live.is_some() { float(slot.value())? } else { LongDouble::ZERO };
    let text = old.plus(float(request.arg(2))?).to_text().ok_or(CommandError::NotFinite)?.into_bytes();
    keys.put_form(request.arg(1), &slot, &text, slot.expiry(), Form::Text)?;
    Ok(Reply::Bulk(text))
}
