//! `scan`: prints the rows of a range.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use anyhow::{Result, anyhow};
use azekura::SnapshotTable;
use clap::Args;

use crate::Outcome;
use crate::arguments::{StoreArguments, TableArguments, argument_bytes};
use crate::format::tsv::Writer;
use crate::store::existing_in;

const EXAMPLES: &str = "\
Examples:
  azekura scan my.db words --limit 10
  azekura scan my.db words --from b --to d       keys from `b` up to, not including, `d`
  azekura scan my.db words --prefix lib --keys-only
  azekura scan my.db words --reverse --limit 1   the last row

Prints key<TAB>value lines in byte order of the keys. In them \\t \\n \\r \\\\
stand for tab, newline, carriage return, backslash, and \\xHH for other
control characters and bytes that are not UTF-8.
--from, --to and --prefix may be combined. No rows: no lines, exit code 0.";

/// Print the rows of a range in key order
#[derive(Args, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Scan {
    #[command(flatten)]
    table: TableArguments,

    /// Only keys at or after this one
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,

    /// Only keys before this one
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,

    /// Only keys that begin with this text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prefix: Option<OsString>,

    /// At most this many rows
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// In descending key order
    #[arg(long)]
    reverse: bool,

    /// Print keys without values
    #[arg(long)]
    keys_only: bool,

    /// Print bytes unchanged, without escapes
    #[arg(long)]
    raw: bool,

    /// --from, --to and --prefix are written with the escapes that scan prints
    #[arg(short, long)]
    escaped: bool,
}

impl Scan {
    /// Returns the scan of a whole table.
    pub(super) fn whole(table: TableArguments, raw: bool) -> Self {
        Self { table, raw, ..Self::default() }
    }

    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let bounds = self.bounds()?;
        let db = store.open_to_read(&self.table.path)?;
        let snapshot = db.snapshot()?;
        let table = existing_in(&db, &snapshot, &self.table.table)?;
        self.print(&table, bounds, out)?;
        Ok(Outcome::Well)
    }

    fn bounds(&self) -> Result<Bounds> {
        let key = |argument: &Option<OsString>| {
            argument.as_ref().map(|argument| argument_bytes(argument, self.escaped)).transpose()
        };
        let prefix = key(&self.prefix)?.unwrap_or_default();
        Ok(bounds(key(&self.from)?, key(&self.to)?, &prefix))
    }

    fn print(
        &self,
        table: &SnapshotTable<'_, [u8], [u8]>,
        bounds: Bounds,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut writer = Writer::new(out, self.raw, self.keys_only);
        let mut rows = table.range(bounds);
        for _ in 0..self.limit.unwrap_or(u64::MAX) {
            let next = if self.reverse { rows.next_back() } else { rows.next() };
            let Some(row) = next else { break };
            let (key, value) = row.map_err(|error| anyhow!(error).context("the scan stopped here"))?;
            writer.write(&key, &value)?;
        }
        Ok(())
    }
}

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// Returns the bounds of the keys in `from..to` that begin with `prefix`.
fn bounds(from: Option<Vec<u8>>, to: Option<Vec<u8>>, prefix: &[u8]) -> Bounds {
    let lower = from.unwrap_or_default().max(prefix.to_vec());
    let upper = match (to, after_prefix(prefix)) {
        (Some(to), Some(end)) => Some(to.min(end)),
        (to, end) => to.or(end),
    };
    (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded))
}

/// Returns the least key greater than all keys that begin with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ops::RangeBounds;

    proptest! {
        #[test]
        fn the_bounds_hold_just_the_keys_asked_for(
            key in proptest::collection::vec(0xfcu8.., 0..4),
            from in proptest::option::of(proptest::collection::vec(0xfcu8.., 0..4)),
            to in proptest::option::of(proptest::collection::vec(0xfcu8.., 0..4)),
            prefix in proptest::collection::vec(0xfcu8.., 0..3),
        ) {
            let asked = from.as_ref().is_none_or(|from| &key >= from)
                && to.as_ref().is_none_or(|to| &key < to)
                && key.starts_with(&prefix);
            prop_assert_eq!(bounds(from, to, &prefix).contains(&key), asked);
        }
    }
}
