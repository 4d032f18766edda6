//! `backup` and `restore`: copy a store into a backup, and make a store from one.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use azekura::{CommitTime, Restore as NewStore};
use clap::Args;

use crate::arguments::{StoreArguments, size};
use crate::backup_location::{self, BackupLocation};
use crate::objects::{ArchiveObjects, BackupObject};
use crate::scratch::Scratch;
use crate::store::is_object;
use crate::{Outcome, UsageError, progress, show, stdin, time};

const BACKUP_EXAMPLES: &str = "\
Examples:
  azekura backup my.db /mnt/copies/monday
  azekura backup my.db /mnt/copies/monday --verify --rate 50M
  azekura backup my.db - | zstd > monday.zst      to a stream
  azekura backup my.db tuesday --incremental monday
  azekura backup my.db monday --archive /mnt/archive
  azekura backup my.db s3://bucket/monday         to an object store
  azekura restore /mnt/copies/monday copy.db      a store again

Copies all tables as they are at one moment into the directory DEST, which is
created. With --incremental it holds only what has changed since an earlier
backup of the store, which is then needed to restore it. A store with a log
archive is backed up with --archive: then a restore can go on from the backup
to a later time. A backup that was killed is refused by `restore`; the next
backup to the same directory replaces it. A store that another process has open
for writing is backed up by that process: a program calls `Database::backup`.

s3://BUCKET/PREFIX needs a build with the feature object-store. Credentials
come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the region from
AWS_REGION, and AWS_ENDPOINT_URL names another server, such as MinIO. The
object appears when it is complete; a killed backup leaves none.";

/// Copy a whole store into a backup
#[derive(Args, Debug)]
#[command(after_help = BACKUP_EXAMPLES)]
pub(crate) struct Backup {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// New directory for the backup, a URL (file:// or s3://), or `-` for stdout
    #[arg(value_name = "DEST", value_parser = backup_location::parser())]
    to: BackupLocation,

    /// Copy only what has changed since this backup, which may be incremental, too
    #[arg(long, value_name = "BASE", value_parser = backup_location::parser())]
    incremental: Option<BackupLocation>,

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
        let is_stream = matches!(self.to, BackupLocation::Stream);
        if is_stream && (self.verify || self.json) {
            return Err(UsageError("a backup to stdout takes neither --verify nor --json".into()).into());
        }
        let base = self.incremental.as_ref().map(Base::open).transpose()?;
        // With an archive, opening the store first writes all its commits to the archive; then the backup has
        // a commit time.
        let db = match store.archive {
            Some(_) => store.open_existing(&self.path)?,
            None => store.open_to_read(&self.path)?,
        };
        let bar = progress::bytes(None);
        let mut backup = db.backup().progress(|seen| progress::show_copied(&bar, seen));
        if let Some(rate) = self.rate {
            backup = backup.rate_limit(rate);
        }
        backup = match base {
            Some(Base::Directory(path)) => backup.since(path),
            Some(Base::Object(object)) => backup.since_reader(object.name(), object.reader()?),
            None => backup,
        };
        let settings = store.settings()?;
        let check = || {
            let check = NewStore::new().builder(settings.clone());
            check.progress(|seen| progress::show_copied(&bar, seen))
        };
        let report = match &self.to {
            BackupLocation::Stream => {
                // As text only: the end of a reader is an error here, unlike for rows (`is_closed_stdout`).
                backup.to_writer(out).map_err(|error| anyhow!("{:#}", anyhow::Error::new(error)))?;
                bar.finish_and_clear();
                return Ok(Outcome::Well);
            }
            BackupLocation::Directory(path) => {
                let report = backup.to_directory(path)?;
                if self.verify { check().verify_directory(path)? } else { report }
            }
            BackupLocation::Object(url) => {
                let object = BackupObject::from_url(url)?;
                let report = object.write(backup)?;
                if self.verify { object.verify(check())? } else { report }
            }
        };
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

/// A base: a backup that an incremental backup needs.
enum Base<'a> {
    Directory(&'a PathBuf),
    Object(BackupObject),
}

impl<'a> Base<'a> {
    fn open(location: &'a BackupLocation) -> Result<Self> {
        match location {
            BackupLocation::Directory(path) => Ok(Self::Directory(path)),
            BackupLocation::Object(url) => Ok(Self::Object(BackupObject::from_url(url)?)),
            BackupLocation::Stream => {
                Err(UsageError("a base cannot be a stream; name its directory or URL".into()).into())
            }
        }
    }
}

const RESTORE_EXAMPLES: &str = "\
Examples:
  azekura restore /mnt/copies/monday copy.db
  azekura restore /mnt/copies/monday copy.db --verify
  zstd -d < monday.zst | azekura restore - copy.db
  azekura restore /mnt/copies/monday --dry-run    only check the backup
  azekura restore tuesday copy.db --base monday   an incremental backup
  azekura restore monday copy.db --archive /mnt/archive --to-time 2026-11-26T09:30:00Z
  azekura restore s3://bucket/monday copy.db      see `azekura backup --help`

Makes a new store in DB, a new or empty directory. A restore that failed or
was killed leaves a directory that no command opens: run the restore again. It
removes the files of the unfinished one, and says so.
An incremental backup needs each backup of its chain by --base, in any order.
With --archive the restore adds the transactions of the log archive to those
of the backup: all of them, or those up to --to-time. The new store has no
archive; open it with another one. An archive at s3://BUCKET/PREFIX, where
`azekura archive` copies it, is first fetched into a directory beside DB.
--verify walks the new store as `check` does and compares the row count and a
digest of each table with the backup.";

/// Make a new store from a backup
#[derive(Args, Debug)]
#[command(after_help = RESTORE_EXAMPLES)]
pub(crate) struct Restore {
    /// Directory of the backup, a URL (file:// or s3://), or `-` for stdin
    #[arg(value_name = "SRC", value_parser = backup_location::parser())]
    from: BackupLocation,

