//! Numbers in readable form.

use std::time::Duration;

/// Formats `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a number with its noun: `1 row`, `2 rows`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Returns the end of a line: states if the files of an unfinished restore or compaction were removed.
pub(crate) const fn removed_unfinished(is_removed: bool) -> &'static str {
    if is_removed { "; removed the files of an unfinished restore or compaction first" } else { "" }
}

/// Formats bytes in the unit that leaves one to four digits before the decimal point.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a time span with about three digits.
pub(crate) fn duration(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 0.01 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} µs", seconds * 1e6),
    }
}

/// Formats a number of events per second.
pub(crate) fn rate(events: u64, span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if seconds > 0.0 { count((events as f64 / seconds) as u64) } else { "–".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "row"), counted(0, "row")], ["1 row", "0 rows"]);
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1536), bytes(5 << 40)],
            ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]
        );
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        let spans = [1_500_000, 31_000, 2_340, 400].map(|us| duration(Duration::from_micros(us)));
        assert_eq!(spans, ["1.50 s", "31 ms", "2.3 ms", "400 µs"]);
        assert_eq!(rate(10, Duration::ZERO), "–");
        assert_eq!(rate(3000, Duration::from_secs(2)), "1,500");
    }
}
