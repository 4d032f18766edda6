//! The command `archive`.

use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::objects::ArchiveObjects;
use crate::{Outcome, progress, show};

const EXAMPLES: &str = "\
Examples:
  azekura archive /mnt/archive s3://backups/log
  azekura archive /mnt/archive s3://backups/log --follow
  azekura restore s3://backups/monday copy.db --archive s3://backups/log

Copies the files of the log archive that are new or have grown. The store may
be open. With --follow the command copies again each second until it is
interrupted, and repeats a request that fails. Credentials come from the
environment, as for backups.";

/// Copy the log archive of a store into an object store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Archive {
    /// Directory of the archive: the `--archive` of the store
    #[arg(value_name = "DIR")]
    from: PathBuf,

    /// Place of the copy: s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    to: String,

    /// Copy again each second until interrupted
    #[arg(long)]
    follow: bool,
}

/// Pause between copies: the store writes to its archive about as often.
const INTERVAL: Duration = Duration::from_secs(1);

impl Archive {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let mut objects = ArchiveObjects::from_url(&self.to)?;
        // A first copy that fails ends the command also with --follow: its arguments may be wrong.
        let copied = objects.push(&self.from)?;
        writeln!(out, "{} copied", show::counted(copied, "file"))?;
        if !self.follow {
            return Ok(Outcome::Well);
        }
        out.flush()?;
        loop {
            thread::sleep(INTERVAL);
            if let Err(error) = objects.push(&self.from) {
                progress::note(format_args!("azekura: {error}; trying again"));
            }
        }
    }
}
