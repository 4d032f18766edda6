//! `lab`: the papers' evaluations, run again. One file per lab, thin over `azekura_bench::lab`.

mod bottleneck;
mod far_goals;
mod far_kills;
mod far_memory;
mod far_soak;
mod fat_btree;
mod judged;
mod mariadb;
mod nb_gclock;
mod p_wal;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
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
    FarGoals(far_goals::FarGoals),
    FarKills(far_kills::FarKills),
    FarMemory(far_memory::FarMemory),
    FarSoak(far_soak::FarSoak),
    FatBtree(fat_btree::FatBtree),
    Mariadb(mariadb::Mariadb),
    PWal(p_wal::PWal),
}

impl Lab {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.what {
            What::Bottleneck(lab) => lab.run(out),
            What::NbGclock(lab) => lab.run(out),
            What::FarGoals(lab) => lab.run(out),
            What::FarKills(lab) => lab.run(out),
            What::FarMemory(lab) => lab.run(out),
            What::FarSoak(lab) => lab.run(out),
            What::FatBtree(lab) => lab.run(out),
            What::Mariadb(lab) => lab.run(out),
            What::PWal(lab) => lab.run(out),
        }
    }
}

/// Where a lab's report goes.
#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Write charts and tables to this page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What a lab found, in its three forms.
struct Forms<'f> {
    text: &'f dyn Fn() -> String,
    json: &'f dyn Fn() -> Result<String>,
    /// `None` where there is no picture to be had.
    html: Option<&'f dyn Fn() -> String>,
}

impl Output {
    /// Writes the page if there is to be one, then the JSON or the tables.
    fn deliver(&self, out: &mut dyn Write, forms: &Forms<'_>) -> Result<()> {
        if let (Some(file), Some(html)) = (&self.html, forms.html) {
            std::fs::write(file, html()).with_context(|| format!("write {}", file.display()))?;
        }
        let shown = if self.json { (forms.json)()? + "\n" } else { (forms.text)() };
        Ok(out.write_all(shown.as_bytes())?)
    }

    /// As [`Self::deliver`], of a report that has all forms and cannot fail.
    fn deliver_all(
        &self,
        out: &mut dyn Write,
        text: impl Fn() -> String,
        json: impl Fn() -> String,
        html: impl Fn() -> String,
    ) -> Result<Outcome> {
        self.deliver(out, &Forms { text: &text, json: &|| Ok(json()), html: Some(&html) })?;
        Ok(Outcome::Well)
    }
}
