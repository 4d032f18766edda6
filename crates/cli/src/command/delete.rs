//! `delete`: removes a row.

use std::ffi::OsString;

use anyhow::{Result, bail};
use azekura::Error;
use clap::Args;

use crate::Outcome;
use crate::arguments::{StoreArguments, TableArguments, argument_bytes};
use crate::format::escape::escaped;
use crate::store::{Bytes, existing_table};

const EXAMPLES: &str = "\
Examples:
  azekura delete my.db words hello
  azekura delete my.db words -e 'two\\nlines'   a key written with the escapes of `dump`

Durable when it returns. Exit code 1 if there is no such key.";

/// Remove a key and its value
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Delete {
    #[command(flatten)]
    table: TableArguments,

    /// The key
    #[arg(allow_negative_numbers = true)]
    key: OsString,

    /// The key is written with the escapes of `dump`: \t \n \r \\ \xHH
    #[arg(short, long)]
    escaped: bool,
}

impl Delete {
    pub(crate) fn run(&self, store: &StoreArguments) -> Result<Outcome> {
        let key = argument_bytes(&self.key, self.escaped)?;
        let db = store.open_existing(&self.table.path)?;
        let name = &self.table.table;
        existing_table(&db, &db.begin()?, name)?;
        let table = Bytes::raw(&**name);
        let removed = db.transact(|tx| Ok::<_, Error>(tx.table(&table)?.remove(&key)?.is_some()))?;
        db.close()?;
        if !removed {
            bail!("no key \"{}\" in table {name:?}", escaped(&key));
        }
        Ok(Outcome::Well)
    }
}
