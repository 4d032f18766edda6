//! `change-key`: replaces the key of an encrypted store.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::arguments::StoreArguments;
use crate::{Outcome, UsageError, store};

const EXAMPLES: &str = "\
Examples:
  azekura change-key my.db --key-file old.key --new-key-file new.key
  azekura change-key my.db --key-file <(kms get 1) --new-key-file <(kms get 2) \\
    --new-key-id 2

Later commands need the new key. The pages stay as they are: a random data key
encrypts them, and only the encryption of that key changes. To replace the data
key, too, run `azekura compact` after this command. A crash leaves a store that
opens with the old key or with the new one: repeat the command. Messages show
the id of the key, and programs get the key with this id. Backups that were
made before need the old key: keep that key as long as you keep the backups. A
restore takes the key of the backup, also for its bases and for the log archive.
If the store has a log archive, name it by --archive: the command may have to
recover the store.";

/// Replace the key of an encrypted store
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChangeKey {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// File with the new key: 32 bytes, or 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    new_key_file: PathBuf,

    /// Id of the new key, stored in clear: programs with a key source get the key with this id
    #[arg(long, value_name = "ID")]
    new_key_id: Option<String>,
}

impl ChangeKey {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        if store.key_file.is_none() {
            return Err(UsageError("name the present key of the store by --key-file".into()).into());
        }
        let key = store::read_named_key(&self.new_key_file, self.new_key_id.as_deref())?;
        let db = store.open_existing(&self.path)?;
        db.change_encryption_key(key)?;
        db.close()?;
        writeln!(out, "{} needs the key in {} now", self.path.display(), self.new_key_file.display())?;
        Ok(Outcome::Well)
    }
}
