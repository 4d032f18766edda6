//! The subcommands, one module each: its arguments with their help, and `run`.

mod backup;
mod check;
mod cluster;
mod compact;
mod delete;
mod demo;
mod dump;
mod far;
mod generate;
mod get;
mod load;
mod memory_server;
mod put;
mod scan;
mod serve;
mod stats;
mod tables;
mod trace;
mod welcome;

use std::io::Write;

use anyhow::Result;

pub(crate) use backup::{Backup, Restore};
pub(crate) use check::Check;
pub(crate) use cluster::Cluster;
pub(crate) use compact::Compact;
pub(crate) use delete::Delete;
pub(crate) use demo::{Demo, DemoChild};
pub(crate) use dump::Dump;
pub(crate) use far::Far;
pub(crate) use generate::{Completions, Man};
pub(crate) use get::Get;
pub(crate) use load::Load;
pub(crate) use memory_server::MemoryServer;
pub(crate) use put::Put;
pub(crate) use scan::Scan;
pub(crate) use serve::Serve;
pub(crate) use stats::Stats;
pub(crate) use tables::Tables;
pub(crate) use trace::Trace;

use crate::Outcome;
use crate::arguments::{Arguments, Command};

/// Runs the command that was asked for; without one, says what there is.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome> {
    let store = &arguments.store;
    match &arguments.command {
        None => welcome::run(out),
        Some(Command::Demo(command)) => command.run(store, out),
        Some(Command::DemoChild(command)) => command.run(store, out),
        Some(Command::Load(command)) => command.run(store, out),
        Some(Command::Get(command)) => command.run(store, out),
        Some(Command::Put(command)) => command.run(store),
        Some(Command::Delete(command)) => command.run(store),
        Some(Command::Scan(command)) => command.run(store, out),
        Some(Command::Dump(command)) => command.run(store, out),
        Some(Command::Tables(command)) => command.run(store, out),
        Some(Command::Stats(command)) => command.run(store, out),
        Some(Command::Check(command)) => command.run(store, out),
        Some(Command::Backup(command)) => command.run(store, out),
        Some(Command::Restore(command)) => command.run(store, out),
        Some(Command::Compact(command)) => command.run(store, out),
        Some(Command::Completions(command)) => command.run(out),
        Some(Command::Man(command)) => command.run(),
        Some(Command::Serve(command)) => command.run(store, out),
        Some(Command::Cluster(command)) => command.run(out),
        Some(Command::Trace(command)) => command.run(out),
        Some(Command::MemoryServer(command)) => command.run(out),
        Some(Command::Far(command)) => command.run(),
    }
}
