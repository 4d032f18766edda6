//! Reports of labs that look for what must never happen.

use serde::Serialize;

/// A report that says whether everything went as it must; a run for which it did not ends with exit code 1.
pub trait Judged: Serialize {
    /// Returns whether the lab is passed.
    fn is_well(&self) -> bool;

    /// As a table, and each part that did not go well.
    fn to_text(&self) -> String;

    /// As one JSON object.
    fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}
