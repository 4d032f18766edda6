//! The goals as a table: limit, measured value, remaining difference.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Status of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The goal was measured here and is met.
    Reached,
    /// The goal was measured here and is missed.
    Missed,
    /// The goal cannot be measured on this machine.
    NotHere,
}

/// One goal, or one part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Number of the goal, M1 to M10, or the name of the tier.
    pub goal: String,
    /// Text of the goal.
    pub wanted: String,
    /// The measured value.
    pub ours: String,
    /// Value of the alternative, measured or quoted.
    pub rival: String,
    /// Status of the goal.
    pub standing: Standing,
    /// The remaining difference, or the reason that the goal was not measured.
    pub note: String,
}

/// All goals of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Sizes, mechanism and machine, as text.
    pub settings: String,
    /// Rows in the order of the goals.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns the goals as a table in Markdown, for documents.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut out = String::from("| goal | wanted | here | beside | reached |\n|---|---|---|---|---|\n");
        for Row { goal, wanted, ours, rival, standing, note } in &self.rows {
            let reached = match standing {
                Standing::Reached => "yes".to_owned(),
                Standing::Missed => format!("no: {note}"),
                Standing::NotHere => format!("not measured: {note}"),
            };
            let cells = [goal, wanted, ours, rival, &reached].map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }

    /// Returns the goals as text, one after another.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("Far memory: goals. {}\n", self.settings);
        for Row { goal, wanted, ours, rival, standing, note } in &self.rows {
            let standing = match standing {
                Standing::Reached => "reached",
                Standing::Missed => "NOT REACHED",
                Standing::NotHere => "not measured here",
            };
            let _ = writeln!(out, "\n{goal:<4} {standing}: {wanted}");
            for (label, text) in [("ours", ours), ("beside", rival), ("note", note)] {
                if !text.is_empty() {
                    let _ = writeln!(out, "     {label:<7} {text}");
                }
            }
        }
        let count = |standing| self.rows.iter().filter(|row| row.standing == standing).count();
        let _ = writeln!(
            out,
            "\n{} reached, {} not reached, {} not measured here",
            count(Standing::Reached),
            count(Standing::Missed),
            count(Standing::NotHere)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    #[test]
    fn each_result_is_reported_and_counted() {
        let row = |goal: &str, standing, note: &str| Row {
            goal: goal.into(),
            wanted: "fast".into(),
            ours: "5 MB/s".into(),
            rival: String::new(),
            standing,
            note: note.into(),
        };
        let rows = vec![
            row("M1", Standing::Reached, ""),
            row("M2", Standing::Missed, "one CPU"),
            row("M7", Standing::NotHere, "not installed"),
        ];
        let report = Report { settings: "small".into(), rows };
        let text = report.to_text();
        for expected in
            ["M2   NOT REACHED: fast", "note    one CPU", "1 reached, 1 not reached, 1 not measured"]
        {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
        let table = report.to_markdown();
        assert!(table.contains("| M2 | fast | 5 MB/s |  | no: one CPU |"), "{table}");
        assert!(table.lines().all(|row| row.matches('|').count() == 6), "{table}");
    }
}
