//! `compact`: copies a store into a new one without free space.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::arguments::StoreArguments;
use crate::{Outcome, progress, show, store};

const EXAMPLES: &str = "\
Examples:
  azekura compact my.db small.db
  azekura compact my.db small.db && mv my.db old.db && mv small.db my.db
  azekura compact my.db small.db --page-size 32K  for values of 3 to 8 KiB
  azekura compact my.db small.db --json | jq .bytes_after
  azekura compact plain.db secret.db --new-key-file secret.key

Copies all tables into a new store with full pages and no free ones, and
prints the sizes of both. DB is not changed. NEW is a new or empty
directory. A copy that failed or was killed leaves a directory that no command
opens: run it again. It removes the files of the unfinished copy, and says so.
`azekura check NEW` verifies the copy. NEW is another store: its first backup
must be full, and it needs a new directory for an archive.

A value of a row of more than five sixteenths of a page (2.5 KB of 8 KiB) has
pages of its own. --page-size sets the page size of the new store.

An encrypted copy has the key of DB, or that of --new-key-file, and a new data
key: the data key of DB opens no part of it.";

/// Copy a store into a new one without free space
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Compact {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// New directory for the copy
    #[arg(value_name = "NEW")]
    to: PathBuf,

    /// File with the key of the new store [default: that of DB]
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,

    /// Id of the new key, stored in clear: programs with a key source get the key with this id
    #[arg(long, value_name = "ID", requires = "new_key_file")]
    new_key_id: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Compact {
    pub(crate) fn run(&self, settings: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let db = settings.open_to_read(&self.path)?;
        let bar = progress::bytes(None);
        let mut compaction = db.compaction().progress(|seen| progress::show_copied(&bar, seen));
        if let Some(bytes) = settings.page_size {
            compaction = compaction.page_size(bytes);
        }
        if let Some(file) = &self.new_key_file {
            let key = store::read_named_key(file, self.new_key_id.as_deref())?;
            compaction = compaction.encryption_key(key);
        }
        let report = compaction.into_directory(&self.to)?;
        bar.finish_and_clear();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
            return Ok(Outcome::Well);
        }
        let (tables, rows) = (show::counted(report.tables, "table"), show::counted(report.rows, "row"));
        let (before, after) = (show::bytes(report.bytes_before), show::bytes(report.bytes_after));
        let removed = show::removed_unfinished(report.removed_unfinished);
        writeln!(out, "{tables}, {rows}: {before} became {after}{removed}")?;
        Ok(Outcome::Well)
    }
}
