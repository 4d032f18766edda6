//! `backup` and `restore`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use azekura::{BackupProgress, Restore as NewStore};
use clap::Args;
use indicatif::ProgressBar;

use crate::arguments::{StoreArguments, size};
use crate::{Outcome, UsageError, progress, show};

/// Stands for stdin or stdout.
const STREAM: &str = "-";

const BACKUP_EXAMPLES: &str = "\
Examples:
  azekura backup my.db /mnt/copies/monday
  azekura backup my.db /mnt/copies/monday --verify --rate 50M
  azekura backup my.db - | zstd > monday.zst      to a stream
  azekura restore /mnt/copies/monday copy.db      a store again

Copies all tables as they are at one moment into the directory DEST, which is
created. A backup that was killed is refused by `restore`; the next backup to
the same directory replaces it. A store that another process has open for
writing is backed up by that process: a program calls `Database::backup`.";

/// Copy a whole store into a backup
#[derive(Args, Debug)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct Backup {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// New directory for the backup, or `-` for stdout
    #[arg(value_name = "DEST")]
    to: PathBuf,

    /// Read the backup again when it is complete, and check each byte
    #[arg(long)]
    verify: bool,

    /// Write at most this much per second, such as 50M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    rate: Option<u64>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let is_stream = self.to == Path::new(STREAM);
        if is_stream && (self.verify || self.json) {
            return Err(UsageError("a backup to stdout takes neither --verify nor --json".into()).into());
        }
        let db = store.open_to_read(&self.path)?;
        let bar = progress::bytes(None);
        let mut backup = db.backup().progress(|seen| show_progress(&bar, seen));
        if let Some(rate) = self.rate {
            backup = backup.rate_limit(rate);
        }
        if is_stream {
            backup.to_writer(out)?;
            bar.finish_and_clear();
            return Ok(Outcome::Well);
        }
        let mut report = backup.to_directory(&self.to)?;
        if self.verify {
            report = NewStore::new().progress(|seen| show_progress(&bar, seen)).verify_directory(&self.to)?;
        }
        bar.finish_and_clear();
        if self.json {
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
        } else {
            let verified = if self.verify { ", verified" } else { "" };
            writeln!(out, "{}{verified}", described(report.tables, report.rows, report.bytes))?;
        }
        Ok(Outcome::Well)
    }
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  azekura restore /mnt/copies/monday copy.db
  azekura restore /mnt/copies/monday copy.db --verify
  zstd -d < monday.zst | azekura restore - copy.db
  azekura restore /mnt/copies/monday --dry-run    only check the backup

Makes a new store in DB, a new or empty directory. A restore that failed or
was killed leaves a directory that no command opens: delete it.
--verify walks the new store as `check` does and compares the row count and a
digest of each table with the backup.";

/// Make a new store from a backup
#[derive(Args, Debug)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct Restore {
    /// Directory of the backup, or `-` for stdin
    #[arg(value_name = "SRC")]
    from: PathBuf,

    /// New directory for the store
    #[arg(value_name = "DB", required_unless_present = "dry_run")]
    path: Option<PathBuf>,

    /// Check the new store and compare it with the backup
    #[arg(long)]
    verify: bool,

    /// Check each byte of the backup and make no store
    #[arg(long, conflicts_with_all = ["path", "verify"])]
    dry_run: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let bar = progress::bytes(None);
        let is_stream = self.from == Path::new(STREAM);
        let mut restore = NewStore::new()
            .builder(store.builder())
            .verify(self.verify)
            .progress(|seen| show_progress(&bar, seen));
        if let Some(bytes) = store.page_size {
            restore = restore.page_size(bytes);
        }
        let (report, json) = match &self.path {
            Some(path) => {
                let report = if is_stream {
                    restore.from_reader(io::stdin().lock(), path)?
                } else {
                    restore.from_directory(&self.from, path)?
                };
                let json = serde_json::to_string(&report)?;
                (report.backup, json)
            }
            None => {
                let report = if is_stream {
                    restore.verify_reader(io::stdin().lock())?
                } else {
                    restore.verify_directory(&self.from)?
                };
                let json = serde_json::to_string(&report)?;
                (report, json)
            }
        };
        bar.finish_and_clear();
        if self.json {
            writeln!(out, "{json}")?;
        } else {
            let verified = if self.verify || self.dry_run { ", verified" } else { "" };
            writeln!(out, "{}{verified}", described(report.tables, report.rows, report.bytes))?;
        }
        Ok(Outcome::Well)
    }
}

fn show_progress(bar: &ProgressBar, seen: &BackupProgress) {
    bar.set_position(seen.bytes);
    bar.set_message(format!("table {}, {}", seen.table, show::counted(seen.rows, "row")));
}

fn described(tables: u64, rows: u64, bytes: u64) -> String {
    format!("{}, {}, {}", show::counted(tables, "table"), show::counted(rows, "row"), show::bytes(bytes))
}
