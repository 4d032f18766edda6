//! `dump`: prints a whole table in the form that `load` reads.

use std::io::Write;

use anyhow::Result;
use clap::Args;

use super::Scan;
use crate::Outcome;
use crate::arguments::{StoreArguments, TableArguments};

const EXAMPLES: &str = "\
Examples:
  azekura dump my.db words > words.tsv
  azekura load copy.db words words.tsv         the same rows again
  azekura dump my.db words | gzip > words.tsv.gz

Prints key<TAB>value lines in byte order of the keys. In them \\t \\n \\r \\\\
stand for tab, newline, carriage return, backslash, and \\xHH for other
control characters and bytes that are not UTF-8. `load` restores every
byte. The types of keys and values are not in the dump: `azekura tables`
prints them, and `load --types` sets them.";

/// Print a whole table in the form that `load` reads
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Dump {
    #[command(flatten)]
    table: TableArguments,

    /// Print bytes unchanged, without escapes (`load` cannot read every table back then)
    #[arg(long)]
    raw: bool,
}

impl Dump {
    pub(crate) fn run(&self, store: &StoreArguments, out: &mut dyn Write) -> Result<Outcome> {
        Scan::whole(self.table.clone(), self.raw).run(store, out)
    }
}
