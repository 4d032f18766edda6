//! The directory of a cluster on this machine.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use azekura_fatbtree::{FileMeta, Member, Membership, Meta, PeId};
use rand::RngExt;

use super::ask;
use super::client::Reply;
use super::process::{PortTaken, Process};

const LIST: &str = "cluster.toml";
const KEY: &str = "cluster.key";
/// Range in which free ports are searched: below the ports that the system assigns to outgoing connections.
/// Such a connection could take a node's port while the node is stopped.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Time limit for the start of a node: a restart reads the log, which has a bounded length.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the connections between running nodes, unless they reject each other.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ClusterDirectory {
    pub(super) dir: PathBuf,
    pub(super) members: Membership,
    /// The node that has received the last request of [`ask_any`](Self::ask_any).
    last_asked: Cell<Option<PeId>>,
}

/// Returns two unused addresses of this machine.
pub(super) fn free_addresses() -> Result<[SocketAddr; 2]> {
    let mut rng = rand::rng();
    let mut held = Vec::new();
    for _ in 0..10_000 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, rng.random_range(PORTS)));
        if let Ok(listener) = TcpListener::bind(address) {
            held.push((address, listener));
        }
        if let [(one, _), (two, _)] = held.as_slice() {
            return Ok([*one, *two]);
        }
    }
    bail!("no free port between {} and {}: end a program that listens there", PORTS.start, PORTS.end)
}

/// Returns the last line of a node's log: if the node ended, the reason.
fn last_line(log: &str) -> String {
    let line = log.trim_end().lines().next_back().unwrap_or_default();
    line.strip_prefix("azekura: ").unwrap_or(line).to_owned()
}

impl ClusterDirectory {
    fn of(dir: &Path, members: Membership) -> Self {
        Self { dir: dir.to_owned(), members, last_asked: Cell::default() }
    }

    /// Returns `true` if there is a cluster in this directory.
    pub(super) fn is_at(dir: &Path) -> bool {
        dir.join(LIST).exists()
    }

    pub(super) fn open(dir: &Path) -> Result<Self> {
        if !Self::is_at(dir) {
            bail!("no cluster in {0}; `azekura cluster start --dir {0}` creates one", dir.display());
        }
        let members = Membership::read(&dir.join(LIST));
        let members = members.with_context(|| format!("cannot read {}", dir.join(LIST).display()))?;
        Ok(Self::of(dir, members))
    }

    /// Checks that a new cluster would not take the place of a cluster without its list of members.
    pub(super) fn check_new(dir: &Path) -> Result<()> {
        let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
        let mut names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        if let Some(store) = names.find(|name| name.starts_with("node-") && name.ends_with(".db")) {
            bail!(
                "{} is missing or cannot be read, but {store} is there: restore the file, or name another \
                 directory for a new cluster",
                dir.join(LIST).display()
            );
        }
        Ok(())
    }

