//! `stats`: prints counters and sizes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::arguments::StoreArguments;
use crate::{Outcome, show};

const EXAMPLES: &str = "\
Examples:
  azekura stats my.db
  azekura stats my.db --json | jq .recovery

The counters are those of this opening of the store: its recovery and little
more. A program reads its own with `Database::stats`.";

/// Print sizes and counters of a store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stats {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Stats {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let db = store.open_to_read(&self.path)?;
        let stats = serde_json::to_value(db.stats())?;
        if self.json {
            writeln!(out, "{stats}")?;
            return Ok(Outcome::Well);
        }
        let mut lines = Vec::new();
        flatten(String::new(), &stats, &mut lines);
        let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in lines {
            writeln!(out, "{name:width$}  {value}")?;
        }
        Ok(Outcome::Well)
    }
}

/// Appends one line for each leaf of a JSON value, named by its path.
fn flatten(path: String, value: &Value, lines: &mut Vec<(String, String)>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(below(name), value, lines)),
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            items.iter().enumerate().for_each(|(at, item)| flatten(below(&at.to_string()), item, lines));
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| leaf(&path, item)).collect();
            lines.push((path, if items.is_empty() { "none".into() } else { items.join(" ") }));
        }
        value => {
            let text = leaf(&path, value);
            lines.push((path, text));
        }
    }
}

fn leaf(path: &str, value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if path.ends_with("bytes") => {
                format!("{} ({})", show::count(bytes), show::bytes(bytes))
            }
            Some(number) => show::count(number),
            None => number.as_f64().map_or_else(|| number.to_string(), |number| format!("{number:.3}")),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_gets_a_line_with_its_path() {
        let stats = serde_json::json!({
            "cache": {"hits": 1234, "capacity_bytes": 2048}, "log": [], "of": [{"a": 1.5}],
        });
        let mut lines = Vec::new();
        flatten(String::new(), &stats, &mut lines);
        let lines: Vec<String> = lines.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            lines,
            ["cache.capacity_bytes=2,048 (2.0 KiB)", "cache.hits=1,234", "log=none", "of.0.a=1.500"]
        );
    }
}
