//! Commands on the expiry of keys.

use super::CommandResult;
use super::arguments::{Options, TimeOrigin, TimeUnit, end_ms, is_word, short_text};
use crate::error::CommandError;
use crate::keyspace::{Expiry, Keyspace};
use crate::resp::{Reply, Request};

/// Conditions under which `EXPIRE` sets an expiry.
#[derive(Debug, Default)]
struct Conditions {
    is_without: bool,
    is_with: bool,
    is_later: bool,
    is_earlier: bool,
}

impl Conditions {
    fn parse(request: Request<'_>) -> Result<Self, CommandError> {
        let mut wanted = Self::default();
        let mut options = Options::from(request, 3);
        while let Some(option) = options.next() {
            let flag = match option.to_ascii_uppercase().as_slice() {
                b"NX" => &mut wanted.is_without,
                b"XX" => &mut wanted.is_with,
                b"GT" => &mut wanted.is_later,
                b"LT" => &mut wanted.is_earlier,
                _ => return Err(CommandError::ExpireOption(short_text(option))),
            };
            *flag = true;
        }
        if wanted.is_without && (wanted.is_with || wanted.is_later || wanted.is_earlier) {
            return Err(CommandError::ExpireOptions("NX and XX, GT or LT"));
        }
        if wanted.is_later && wanted.is_earlier {
            return Err(CommandError::ExpireOptions("GT and LT"));
        }
        Ok(wanted)
    }

    /// Returns `true` if the conditions hold for a key with this expiry. A key without an expiry counts as
    /// the last to expire.
    fn hold(&self, old: Expiry, new_ms: i64) -> bool {
        let old_ms = match old {
            Expiry::Never => None,
            Expiry::AtMs(at) => Some(i64::try_from(at).unwrap_or(i64::MAX)),
        };
        (!self.is_without || old_ms.is_none())
            && (!self.is_with || old_ms.is_some())
            && (!self.is_later || old_ms.is_some_and(|old| new_ms > old))
            && (!self.is_earlier || old_ms.is_none_or(|old| new_ms < old))
    }
}

/// Runs `EXPIRE`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT key time [NX | XX | GT | LT]`.
pub(super) fn expire(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let (name, unit, origin) = [
        ("expire", TimeUnit::Seconds, TimeOrigin::Now),
        ("pexpire", TimeUnit::Milliseconds, TimeOrigin::Now),
        ("expireat", TimeUnit::Seconds, TimeOrigin::Epoch),
        ("pexpireat", TimeUnit::Milliseconds, TimeOrigin::Epoch),
    ]
    .into_iter()
    .find(|(name, ..)| is_word(request.arg(0), name))
    .ok_or(CommandError::Syntax)?;
    let conditions = Conditions::parse(request)?;
    let at_ms = end_ms(request.arg(2), unit, origin, keys.clock_ms(), name)?;
    let slot = keys.get_for_update(request.arg(1))?;
    if slot.live.is_none() || !conditions.hold(slot.expiry(), at_ms) {
        return Ok(Reply::flag(false));
    }
    match u64::try_from(at_ms) {
        Ok(at) if at > keys.clock_ms() => {
            keys.put_form(request.arg(1), &slot, slot.value(), Expiry::AtMs(at), slot.form())?
        }
        // A time in the past removes the key now.
        _ => keys.remove_existing(request.arg(1), &slot)?,
    }
    Ok(Reply::flag(true))
}

/// Runs `PERSIST key`.
pub(super) fn persist(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let slot = keys.get_for_update(request.arg(1))?;
    let has_end = slot.live.is_some() && slot.expiry() != Expiry::Never;
    if has_end {
        keys.put_form(request.arg(1), &slot, slot.value(), Expiry::Never, slot.form())?;
    }
    Ok(Reply::flag(has_end))
}

/// Runs `TTL`, `PTTL`, `EXPIRETIME`, `PEXPIRETIME key`: -2 if the key does not exist, -1 if it has no expiry.
pub(super) fn ttl(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let now = keys.clock_ms();
    let Some(end) = keys.lend(request.arg(1), |record| Ok(record.expires_ms))? else {
        return Ok(Reply::Integer(-2));
    };
    let Some(at) = end else { return Ok(Reply::Integer(-1)) };
    let name = request.arg(0);
    let answer = if is_word(name, "TTL") {
        (at.saturating_sub(now) + 500) / 1000
    } else if is_word(name, "PTTL") {
        at.saturating_sub(now)
    } else if is_word(name, "EXPIRETIME") {
        (at + 500) / 1000
    } else {
        at
    };
    Ok(Reply::Integer(i64::try_from(answer).unwrap_or(i64::MAX)))
}
