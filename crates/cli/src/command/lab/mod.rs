//! `lab`: the papers' evaluations, run again. Thin over `azekura_bench::lab`.

mod bottleneck;

use std::io::Write;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::Outcome;

/// Run a paper's evaluation again, on this store and this machine
#[derive(Args, Debug)]
pub(crate) struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Bottleneck(bottleneck::Bottleneck),
}

impl Lab {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Bottleneck(lab) => lab.run(out),
        }
    }
}
