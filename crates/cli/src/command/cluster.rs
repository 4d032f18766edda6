//! `cluster`: starts, inspects and stops nodes on this machine, for development.
//!
//! Files in the directory: `cluster.toml`, the list of members; `cluster.key`, readable only by its owner.
//! Each node has its store `node-N.db`, its log `node-N.log`, the log of its run before that,
//! `node-N.log.old`, and, while it runs, the id of its process in `node-N.pid`.

mod ask;
mod balance;
mod client;
mod directory;
mod map;
mod process;

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use azekura_fatbtree::{Member, Membership, PeId, even_shares};
use clap::{Args, Subcommand};

use crate::format::escape;
use crate::{Outcome, UsageError, arguments};
use directory::ClusterDirectory;
use map::{Leaf, each_leaf};

const EXAMPLES: &str = "\
Examples:
  azekura cluster start --dir try --nodes 3      three nodes; prints their addresses for clients
  redis-cli -p PORT set zebra striped            any node accepts any key
  azekura cluster map --dir try                  the leaves, their keys and their nodes
  azekura cluster move --dir try zebra 0         move the leaf of a key to node 0
  azekura cluster status --dir try
  azekura cluster join --dir try                 add a node; it has no keys until leaves move there
  azekura cluster balance --dir try              move leaves until all nodes have the same number
  azekura cluster balance --dir try --without 1  move all leaves of node 1 away
  azekura cluster leave --dir try 1              move all leaves away and remove node 1
  azekura cluster stop --dir try                 `azekura cluster start` starts the nodes again

Clients are served while leaves move. For nodes on several machines write the list of members
yourself and copy it, with the key file, to each machine:
  azekura serve node-0.db --cluster cluster.toml --node 0
docs/cluster.md describes that. Each row is at one node only: make backups of each node.
With AZEKURA_PASSWORD in the environment, nodes require this password, and commands send it.";

const LEAVE_EXAMPLE: &str = "\
Example:
  azekura cluster leave --dir try 1

All nodes have to run. If the node stays a member, the message names the reason: remove the cause
and run the command again.";

/// Start, inspect, change and stop a cluster of nodes on this machine
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    action: Action,
}

#[derive(Args, Debug)]
struct Directory {
    /// Directory of the cluster
    #[arg(long = "dir", value_name = "DIR", value_parser = arguments::path())]
    path: PathBuf,
}

#[derive(Args, Debug)]
struct Key {
    /// A key of the leaf
    #[arg(allow_negative_numbers = true)]
    key: OsString,
    /// The key is written with the escapes of `map` and `dump`: \t \n \r \\ \xHH
    #[arg(short, long)]
    escaped: bool,
}

