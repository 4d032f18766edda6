//! The results as text and as a page with charts. The cells in which Azekura is slowest, relative to the best
//! peer, come first.

use super::{Phase, Row};
use azekura_lab::plot;
use azekura_lab::table::OURS;
use std::collections::BTreeMap;
use std::fmt::Write;

/// All engines in one phase with one size.
struct Compared<'a> {
    rows: Vec<&'a Row>,
}

impl Compared<'_> {
    /// Returns Azekura's rate divided by that of the best peer; `None` if one of the two is missing.
    fn ratio(&self) -> Option<f64> {
        let ours = self.rows.iter().find(|row| row.engine == OURS)?.measured.rate();
        let peers = self.rows.iter().filter(|row| row.engine != OURS).map(|row| row.measured.rate());
        peers.reduce(f64::max).map(|best| ours / best.max(1e-9))
    }

    fn title(&self) -> String {
        let first = self.rows[0];
        let ratio = self.ratio().map(|ratio| format!(": {OURS} at {ratio:.2} of the best peer"));
        let (phase, times) = (first.measured.phase.name(), first.times);
        format!("{phase}, {times} times the memory{}", ratio.unwrap_or_default())
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "  {:<14} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "engine",
            "rows/s",
            "last/first",
            "p50 us",
            "p90 us",
            "p99 us",
            "p99.9 us",
            "CPU us",
            "read/B",
            "written/B"
        );
        for row in &self.rows {
            let m = &row.measured;
            let change = m.last_over_first().map_or_else(|| "-".to_owned(), |change| format!("{change:.2}"));
            let _ = writeln!(
                text,
                "  {:<14} {:>10.0} {change:>10} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.2} {:>9.2} {:>9.2}",
                row.engine,
                m.rate(),
                m.p50,
                m.p90,
                m.p99,
                m.p999,
                m.cpu_us_per_row,
                m.read_per_byte,
                m.written_per_byte
            );
        }
        text
    }

    /// Returns the chart of the rates as an SVG document. The last, incomplete second is left out.
    fn chart(&self) -> String {
        let curve = |row: &&Row| {
            let whole = row.measured.per_second.len().saturating_sub(1);
            let seconds = row.measured.per_second[..whole].iter().zip(1_u32..);
            (row.engine.clone(), seconds.map(|(&rows, at)| (f64::from(at), rows as f64)).collect())
        };
        plot::curves("rows per second", "second", self.rows.iter().map(curve).collect())
    }
}

/// Groups the rows by phase and size. The cells in which Azekura is slowest come first, and in each cell the
/// fastest engine.
fn compared(rows: &[Row]) -> Vec<Compared<'_>> {
    let mut cells: BTreeMap<(Phase, u64), Compared<'_>> = BTreeMap::new();
    for row in rows {
        // The bits of positive floating-point numbers are in the order of the numbers.
        let key = (row.measured.phase, row.times.to_bits());
        cells.entry(key).or_insert_with(|| Compared { rows: Vec::new() }).rows.push(row);
    }
    let mut cells: Vec<Compared<'_>> = cells.into_values().collect();
    // Cells without a peer come last. The sort is stable, so cells with equal ratios are ordered by phase and
    // size.
    cells.sort_by(|a, b| a.ratio().unwrap_or(f64::MAX).total_cmp(&b.ratio().unwrap_or(f64::MAX)));
    for cell in &mut cells {
        cell.rows.sort_by(|a, b| b.measured.rate().total_cmp(&a.measured.rate()));
    }
    cells
}

/// Formats the rows.
pub(super) fn render(rows: &[Row]) -> String {
    compared(rows).iter().map(|cell| format!("{}\n{}\n", cell.title(), cell.table())).collect()
}

/// Returns a page with the tables and the charts of the rates.
pub(super) fn html(rows: &[Row]) -> String {
    let section = |cell: &Compared<'_>| {
        let (title, table) = (plot::escape(&cell.title()), plot::escape(&cell.table()));
        format!("<h2>{title}</h2>\n{}<pre>{table}</pre>\n", cell.chart())
    };
    let body: String = compared(rows).iter().map(section).collect();
    plot::document("Data larger than the memory", &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beyond::Measured;

    fn row(engine: &str, phase: Phase, rows: u64) -> Row {
        let measured = Measured {
            phase,
            rows,
            seconds: 2.0,
            per_second: vec![rows / 2; 2],
            p50: 1.0,
            p90: 2.0,
            p99: 3.0,
            p999: 4.0,
            cpu_us_per_row: 5.0,
            read_per_byte: 6.0,
            written_per_byte: 7.0,
        };
        Row { engine: engine.to_owned(), times: 2.0, measured }
    }

    #[test]
    fn the_cell_that_we_lose_most_comes_first() {
        let rows = [
            row(OURS, Phase::GrowRandom, 100),
            row("peer", Phase::GrowRandom, 50),
            row(OURS, Phase::Scan, 10),
            row("peer", Phase::Scan, 40),
            row("other", Phase::Scan, 20),
            row(OURS, Phase::Mixed, 1),
        ];
        let text = render(&rows);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(at("full scans, 2 times the memory: azekura at 0.25") < at("grow, random keys"));
        assert!(at("azekura at 2.00 of the best peer") < at("50/50"));
        assert!(at("\n  peer ") < at("\n  other "), "the fastest first");
    }

    #[test]
    fn the_page_has_a_chart_of_whole_seconds_for_each_cell() {
        let mut rows =
            [row(OURS, Phase::Scan, 100), row("peer", Phase::Scan, 50), row(OURS, Phase::Mixed, 1)];
        rows[0].measured.per_second = vec![10, 20, 30, 5];
        let page = html(&rows);
        assert_eq!((page.matches("<svg").count(), page.matches("<polyline").count()), (2, 3));
        assert_eq!(page.matches("<circle").count(), 3 + 1 + 1, "the last second is incomplete");
    }

    #[test]
    fn the_change_of_the_rate_is_that_of_whole_seconds() {
        let mut measured = row(OURS, Phase::GrowRandom, 0).measured;
        assert_eq!(measured.last_over_first(), None);
        measured.per_second = vec![100, 80, 60, 50, 3];
        assert_eq!(measured.last_over_first(), Some(0.5));
    }
}
