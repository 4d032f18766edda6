//! Tables for a terminal, and readable numbers.

use std::fmt::Write;

/// Rows of cells; the first column is text, the others numbers.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Number of left-aligned columns.
    left: usize,
}

impl Table {
    /// Returns a table with text in its first `left` columns.
    pub(crate) fn new(left: usize, head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|h| (*h).to_owned()).collect()], left }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Appends the table to `out`. Columns are as wide as their widest cell.
    pub(crate) fn write(&self, out: &mut String) {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column == 0 { "  " } else { "   " };
                if column < self.left {
                    let _ = write!(line, "{gap}{cell}{pad}");
                } else {
                    let _ = write!(line, "{gap}{pad}{cell}");
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}

/// Formats nanoseconds with a suitable unit, in three or four digits.
pub(crate) fn time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        n if n < 1e3 => (ns, "ns"),
        n if n < 1e6 => (ns / 1e3, "us"),
        n if n < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    match value.abs() {
        0.0 => "0".into(),
        v if v < 10.0 && unit != "ns" => format!("{value:.2} {unit}"),
        v if v < 100.0 && unit != "ns" => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// Formats a whole number of nanoseconds as [`time`] does, or `-` if it is unknown.
pub(crate) fn known(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".into(), |ns| time(ns as f64))
}

/// Formats a rate or another number with a suitable number of digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => grouped(value.round() as i64),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a whole number in groups of three digits.
pub(crate) fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0 { format!("-{out}") } else { out }
}

/// Formats a fraction as a percentage.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Formats a change as a signed percentage.
pub(crate) fn change(part: f64) -> String {
    format!("{:+.1} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(
            [time(0.0), time(17.4), time(1_500.0), time(99_940.0)],
            ["0", "17 ns", "1.50 us", "99.9 us"]
        );
        assert_eq!([time(2.5e8), time(2.062e11)], ["250 ms", "206 s"]);
        assert_eq!([number(1234567.4), number(12.34), number(0.5)], ["1,234,567", "12.3", "0.50"]);
        assert_eq!([grouped(-1000), grouped(7)], ["-1,000", "7"]);
        assert_eq!([percent(0.123), change(-0.2)], ["12.3 %", "-20.0 %"]);
        assert_eq!(known(None), "-");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(1, &["name", "n"]);
        table.row(vec!["longer name".into(), "12".into()]);
        let mut out = String::new();
        table.write(&mut out);
        assert_eq!(out, "  name           n\n  longer name   12\n");
    }
}