    /// New directory for the store
    #[arg(value_name = "DB", required_unless_present = "dry_run")]
    path: Option<PathBuf>,

    /// A base: the backup from which an incremental one was made; once for each backup of a chain
    #[arg(long, value_name = "BACKUP", value_parser = backup_location::parser())]
    base: Vec<BackupLocation>,

    /// Restore exactly the commits of the archive up to this time (UTC, or
    /// microseconds since 1970) [default: all]
    #[arg(long, value_name = "TIME", value_parser = time::parse, requires = "archive")]
    to_time: Option<CommitTime>,

    /// Check the new store and compare it with the backup
    #[arg(long)]
    verify: bool,

    /// Check each byte of the backup and make no store
    #[arg(long, conflicts_with_all = ["path", "verify", "base", "to_time", "archive"])]
    dry_run: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Restore {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let bar = progress::bytes(None);
        let mut restore = NewStore::new()
            .builder(store.settings_of_restore()?)
            .verify(self.verify)
            .progress(|seen| progress::show_copied(&bar, seen));
        for base in &self.base {
            restore = match Base::open(base)? {
                Base::Directory(path) => restore.base(path),
                Base::Object(object) => restore.base_reader(object.name(), object.reader()?),
            };
        }
        let fetched;
        match &store.archive {
            Some(url) if is_object(url) => {
                let beside = self.path.as_deref().and_then(Path::parent).filter(|dir| dir.is_dir());
                fetched = Scratch::new_in(".azekura-archive-", beside.unwrap_or(Path::new(".")))?;
                ArchiveObjects::from_url(&url.to_string_lossy())?.fetch(fetched.path())?;
                restore = restore.archive(fetched.path());
            }
            Some(directory) => restore = restore.archive(directory),
            None => {}
        }
        if let Some(time) = self.to_time {
            restore = restore.to_time(time);
        }
        if let Some(bytes) = store.page_size {
            restore = restore.page_size(bytes);
        }
        let mut replayed = (0, None);
        let mut removed_unfinished = false;
        let (report, json) = match &self.path {
            Some(path) => {
                let report = match &self.from {
                    BackupLocation::Stream => restore.from_reader(stdin()?, path)?,
                    BackupLocation::Directory(from) => restore.from_directory(from, path)?,
                    BackupLocation::Object(url) => BackupObject::from_url(url)?.restore(restore, path)?,
                };
                let json = serde_json::to_string(&report)?;
                replayed = (report.replayed_transactions, report.commit_time);
                removed_unfinished = report.removed_unfinished;
                (report.backup, json)
            }
            None => {
                let report = match &self.from {
                    BackupLocation::Stream => restore.verify_reader(stdin()?)?,
                    BackupLocation::Directory(from) => restore.verify_directory(from)?,
                    BackupLocation::Object(url) => BackupObject::from_url(url)?.verify(restore)?,
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
            let described = described(report.tables, report.rows, report.bytes);
            let archived = match replayed {
                (count, Some(time)) if store.archive.is_some() => {
                    format!("; {} from the archive, up to {time}", show::counted(count, "transaction"))
                }
                _ => String::new(),
            };
            writeln!(out, "{described}{verified}{archived}{}", show::removed_unfinished(removed_unfinished))?;
        }
        Ok(Outcome::Well)
    }
}

fn described(tables: u64, rows: u64, bytes: u64) -> String {
    format!("{}, {}, {}", show::counted(tables, "table"), show::counted(rows, "row"), show::bytes(bytes))
}
