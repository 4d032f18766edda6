//! Parsing of arguments.

use crate::error::CommandError;
use crate::resp::{Request, number};

/// Parses a whole number in its canonical form.
pub(crate) fn integer(argument: &[u8]) -> Result<i64, CommandError> {
    number(argument).ok_or(CommandError::NotAnInteger)
}

/// Checks the number of a database. Only database 0 exists.
pub(crate) fn database_index(argument: &[u8]) -> Result<(), CommandError> {
    let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
    match integer(argument)? {
        0 => Ok(()),
        number if range.contains(&number) => Err(CommandError::DatabaseIndex),
        _ => Err(CommandError::OutOfRange(*range.start(), *range.end())),
    }
}

/// Returns the beginning of an argument, for an error message: up to its first zero byte, as in Redis.
pub(crate) fn short_text(argument: &[u8]) -> String {
    String::from_utf8_lossy(beginning(argument, 128)).into_owned()
}

/// Returns at most `max` bytes of an argument, up to its first zero byte.
pub(crate) fn beginning(argument: &[u8], max: usize) -> &[u8] {
    let len = argument.iter().take(max).position(|&byte| byte == 0);
    &argument[..len.unwrap_or(argument.len().min(max))]
}

/// Returns `true` if `argument` is `word`, in upper or lower case.
pub(crate) fn is_word(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Iterator over the options that follow the fixed arguments.
pub(super) struct Options<'a> {
    request: Request<'a>,
    at: usize,
}

impl<'a> Options<'a> {
    pub(super) const fn from(request: Request<'a>, at: usize) -> Self {
        Self { request, at }
    }

    /// Returns the next option, or `None` at the end of the request.
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let next = (self.at < self.request.len()).then(|| self.request.arg(self.at));
        self.at += 1;
        next
    }

    /// Returns the argument that follows an option. A missing argument is a syntax error.
    pub(super) fn value(&mut self) -> Result<&'a [u8], CommandError> {
        self.next().ok_or(CommandError::Syntax)
    }
}

/// Unit of a time argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Seconds,
    Milliseconds,
}

/// Point in time from which a time argument counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeOrigin {
    Now,
    Epoch,
}

/// Returns the unit and the origin of an expiry option of `SET` and `GETEX`.
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

/// Returns an expiry time in milliseconds since 1970; negative if it lies before 1970.
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

/// Like [`end_ms`], for an argument that must be positive.
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
        for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Ok(number));
        }
        let other_forms = [&b"007"[..], b"-0", b"00", b"-01", b"01"];
        let no_numbers =
            [&b""[..], b"9223372036854775808", b"+1", b" 1", b"1 ", b"1.0", b"0x1", b"-", b"--1"];
        for wrong in other_forms.into_iter().chain(no_numbers) {
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
