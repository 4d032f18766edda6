//! `tables`: prints the tables of a store.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::Outcome;
use crate::arguments::StoreArguments;
use crate::format::escape::escaped;
use crate::store::existing_table;

const EXAMPLES: &str = "\
Examples:
  azekura tables my.db             name<TAB>key type<TAB>value type
  azekura tables my.db --count     the number of rows, too; reads all rows";

/// Print the names of the tables and the types of their rows
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tables {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// Print the number of rows too; reads every table, without large values
    #[arg(long)]
    count: bool,
}

impl Tables {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let db = store.open_to_read(&self.path)?;
        let tx = db.begin()?;
        for table in db.tables()? {
            let texts = [&table.name, &table.types.key, &table.types.value];
            let [name, key, value] = texts.map(|text| escaped(text.as_bytes()));
            write!(out, "{name}\t{key}\t{value}")?;
            if self.count {
                let count = existing_table(&db, &tx, &table.name)?.len()?; // reads no large value
                write!(out, "\t{count}")?;
            }
            writeln!(out)?;
        }
        Ok(Outcome::Well)
    }
}
