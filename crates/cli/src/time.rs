//! Times as people write them.

use azekura::CommitTime;

/// Reads a time: `2026-11-26T09:30:00.5Z`, with a space in the place of the `T`, without the `Z`, without the
/// seconds, without the time of the day; or microseconds since 1970. Always UTC.
///
/// # Errors
///
/// Anything else, with an example.
pub(crate) fn parse(text: &str) -> Result<CommitTime, String> {
    micros(text).map(CommitTime::from_micros).ok_or_else(|| {
        format!(
            "{text:?} is not a time; write for example 2026-11-26T09:30:00Z (UTC), or microseconds since 1970"
        )
    })
}

fn micros(text: &str) -> Option<u64> {
    if !text.contains('-') {
        return number(text);
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let [year, month, day] = fields(date, '-')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = fields(clock, ':').or_else(|| fields(&format!("{clock}:00"), ':'))?;
    let digits = fraction.len() as u32;
    let fraction = number(fraction).filter(|_| digits <= 6)? * 10_u64.pow(6 - digits);
    let days = days_since_1970(year, month, day)?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    is_time.then_some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + fraction)
}

/// Digits only.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn fields(text: &str, separator: char) -> Option<[u64; 3]> {
    let fields: Option<Vec<u64>> = text.split(separator).map(number).collect();
    fields?.try_into().ok()
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |month: u64| match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=days_of(month)).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let months: u64 = (1..month).map(days_of).sum();
    Some(years + months + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_utc() {
        for (text, micros) in [
            ("1970-01-01", 0),
            ("2000-02-29T00:00:01Z", 951_782_401_000_000),
            ("2026-11-26 09:30:00.25", 1_795_685_400_250_000),
            ("1795685400250000", 1_795_685_400_250_000),
            ("2026-11-26T09:30", 1_795_685_400_000_000),
        ] {
            assert_eq!(parse(text), Ok(CommitTime::from_micros(micros)), "{text}");
        }
        for text in [
            "",
            "now",
            "2026-02-29",
            "2026-13-01",
            "2026-11-26T24:00:00",
            "2026-11-26T09",
            "2026-11-26T1:2:3:4",
            "2026-11-26T09:30+02:00",
            "-5",
            "+5",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
