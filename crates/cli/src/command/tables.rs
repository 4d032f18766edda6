//! `tables`: what there is in a store.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::Outcome;
use crate::arguments::StoreArguments;
use crate::format::tsv::Writer;
use crate::store::existing_table;

const EXAMPLES: &str = "\
Examples:
  azekura tables my.db
  azekura tables my.db --count     name<TAB>rows; reads every table through";

/// Print the names of the tables
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tables {
    /// Directory of the store
    #[arg(value_name = "DB")]
    path: PathBuf,

    /// Print the number of rows too
    #[arg(long)]
    count: bool,
}

impl Tables {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        let db = store.open_to_read(&self.path)?;
        let tx = db.begin()?;
        let mut writer = Writer::new(out, false, !self.count);
        for name in db.table_names()? {
            let mut rows = 0u64;
            if self.count {
                for row in existing_table(&db, &tx, &name)?.iter() {
                    row?;
                    rows += 1;
                }
            }
            writer.write(name.as_bytes(), rows.to_string().as_bytes())?;
        }
        Ok(Outcome::Well)
    }
}
