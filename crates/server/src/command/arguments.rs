//! Reading arguments.

use crate::error::CommandError;
use crate::resp::{Request, number};

/// A whole number.
pub(crate) fn integer(argument: &[u8]) -> Result<i64, CommandError> {
    // Longer than any number: not worth reading.
    if argument.len() > 20 {
        return Err(CommandError::NotAnInteger);
    }
    number(argument).ok_or(CommandError::NotAnInteger)
}

/// Whether `argument` is `word`, in any case.
pub(crate) fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Options behind the fixed arguments, taken one by one.
pub(super) struct Options<'a> {
    request: Request<'a>,
    at: usize,
}

impl<'a> Options<'a> {
    pub(super) const fn from(request: Request<'a>, at: usize) -> Self {
        Self { request, at }
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let next = (self.at < self.request.len()).then(|| self.request.arg(self.at));
        self.at += 1;
        next
    }

    /// What has to follow an option.
    pub(super) fn value(&mut self) -> Result<&'a [u8], CommandError> {
        self.next().ok_or(CommandError::Syntax)
    }
}

/// What a time given as an argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Seconds,
    Milliseconds,
}

/// From when a time counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeOrigin {
    Now,
    Epoch,
}

/// The option names of an end, as `SET` and `GETEX` have them.
pub(super) fn end_option(option: &[u8]) -> Option<(TimeUnit, TimeOrigin)> {
    [
        ("EX", TimeUnit::Seconds, TimeOrigin::Now),
        ("PX", TimeUnit::Milliseconds, TimeOrigin::Now),
        ("EXAT", TimeUnit::Seconds, TimeOrigin::Epoch),
        ("PXAT", TimeUnit::Milliseconds, TimeOrigin::Epoch),
    ]
    .into_iter()
    .find_map(|(word, unit, origin)| is_word(option, word).then_some((unit, origin)))
}

/// A time in milliseconds since 1970; negative if it lies before.
pub(super) fn end_ms(
    argument: &[u8],
    unit: TimeUnit,
    origin: TimeOrigin,
    now_ms: u64,
    command: &'static str,
) -> Result<i64, CommandError> {
    let wrong = CommandError::ExpireTime(command);
    let scale = if unit == TimeUnit::Seconds { 1000 } else { 1 };
    let ms = integer(argument)?.checked_mul(scale).ok_or_else(|| wrong.clone())?;
    match origin {
        TimeOrigin::Epoch => Ok(ms),
        TimeOrigin::Now => i64::try_from(now_ms).ok().and_then(|now| now.checked_add(ms)).ok_or(wrong),
    }
}

/// As [`end_ms`], of an argument that has to be positive.
pub(super) fn later_ms(
    argument: &[u8],
    (unit, origin): (TimeUnit, TimeOrigin),
    now_ms: u64,
    command: &'static str,
) -> Result<u64, CommandError> {
    if integer(argument)? <= 0 {
        return Err(CommandError::ExpireTime(command));
    }
    let ms = end_ms(argument, unit, origin, now_ms, command)?;
    u64::try_from(ms).map_err(|_| CommandError::ExpireTime(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_redis_takes() {
        assert_eq!(integer(b"-9223372036854775808"), Ok(i64::MIN));
        for wrong in [&b""[..], b"9223372036854775808", b"+1", b" 1", b"1 ", b"1.0", b"0x1", b"-"] {
            assert_eq!(integer(wrong), Err(CommandError::NotAnInteger), "{wrong:?}");
        }
    }

    #[test]
    fn times_that_overflow_are_refused() {
        let end = |text: &str, origin| end_ms(text.as_bytes(), TimeUnit::Seconds, origin, 1000, "set");
        assert_eq!(end("2", TimeOrigin::Now), Ok(3000));
        assert_eq!(end("-2", TimeOrigin::Epoch), Ok(-2000));
        assert!(end("9223372036854775", TimeOrigin::Now).is_err());
        assert!(end("9223372036854776", TimeOrigin::Epoch).is_err());
        assert!(later_ms(b"0", (TimeUnit::Seconds, TimeOrigin::Epoch), 0, "set").is_err());
    }
}
