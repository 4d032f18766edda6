//! `memd`: memory for programs on other machines.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use azekura_far::{AuthKey, Server, ServerStats};
use clap::Args;

use crate::arguments::size;
use crate::{Outcome, parent, show, signals};

const EXAMPLES: &str = "\
Examples:
  azekura memd --capacity 8G
  head -c 32 /dev/urandom | base64 > far.key
  azekura memd --listen 0.0.0.0:7470 --capacity 64G --auth-key far.key

A program has room promised for its static arrays when it begins, and for each large block when it asks for
it; what is promised is held for it alone. A program for whose static arrays there is no room is refused
before it begins; a block for which there is none is ordinary memory (with --strict the program ends).
Connections that have not logged in are ended after 5 seconds, and the oldest of them when one address has 32,
or all have 256.

Each connection is one program, whose pages nobody else can reach; they are forgotten when it ends. If
its connection breaks, they are kept for --linger seconds, so that it goes on with them over another (and if it ended without a word, for
nothing: so they give way as soon as somebody else needs the room). An address that other
machines can reach needs a key, which clients give by the same option. Pages are neither encrypted on their way nor
signed one by one: on a network where others could write into a TCP stream, use a tunnel. Ctrl-C ends the server; programs that have
pages only here are then stopped.";

/// Between two lines of `--stats`, at least.
const SHORTEST: Duration = Duration::from_millis(50);

/// Lend this machine's memory to programs on other machines
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Memd {
    /// Where to listen; port 0 takes any that is free
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7470")]
    listen: String,

    /// All programs together hold at most so much
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    capacity: u64,

    /// One program holds at most so much [unless given: the capacity]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    quota: Option<u64>,

    /// At most so many programs at once
    #[arg(long, value_name = "N", default_value = "1024")]
    sessions: usize,

    /// Keep the pages of a program whose connection broke so long
    #[arg(long, value_name = "S", default_value = "10", value_parser = crate::arguments::seconds)]
    linger: Duration,

    /// Serve only clients that know this file's content, at least 16 bytes
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,

    /// End with the process of this number, which starts this one, however it ends
    #[arg(long, value_name = "PID")]
    with_parent: Option<u32>,

    /// Say what is held so often
    #[arg(long, value_name = "S", value_parser = crate::arguments::seconds)]
    stats: Option<Duration>,
}

impl Memd {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        if let Some(pid) = self.with_parent {
            parent::end_with(pid)?;
        }
        let mut signals = signals::to_stop()?;
        let mut setting =
            Server::builder().capacity(self.capacity).max_sessions(self.sessions).linger(self.linger);
        if let Some(quota) = self.quota {
            setting = setting.quota(quota);
        }
        if let Some(path) = &self.auth_key {
            setting =
                setting.auth_key(AuthKey::read(path).with_context(|| format!("key {}", path.display()))?);
        }
        let mut server = setting.listen(&self.listen)?;
        writeln!(out, "listening on {}", server.address())?;
        out.flush()?;
        // Waits for a signal, and wakes between only to print.
        signals
            .set_read_timeout(self.stats.map(|every| every.max(SHORTEST)))
            .context("cannot wait for a signal")?;
        loop {
            match signals.read(&mut [0]) {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    writeln!(out, "{}", line(&server.stats()))?;
                    out.flush()?;
                }
                Err(error) => return Err(error).context("cannot wait for a signal"),
            }
        }
        let stats = server.stats();
        server.shutdown();
        writeln!(out, "{}", line(&stats))?;
        Ok(Outcome::Well)
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
