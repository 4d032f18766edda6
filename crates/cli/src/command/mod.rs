//! The subcommands, one module each: its arguments with their help, and `run`.

mod archive;
mod backup;
mod change_key;
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

pub(crate) use archive::Archive;
pub(crate) use backup::{Backup, Restore};
pub(crate) use change_key::ChangeKey;
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

use crate::arguments::{Arguments, Command};
use crate::{Outcome, logging};

/// Runs the requested command; without one, prints an overview.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(
        Command::Load(_) | Command::Put(_) | Command::Delete(_) | Command::Backup(_) | Command::ChangeKey(_),
    ) = arguments.command
    {
        logging::start_warnings()?; // for example of an archive that lacks changes
    }
    match &arguments.command {
        None => welcome::run(out),
        Some(Command::Demo(given)) => given.command.run(&given.store(), out),
        Some(Command::DemoChild(given)) => given.command.run(&given.store(), out),
        Some(Command::Load(given)) => given.command.command.run(&given.archived_store(), out),
        Some(Command::Get(given)) => given.command.run(&given.store(), out),
        Some(Command::Put(given)) => given.command.command.run(&given.archived_store()),
        Some(Command::Delete(given)) => given.command.command.run(&given.archived_store()),
        Some(Command::Scan(given)) => given.command.run(&given.store(), out),
        Some(Command::Dump(given)) => given.command.run(&given.store(), out),
        Some(Command::Tables(given)) => given.command.run(&given.store(), out),
        Some(Command::Stats(given)) => given.command.run(&given.store(), out),
        Some(Command::Check(given)) => given.command.command.run(&given.archived_store(), out),
        Some(Command::Backup(given)) => given.command.command.run(&given.archived_store(), out),
        Some(Command::Restore(given)) => given.command.command.run(&given.archived_store(), out),
        Some(Command::Archive(command)) => command.run(out),
        Some(Command::Compact(given)) => given.command.run(&given.store(), out),
        Some(Command::ChangeKey(given)) => given.command.command.run(&given.archived_store(), out),
        Some(Command::Completions(command)) => command.run(out),
        Some(Command::Man(command)) => command.run(),
        Some(Command::Serve(given)) => given.command.command.run(&given.archived_store()),
        Some(Command::Cluster(command)) => command.run(out),
        Some(Command::Trace(command)) => command.run(out),
        Some(Command::MemoryServer(command)) => command.run(),
        Some(Command::Far(command)) => command.run(),
    }
}