impl Key {
    fn bytes(&self) -> Result<Vec<u8>> {
        arguments::argument_bytes(&self.key, self.escaped)
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start the nodes of a cluster; create the cluster first if there is none
    Start {
        #[command(flatten)]
        dir: Directory,
        /// Number of nodes of a new cluster [default: 3]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
        nodes: Option<u16>,
        /// For a new cluster: first key of the second node, of the third node, and so on [default: splits
        /// letters and digits evenly]
        #[arg(long, value_name = "KEY", value_delimiter = ',')]
        split_at: Option<Vec<String>>,
        /// Node with a lost store: start it with an empty one. Rows that only the lost store had are gone
        #[arg(long, value_name = "N")]
        accept_loss: Option<u16>,
    },
    /// Print the state of each node
    Status {
        #[command(flatten)]
        dir: Directory,
    },
    /// Print the leaves with their keys and nodes
    Map {
        #[command(flatten)]
        dir: Directory,
    },
    /// Split a leaf: the key becomes the first key of the right half
    Split {
        #[command(flatten)]
        dir: Directory,
        #[command(flatten)]
        key: Key,
    },
    /// Move the leaf of a key to another node
    Move {
        #[command(flatten)]
        dir: Directory,
        #[command(flatten)]
        key: Key,
        /// The new node of the leaf
        node: u16,
    },
    /// Move leaves until all nodes have the same number
    Balance {
        #[command(flatten)]
        dir: Directory,
        /// Move all leaves away from this node; it stays a member and can be stopped
        #[arg(long, value_name = "N")]
        without: Option<u16>,
    },
    /// Move all leaves of a node away, remove it from the members and stop it; its store can be deleted then
    #[command(after_help = LEAVE_EXAMPLE)]
    Leave {
        #[command(flatten)]
        dir: Directory,
        /// The node; its number is never reused
        node: u16,
    },
    /// Add a node, which has no keys until leaves are moved there
    Join {
        #[command(flatten)]
        dir: Directory,
    },
    /// Stop the nodes
    Stop {
        #[command(flatten)]
        dir: Directory,
        /// Stop this node only
        #[arg(long, value_name = "N")]
        node: Option<u16>,
        /// Kill the nodes (SIGKILL); acknowledged writes survive
        #[arg(long)]
        kill: bool,
    },
}

impl Cluster {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<Outcome> {
        match &self.action {
            Action::Start { dir, nodes, split_at, accept_loss } => {
                start(&dir.path, *nodes, split_at.as_deref(), accept_loss.map(PeId), out)
            }
            Action::Status { dir } => status(&ClusterDirectory::open(&dir.path)?, out),
            Action::Map { dir } => map(&ClusterDirectory::open(&dir.path)?, out),
            Action::Split { dir, key } => {
                let key = key.bytes()?;
                administer(&ClusterDirectory::open(&dir.path)?, &[b"SPLIT", &key], out)
            }
            Action::Move { dir, key, node } => {
                let (key, node) = (key.bytes()?, node.to_string());
                administer(&ClusterDirectory::open(&dir.path)?, &[b"MOVE", &key, node.as_bytes()], out)
            }
            Action::Balance { dir, without } => {
                balance::balance(&ClusterDirectory::open(&dir.path)?, *without, out)
            }
            Action::Leave { dir, node } => leave(&ClusterDirectory::open(&dir.path)?, PeId(*node), out),
            Action::Join { dir } => join(&ClusterDirectory::open(&dir.path)?, out),
            Action::Stop { dir, node, kill } => stop(&ClusterDirectory::open(&dir.path)?, *node, *kill, out),
        }
    }
}

/// Number of attempts to start a new cluster: a free port may be taken before the node starts. Each attempt
/// uses other ports.
const TRIES: usize = 5;

fn start(
    dir: &std::path::Path,
    nodes: Option<u16>,
    split_at: Option<&[String]>,
    accept_loss: Option<PeId>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if ClusterDirectory::is_at(dir) {
        let directory = ClusterDirectory::open(dir)?;
        let found = directory.members.nodes().len();
        if split_at.is_some() || nodes.is_some_and(|nodes| usize::from(nodes) != found) {
            bail!(
                "{} already has a cluster of {found} nodes; omit --nodes and --split-at to start it, or add \
                 nodes with `azekura cluster join --dir {0}`",
                dir.display()
            );
        }
        if let Some(pe) = accept_loss {
            directory.can_go_on_without(pe)?;
        }
        return start_all(&directory, accept_loss, out);
    }
    ClusterDirectory::check_new(dir)?;
    let shares = match split_at {
        None => even_shares(nodes.unwrap_or(3)),
        Some(keys) => {
            if nodes.is_some_and(|nodes| usize::from(nodes) != keys.len() + 1) {
                let (keys, nodes) = (keys.len(), keys.len() + 1);
                return Err(UsageError(format!(
                    "--split-at with {keys} keys is for {nodes} nodes; omit --nodes or give as many"
                ))
                .into());
            }
            std::iter::once(String::new()).chain(keys.iter().cloned()).collect()
        }
    };
    let mut last = None;
    for _ in 0..TRIES {
        let directory = ClusterDirectory::make(dir, &shares)?;
        match start_all(&directory, None, out) {
            Ok(outcome) => return Ok(outcome),
            Err(error) if error.is::<process::PortTaken>() => {
                directory.running().for_each(|(_, process)| process.kill());
                last = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("it was tried"))
}

fn start_all(
    directory: &ClusterDirectory,
    accept_loss: Option<PeId>,
    out: &mut dyn Write,
) -> Result<Outcome> {
    let mut begun = Vec::new();
    for member in directory.members.nodes() {
        if directory.process(member.pe).is_some() {
            writeln!(out, "node {} runs already", member.pe.0)?;
        } else {
            begun.push((member, directory.spawn(member.pe, accept_loss == Some(member.pe))?));
        }
    }
    for (member, child) in begun {
        directory.wait_until_it_serves(member, child)?;
        print_client_address(member, out)?;
    }
    let mut all_well = true;
    for member in directory.members.nodes() {
        if let Some(trouble) = directory.wait_until_it_has_its_keys(member)? {
            all_well = false;
            writeln!(out, "node {} refuses requests: {trouble}", member.pe.0)?;
        }
    }
    if all_well {
        directory.wait_until_all_are_connected()?;
    }
    Ok(if all_well { Outcome::Well } else { Outcome::Failed })
}

fn print_client_address(member: &Member, out: &mut dyn Write) -> Result<()> {
    let clients = ask::clients(member)?;
    writeln!(out, "node {} serves clients on {clients}: redis-cli -p {}", member.pe.0, clients.port())?;
    Ok(out.flush()?)
}

fn status(directory: &ClusterDirectory, out: &mut dyn Write) -> Result<Outcome> {
    let mut all_well = true;
    writeln!(out, "cluster {:016x}, {} nodes", directory.members.cluster(), directory.members.nodes().len())?;
    writeln!(
        out,
        "{:>5} {:>8} {:>22} {:>7} {:>10} {:>10}  others reached",
        "node", "process", "clients", "leaves", "worked", "sent on"
    )?;
    for member in directory.members.nodes() {
        let process =
            directory.process(member.pe).map_or_else(|| "-".to_owned(), |process| process.id().to_string());
        write!(out, "{:>5} {process:>8} {:>22}", member.pe.0, ask::clients(member)?.to_string())?;
        match ask::ask(member, &["AZ.CLUSTER", "STATUS"]) {
            Ok(reply) => {
                let about = ask::pairs(&reply);
                let get = |name: &str| about.get(name).cloned().unwrap_or_default();
                let reached = format!("{} of {}", get("nodes_reached"), directory.members.nodes().len() - 1);
                writeln!(
                    out,
                    " {:>7} {:>10} {:>10}  {reached}",
                    get("leaves"),
                    get("worked"),
                    get("sent_on")
                )?;
                let failure = get("failure");
                if !failure.is_empty() {
                    all_well = false;
                    writeln!(out, "      it refuses requests: {failure}")?;
                }
            }
            Err(error) => {
                all_well = false;
                writeln!(out, "  cannot be reached: {error:#}")?;
            }
        }
    }
    Ok(if all_well { Outcome::Well } else { Outcome::Failed })
}

fn map(directory: &ClusterDirectory, out: &mut dyn Write) -> Result<Outcome> {
    writeln!(out, "{:<30} {:<30} {:>5} {:>8} {:>8}", "from", "to", "node", "leaf", "version")?;
    each_leaf(directory, |Leaf { low, high, node, page, version }| {
        let shown = |key: &[u8]| escape::escaped(key).to_string();
        let (low, high) = (shown(&low), high.map_or_else(String::new, |high| shown(&high)));
        Ok(writeln!(out, "{low:<30} {high:<30} {node:>5} {page:>8} {version:>8}")?)
    })?;
    Ok(Outcome::Well)
}

fn administer(directory: &ClusterDirectory, words: &[&[u8]], out: &mut dyn Write) -> Result<Outcome> {
    let request = [&[&b"AZ.CLUSTER"[..]][..], words].concat();
    directory.ask_any(&request)?;
    writeln!(out, "done; see: azekura cluster map --dir {}", directory.dir.display())?;
    Ok(Outcome::Well)
}

fn join(directory: &ClusterDirectory, out: &mut dyn Write) -> Result<Outcome> {
    let next = directory.members.next_number().0;
    let [address, clients] = directory::free_addresses()?;
    let member = Member { pe: PeId(next), address, clients: Some(clients), from: None, left: false };
    let members: Membership = directory.members.with(member.clone())?;
    let directory = directory.with(members)?;
    let child = directory.spawn(member.pe, false)?;
    directory.wait_until_it_serves(&member, child)?;
    tell_of_new_list(&directory, member.pe)?;
    let away: Vec<_> =
        directory.members.nodes().iter().filter(|other| directory.process(other.pe).is_none()).collect();
    if let Some(other) = away.first() {
        writeln!(out, "it takes no leaves before all other nodes have answered; start node {}", other.pe.0)?;
    } else if let Some(trouble) = directory.wait_until_it_has_its_keys(&member)? {
        bail!("node {next} has joined but serves no requests: {trouble}");
    }
    directory.wait_until_all_are_connected()?;
    print_client_address(&member, out)?;
    writeln!(out, "it has no keys yet: azekura cluster move --dir {} KEY {next}", directory.dir.display())?;
    Ok(Outcome::Well)
}

/// Makes all running nodes except `but` read the list of members.
fn tell_of_new_list(directory: &ClusterDirectory, but: PeId) -> Result<()> {
    for other in directory.members.nodes().iter().filter(|other| other.pe != but) {
        if directory.process(other.pe).is_some() {
            ask::ask(other, &["AZ.CLUSTER", "RELOAD"]).with_context(|| {
                format!("node {} did not read the new list; send AZ.CLUSTER RELOAD to it", other.pe.0)
            })?;
        }
    }
    Ok(())
}

/// Time limit for moving all leaves of a node away.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3600);

fn leave(directory: &ClusterDirectory, pe: PeId, out: &mut dyn Write) -> Result<Outcome> {
    if directory.members.left().iter().any(|member| member.pe == pe) {
        // An earlier command may have ended before the other nodes read the list, or before this one ended.
        if directory.process(pe).is_some() {
            tell_of_new_list(directory, pe)?;
            return stop_process(directory, pe, out);
        }
        bail!("node {} has left already", pe.0);
    }
    let member = directory.member(pe)?;
    let fewer = directory.members.without(pe).ok().context("the last node cannot leave; stop it instead")?;
    let version = directory.members.version().to_string();
    ask::ask_within(member, &["AZ.CLUSTER", "LEAVE", "VERSION", &version], LEAVE_TIMEOUT)?;
    let directory = directory.with(fewer)?;
    tell_of_new_list(&directory, pe)?;
    writeln!(out, "node {} has left, and will not come back; its store can be deleted", pe.0)?;
    stop_process(&directory, pe, out)
}

fn stop_process(directory: &ClusterDirectory, pe: PeId, out: &mut dyn Write) -> Result<Outcome> {
    let Some(process) = directory.process(pe) else { return Ok(Outcome::Well) };
    process.terminate();
    if !process.wait() {
        writeln!(out, "node {} (process {}) does not end", pe.0, process.id())?;
        return Ok(Outcome::Failed);
    }
    directory.forget(pe);
    writeln!(out, "node {} has stopped", pe.0)?;
    Ok(Outcome::Well)
}

fn stop(directory: &ClusterDirectory, node: Option<u16>, kill: bool, out: &mut dyn Write) -> Result<Outcome> {
    if let Some(node) = node {
        directory.member(PeId(node))?;
    }
    let mut stopping = Vec::new();
    for (pe, process) in directory.running().filter(|(pe, _)| node.is_none_or(|node| pe.0 == node)) {
        if kill {
            process.kill()
        } else {
            process.terminate()
        }
        stopping.push((pe, process));
    }
    if stopping.is_empty() {
        writeln!(out, "no node runs")?;
    }
    let mut all_well = true;
    for (pe, process) in stopping {
        if process.wait() {
            directory.forget(pe);
            writeln!(out, "node {} has stopped", pe.0)?;
        } else {
            all_well = false;
            writeln!(out, "node {} (process {}) does not end; `--kill` ends it at once", pe.0, process.id())?;
        }
    }
    Ok(if all_well { Outcome::Well } else { Outcome::Failed })
}
