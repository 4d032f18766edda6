//! `memory-server`: lends memory to programs on other machines.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_far::{AuthKey, Server, ServerStats};
use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::arguments::size;
use crate::{Outcome, parent, show, signals};

const EXAMPLES: &str = "\
Examples:
  azekura memory-server --capacity 8G
  head -c 32 /dev/urandom | base64 > far.key
  azekura memory-server --listen 0.0.0.0:7470 --capacity 64G --auth-key far.key

Each connection is one program. No other program can read its pages, and the server frees them
when the program ends. If the connection breaks, the server keeps the pages for --linger seconds,
so that the program can reconnect; it frees them earlier if other programs need the memory.
The server reserves memory for a program's static arrays when the program starts, and for each
large block when the program allocates it. If there is too little memory, a program with arrays
is refused; a block becomes ordinary memory, or ends a program that runs with --strict. A
connection without a login is closed after 5 seconds. The oldest one is closed earlier, when
one address has 32 of them or all addresses together have 256.
An address that other machines can reach needs --auth-key; clients pass the same key. Pages are
not encrypted and not signed: on an untrusted network use a tunnel. Ctrl-C ends the server;
a program with pages on this server only is then stopped.";

/// Shortest interval of `--stats`.
const SHORTEST: Duration = Duration::from_millis(50);
/// Number of descriptors that the server has for each program.
const PER_PROGRAM: u64 = 2;
/// Upper bound of the number of its other descriptors.
const OTHERS: u64 = 64;

/// Lend this machine's memory to programs on other machines
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MemoryServer {
    /// Address to listen on; port 0 takes a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7470")]
    listen: String,

    /// Largest memory of all programs together
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    capacity: u64,

    /// Largest memory of one program [default: the capacity]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    quota: Option<u64>,

    /// Largest number of programs at the same time
    #[arg(long, value_name = "N", default_value = "1024")]
    sessions: usize,

    /// Seconds for which the pages of a program are kept after its connection broke
    #[arg(long, value_name = "S", default_value = "10", value_parser = crate::arguments::seconds)]
    linger: Duration,

    /// File with a key of at least 16 bytes; clients with another key are refused
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,

    /// Parent process: the server ends when this process ends, even if it is killed
    #[arg(long, value_name = "PID")]
    with_parent: Option<u32>,

    /// Print the statistics at this interval
    #[arg(long, value_name = "S", value_parser = crate::arguments::seconds)]
    stats: Option<Duration>,
}

impl MemoryServer {
    pub(crate) fn run(&self) -> Result<Outcome> {
        if let Some(pid) = self.with_parent {
            parent::end_with(pid)?;
        }
        raise_descriptors(self.sessions);
        let mut signals = signals::to_stop()?;
        let mut setting =
            Server::builder().capacity(self.capacity).max_sessions(self.sessions).linger(self.linger);
        if let Some(quota) = self.quota {
            setting = setting.quota(quota);
        }
        if let Some(path) = &self.auth_key {
            setting = setting.auth_key(
                AuthKey::read(path)
                    .with_context(|| format!("cannot read the key file {}", path.display()))?,
            );
        }
        let mut server = setting.listen(&self.listen)?;
        // The server continues if the reader of its stdout has ended, or the disk is full: its end would take
        // the pages of all programs with it.
        let print = |text: &str| drop(writeln!(std::io::stdout(), "{text}"));
        print(&format!("listening on {}", server.address()));
        // Waits for a signal; wakes up in between only to print.
        signals
            .set_read_timeout(self.stats.map(|every| every.max(SHORTEST)))
            .context("cannot wait for a signal")?;
        loop {
            match signals.read(&mut [0]) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    print(&line(&server.stats()));
                }
                Err(error) => return Err(error).context("cannot wait for a signal"),
            }
        }
        let stats = server.stats();
        server.shutdown();
        print(&line(&stats));
        Ok(Outcome::Well)
    }
}

/// Raises the limit of open files for this number of programs, as far as the hard limit allows it.
fn raise_descriptors(sessions: usize) {
    let limit = getrlimit(Resource::Nofile);
    let needed = (sessions as u64).saturating_mul(PER_PROGRAM).saturating_add(OTHERS);
    let allowed = limit.maximum.map_or(needed, |most| needed.min(most));
    if limit.current.is_some_and(|current| current < allowed) {
        // If it cannot be raised, fewer programs can connect.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(allowed), ..limit });
    }
}

fn line(stats: &ServerStats) -> String {
    format!(
        "{} now, {} ever, {} turned away; {} held, {} bytes, {} promised; {} taken, {} given, {} refused",
        show::counted(stats.sessions, "program"),
        show::count(stats.sessions_ever),
        show::count(stats.turned_away),
        show::counted(stats.pages, "page"),
        show::count(stats.held_bytes),
        show::count(stats.promised_bytes),
        show::count(stats.puts),
        show::count(stats.gets),
        show::count(stats.refused),
    )
}
