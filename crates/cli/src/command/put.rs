//! `put`: stores one row.

use std::ffi::OsString;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::arguments::{StoreArguments, TableArguments, argument_bytes};
use crate::format::MAX_VALUE_BYTES;
use crate::store::{Bytes, row_types};
use crate::{Outcome, stdin};

const EXAMPLES: &str = "\
Examples:
  azekura put my.db words hello 'a greeting'
  azekura put my.db images logo < logo.png      the value is all of stdin
  azekura put my.db words -e 'tab\\there' v      with the escapes of `dump`

Creates the store and the table if they do not exist. Durable when it returns.
In a table that a program created with other types than bytes, key and value
are encodings of these types, as `scan` prints them.";

/// Store a value at a key; replaces an existing value
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Put {
    #[command(flatten)]
    table: TableArguments,

    /// The key
    #[arg(allow_negative_numbers = true)]
    key: OsString,

    /// The value; read from stdin if omitted or `-`
    #[arg(allow_negative_numbers = true)]
    value: Option<OsString>,

    /// Key and value are written with the escapes of `dump`: \t \n \r \\ \xHH (a value from stdin is not)
    #[arg(short, long)]
    escaped: bool,
}

impl Put {
    pub(crate) fn run(&self, store: &StoreArguments) -> Result<Outcome> {
        let key = argument_bytes(&self.key, self.escaped)?;
        let value = match &self.value {
            Some(value) if value != "-" => argument_bytes(value, self.escaped)?,
            _ => read_value(stdin()?, MAX_VALUE_BYTES)?,
        };
        let db = store.open_or_create(&self.table.path)?;
        row_types(&db, &self.table.table)?.check(&key, &value)?;
        let table = Bytes::raw(&*self.table.table);
        db.transact(|tx| tx.table(&table)?.insert(&key, &value))?;
        db.close()?;
        Ok(Outcome::Well)
    }
}

/// Reads a value of at most `most` bytes.
fn read_value(source: impl Read, most: usize) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    source.take(most as u64 + 1).read_to_end(&mut value).context("cannot read the value from stdin")?;
    ensure!(value.len() <= most, "stdin has more than {most} bytes; this is the largest size of a value");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn stdin_without_an_end_is_not_read_into_memory_whole() {
        assert_eq!(read_value(&b"12345"[..], 5).unwrap(), b"12345");
        let error = read_value(io::repeat(0).take(1 << 30), 5).unwrap_err().to_string();
        assert!(error.starts_with("stdin has more than 5 bytes"), "{error}");
    }
}
