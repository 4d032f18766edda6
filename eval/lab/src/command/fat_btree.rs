//! `lab fat-btree`: the Fat-Btree compared with a single index and with full copies.

use std::io::Write;

use anyhow::Result;
use azekura_lab::lab::fat_btree::Lab;
use azekura_lab::{Json, Progress};
use clap::Args;

use super::{Forms, Output};
use azekura_cli::Outcome;

const EXAMPLES: &str = "\
Examples:
  azekura-lab fat-btree --quick
  azekura-lab fat-btree --html fat-btree.html
  azekura-lab fat-btree --pes 16 --caches 50 --inserts 50 --json

The real nodes in one thread, in virtual time, with the costs of the paper's
machine: the same on every machine, and on a busy one. Each table has the
rates of a model beside those that were measured.";

/// Compare the Fat-Btree with a single index (SIB) and with full copies of the index (CWB)
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FatBtree {
    /// Take seconds instead of minutes
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    output: Output,

    /// Numbers of PEs; the last one is used for updates [default: 4, 8, 16]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pes: Vec<u16>,

    /// Pages of each PE's cache [default: 5, 10, 20, 30, 50, 100, 200]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    caches: Vec<u16>,

    /// Percentages of inserts in the update measurements [default: 10, 50]
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    inserts: Vec<u8>,

    /// Number of measured operations for each point [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..))]
    operations: Option<u32>,

    /// Seed of all random choices [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl FatBtree {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        let progress = Progress::stderr();
        let report = self.lab().run(&progress);
        progress.finish();
        let (text, html) = (|| report.to_text(), || report.to_html());
        self.output
            .deliver(out, &Forms { text: &text, json: &|| Ok(report.to_json()), html: Some(&html) })?;
        Ok(Outcome::Well)
    }

    fn lab(&self) -> Lab {
        let mut lab = if self.quick { Lab::quick() } else { Lab::full() };
        if !self.pes.is_empty() {
            lab.pes.clone_from(&self.pes);
        }
        if !self.caches.is_empty() {
            lab.caches = self.caches.iter().map(|&pages| pages.into()).collect();
        }
        if !self.inserts.is_empty() {
            lab.inserts = self.inserts.iter().map(|&share| share.into()).collect();
        }
        if let Some(operations) = self.operations {
            lab.operations = (u64::from(operations) * 2 / 5, operations.into());
        }
        lab.seed = self.seed.unwrap_or(lab.seed);
        lab
    }
}
