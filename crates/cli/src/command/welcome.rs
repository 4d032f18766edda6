//! `azekura` without a command: prints the first steps.

use std::io::Write;

use anyhow::Result;

use crate::Outcome;

const WELCOME: &str = "\
Azekura: an ordered, transactional key-value store that keeps every acknowledged write.

Try, in this order:
  azekura demo                         bank transfers on all cores; kills and audits the store
  azekura load my.db words FILE.tsv    key<TAB>value lines into table `words` (CSV and JSON lines too)
  azekura scan my.db words --limit 10  the first ten rows, in key order

`azekura --help` lists all commands, `azekura COMMAND --help` shows examples.
";

pub(crate) fn run(out: &mut dyn Write) -> Result<Outcome> {
    out.write_all(WELCOME.as_bytes())?;
    Ok(Outcome::Well)
}
