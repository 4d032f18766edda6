//! Reports of labs that look for forbidden outcomes.

use serde::Serialize;

/// A report that passes or fails. The command ends with exit code 1 if it fails.
pub trait Judged: Serialize {
    /// Returns whether the lab passed.
    fn is_well(&self) -> bool;

    /// Returns the results as a table, followed by each failure.
    fn to_text(&self) -> String;

    /// Returns the report as one JSON object.
    fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}
