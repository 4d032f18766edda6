//! `lab`: the papers' evaluations, run again. One file per lab, thin over `azekura_bench::lab`.

mod bottleneck;
mod far_memory;
mod mariadb;
mod nb_gclock;
mod p_wal;

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
    NbGclock(nb_gclock::NbGclock),
    FarMemory(far_memory::FarMemory),
    Mariadb(mariadb::Mariadb),
    PWal(p_wal::PWal),
}

impl Lab {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Bottleneck(lab) => lab.run(out),
            What::NbGclock(lab) => lab.run(out),
            What::FarMemory(lab) => lab.run(out),
            What::Mariadb(lab) => lab.run(out),
            What::PWal(lab) => lab.run(out),
        }
    }
}
