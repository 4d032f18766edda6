//! `lab`: the papers' evaluations, run again. Thin over `azekura_bench::lab`.
mod bottleneck;
//! `lab`: the papers' evaluations, run again. One file per lab, thin over `azekura_bench::lab`.

mod nb_gclock;

use std::io::Write;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::Outcome;

/// Run a paper's evaluation again, on this store and this machine
#[derive(Args, Debug)]
pub(crate) struct Lab {
    #[command(subcommand)]
    what: What,
enum What {
    Bottleneck(bottleneck::Bottleneck),
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    NbGclock(nb_gclock::NbGclock),
}

impl Lab {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Bottleneck(lab) => lab.run(out),
        match &self.kind {
            Kind::NbGclock(lab) => lab.run(out),
        }
    }
}