    /// Creates a cluster; replaces one that was just created with other addresses.
    pub(super) fn make(dir: &Path, shares: &[String]) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let cluster = match Self::open(dir) {
            Ok(directory) => directory.members.cluster(),
            Err(_) => rand::rng().random(),
        };
        let key = dir.join(KEY);
        if !key.exists() {
            let text: String =
                azekura_auth::nonce::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
            let mut file = file.with_context(|| format!("cannot make {}", key.display()))?;
            writeln!(file, "{text}")?;
        }
        let mut nodes: Vec<Member> = Vec::new();
        for (pe, from) in (0..).zip(shares) {
            let [address, clients] = loop {
                let found = free_addresses()?;
                let is_taken = |address: &SocketAddr| {
                    nodes.iter().any(|node| node.address == *address || node.clients == Some(*address))
                };
                if !found.iter().any(is_taken) {
                    break found;
                }
            };
            nodes.push(Member {
                pe: PeId(pe),
                address,
                clients: Some(clients),
                from: Some(from.clone()),
                left: false,
            });
        }
        let directory = Self::of(dir, Membership::new(cluster, key, nodes)?);
        directory.members.write(&dir.join(LIST))?;
        Ok(directory)
    }

    /// Returns the cluster with other members, unless they were changed concurrently.
    pub(super) fn with(&self, members: Membership) -> Result<Self> {
        FileMeta::new(&self.dir.join(LIST)).change(&members)?;
        Ok(Self::of(&self.dir, members))
    }

    /// Returns a node of the cluster.
    pub(super) fn member(&self, pe: PeId) -> Result<&Member> {
        self.members.node(pe).with_context(|| {
            let dir = self.dir.display();
            format!("there is no node {}; `azekura cluster status --dir {dir}` lists the nodes", pe.0)
        })
    }

    fn path(&self, pe: PeId, what: &str) -> PathBuf {
        self.dir.join(format!("node-{}.{what}", pe.0))
    }

    /// Returns the process of a node, if it runs.
    pub(super) fn process(&self, pe: PeId) -> Option<Process> {
        Process::parse(&fs::read_to_string(self.path(pe, "pid")).ok()?)
    }

    /// Returns the running nodes.
    pub(super) fn running(&self) -> impl Iterator<Item = (PeId, Process)> {
        self.members.nodes().iter().filter_map(|member| Some((member.pe, self.process(member.pe)?)))
    }

    /// Removes the process id of a node that has ended.
    pub(super) fn forget(&self, pe: PeId) {
        // The file is checked before it is used, so a leftover does no harm.
        let _ = fs::remove_file(self.path(pe, "pid"));
    }

    /// Starts the process of a node, optionally with an empty store in place of a lost one. The node
    /// continues to run after this process ends.
    pub(super) fn spawn(&self, pe: PeId, is_loss_accepted: bool) -> Result<Child> {
        let log = self.path(pe, "log");
        // The log of the run before may have the reason of its end. At the first start there is none.
        let _ = fs::rename(&log, self.path(pe, "log.old"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let child = Command::new(program)
            .arg("serve")
            .arg(self.path(pe, "db"))
            .arg("--cluster")
            .arg(self.dir.join(LIST))
            .args(["--node", &pe.0.to_string()])
            .args(is_loss_accepted.then_some("--accept-loss"))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0) // Ctrl-C must end only this process.
            .spawn()
            .context("cannot start a node")?;
        let process = Process::of(child.id()).context("the node ended at once")?;
        let path = self.path(pe, "pid");
        fs::write(&path, process.line()).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(child)
    }

    /// Checks that the loss of a node's store can be accepted: the node exists and does not run.
    pub(super) fn can_go_on_without(&self, pe: PeId) -> Result<()> {
        self.member(pe)?;
        if self.process(pe).is_some() {
            bail!(
                "node {} runs; stop it first: azekura cluster stop --dir {} --node {0}",
                pe.0,
                self.dir.display()
            );
        }
        Ok(())
    }

    /// Waits until a started node accepts requests.
    pub(super) fn wait_until_it_serves(&self, member: &Member, mut child: Child) -> Result<()> {
        let log = self.path(member.pe, "log");
        let began = Instant::now();
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            // The last line that a node logs after its start.
            if said.contains("for other nodes on") && ask::ask(member, &["PING"]).is_ok() {
                return Ok(());
            }
            if child.try_wait()?.is_some() {
                self.forget(member.pe);
                let said = fs::read_to_string(&log).unwrap_or_default();
                if said.contains("cannot listen on") {
                    let line = format!("node {}: {}", member.pe.0, last_line(&said));
                    return Err(anyhow!(PortTaken).context(line));
                }
                bail!("node {} ended: {}; its log is {}", member.pe.0, last_line(&said), log.display());
            }
            if began.elapsed() > TIMEOUT {
                bail!(
                    "node {} does not answer after {TIMEOUT:?}; the last line of {}: {}",
                    member.pe.0,
                    log.display(),
                    last_line(&said)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a node has received its keys from all other nodes. Returns the reason if it never will.
    pub(super) fn wait_until_it_has_its_keys(&self, member: &Member) -> Result<Option<String>> {
        let began = Instant::now();
        loop {
            let about = ask::pairs(&ask::ask(member, &["AZ.CLUSTER", "STATUS"])?);
            let get = |name: &str| about.get(name).map(String::as_str).unwrap_or_default();
            if !get("failure").is_empty() {
                return Ok(Some(get("failure").to_owned()));
            }
            if get("settled") == "1" {
                return Ok(None);
            }
            if began.elapsed() > TIMEOUT {
                return Ok(Some(format!("some other nodes did not answer it within {TIMEOUT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the running nodes are connected to each other: a request for a key of an unreachable node
    /// is rejected at once. Returns after [`CONNECT_TIMEOUT`] in any case.
    pub(super) fn wait_until_all_are_connected(&self) -> Result<()> {
        let began = Instant::now();
        let running: Vec<_> =
            self.members.nodes().iter().filter(|member| self.process(member.pe).is_some()).collect();
        for member in &running {
            loop {
                let about = ask::pairs(&ask::ask(member, &["AZ.CLUSTER", "STATUS"])?);
                let reached = about.get("nodes_reached").and_then(|reached| reached.parse::<usize>().ok());
                let is_connected = reached.is_some_and(|reached| reached + 1 >= running.len());
                if is_connected || began.elapsed() > CONNECT_TIMEOUT {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Sends the request to a node that serves requests, or else to the first node that answers. Begins with
    /// the node of the last request, because a stopped process answers only at the time limit.
    pub(super) fn ask_any(&self, request: &[&[u8]]) -> Result<Reply> {
        let mut members: Vec<_> = self.members.nodes().iter().collect();
        members.sort_by_key(|member| Some(member.pe) != self.last_asked.get());
        let mut answering = None;
        let serving = members.into_iter().find(|member| {
            let Ok(status) = ask::ask(member, &["AZ.CLUSTER", "STATUS"]) else { return false };
            answering.get_or_insert(*member);
            ask::pairs(&status).get("failure").is_some_and(String::is_empty)
        });
        let member = serving.or(answering).with_context(|| {
            format!("no node answers; `azekura cluster start --dir {}` starts them", self.dir.display())
        })?;
        self.last_asked.set(Some(member.pe));
        ask::ask(member, request)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Starts a simulated node. Its status has this failure, and its reply to other requests is its number.
    /// Returns it as a member, and the number of requests for its status.
    fn node(number: u16, failure: &'static str) -> (Member, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it listens");
        let count = Arc::new(AtomicUsize::new(0));
        let for_thread = Arc::clone(&count);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.expect("a connection"), Vec::new());
                while !request.ends_with(b"STATUS\r\n") && !request.ends_with(b"MAP\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("a request");
                    request.extend(byte);
                }
                let reply = if request.ends_with(b"MAP\r\n") {
                    format!(":{number}\r\n")
                } else {
                    // SeqCst, also below: the reply orders the count anyway.
                    for_thread.fetch_add(1, SeqCst);
                    format!("*2\r\n$7\r\nfailure\r\n${}\r\n{failure}\r\n", failure.len())
                };
                stream.write_all(reply.as_bytes()).expect("a client");
            }
        });
        let from = (number == 0).then(String::new);
        (Member { pe: PeId(number), address, clients: Some(address), from, left: false }, count)
    }

    #[test]
    fn a_node_that_refuses_requests_is_asked_only_if_no_other_answers() {
        let ((first, asked_first), (second, _)) = (node(0, "its store is lost"), node(1, ""));
        let cluster = |members: Vec<Member>| {
            ClusterDirectory::of(Path::new("x"), Membership::new(1, "k".into(), members).expect("fine"))
        };
        let ask = |cluster: &ClusterDirectory| cluster.ask_any(&[b"AZ.CLUSTER", b"MAP"]).expect("an answer");
        // The second request goes to the node of the first one.
        let both = cluster(vec![first.clone(), second]);
        assert_eq!((ask(&both), ask(&both)), (Reply::Integer(1), Reply::Integer(1)));
        assert_eq!(asked_first.load(SeqCst), 1);
        assert_eq!(ask(&cluster(vec![first])), Reply::Integer(0));
    }
}
