//! `get`: prints one value.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, bail};
use clap::Args;

use crate::Outcome;
use crate::arguments::{StoreArguments, TableArguments, argument_bytes};
use crate::format::escape::escaped;
use crate::store::existing_table;

const EXAMPLES: &str = "\
Examples:
  azekura get my.db words hello              print the value of key `hello`
  azekura get my.db words -e 'two\\nlines'    a key written with the escapes of `dump`
  azekura get my.db images logo -n > logo.png

Exit code 1 if there is no such key.";

/// Print the value of a key unchanged, and a newline
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Get {
    #[command(flatten)]
    table: TableArguments,

    /// The key
    #[arg(allow_negative_numbers = true)]
    key: OsString,

    /// The key is written with the escapes of `dump`: \t \n \r \\ \xHH
    #[arg(short, long)]
    escaped: bool,

    /// Omit the newline after the value
    #[arg(short, long)]
    no_newline: bool,
}

impl Get {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let key = argument_bytes(&self.key, self.escaped)?;
        let db = store.open_to_read(&self.table.path)?;
        let tx = db.begin()?;
        let Some(value) = existing_table(&db, &tx, &self.table.table)?.get(&key)? else {
            bail!("no key \"{}\" in table {:?}", escaped(&key), self.table.table);
        };
        out.write_all(&value)?;
        if !self.no_newline {
            out.write_all(b"\n")?;
        }
        Ok(Outcome::Well)
    }
}
