//! Times on the command line.

use azekura::CommitTime;

/// Parses a time, always in UTC: `2026-11-26T09:30:00.5Z`, or microseconds since 1970. The `T` may be a
/// space. The `Z` may be written `+00:00`. The `Z`, the seconds, and the time of day may be omitted.
///
/// # Errors
///
/// Any other text; the error contains an example.
pub(crate) fn parse(text: &str) -> Result<CommitTime, String> {
    micros(text).map(CommitTime::from_micros).ok_or_else(|| {
        format!(
            "{text:?} is not a time; write for example 2026-11-26T09:30:00Z (UTC), or microseconds since 1970"
        )
    })
}

fn micros(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok();
    }
    let text = text.strip_suffix('Z').or(text.strip_suffix("+00:00")).unwrap_or(text);
    if text.contains('+') {
        return None; // `humantime` ignores any offset that follows a fraction of a second
    }
    let clock = text.split_once(['T', ' ']).map(|(_, clock)| clock);
    let missing = match clock.map(|clock| clock.matches(':').count()) {
        None => " 00:00:00",
        Some(1) => ":00",
        Some(_) => "",
    };
    let time = humantime::parse_rfc3339_weak(&format!("{text}{missing}")).ok()?;
    Some(CommitTime::from(time).as_micros())
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
            ("2026-11-26T09:30:00.250000+00:00", 1_795_685_400_250_000),
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
            "2026-11-26T09:30:00+02:00",
            "2026-11-26T09:30:00.250000+02:00",
            "2026-11-26T09:30:00.250000-02:00",
            "2026-11-26T09:30:00.25+00:00+02:00",
            "-5",
            "+5",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
