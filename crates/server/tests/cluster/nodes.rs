//! Nodes of a cluster in this process, connected over loopback TCP, each with a store in memory or on disk.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use azekura::Database;
use azekura_auth::AuthKey;
use azekura_fatbtree::{Member, Membership, Options, PeId};
use azekura_server::{Clock, ClusterOptions, Server, ServerOptions};

use crate::support::{BEGAN_MS, Client, http_response, wait_until};

/// A cluster of nodes with a key range each.
pub(crate) struct Nodes {
    pub(crate) members: Membership,
    pub(crate) now_ms: Arc<AtomicU64>,
    listeners: Vec<Arc<TcpListener>>,
    options: Options,
    transaction_timeout: Duration,
    databases: Vec<Database>,
    /// Clock of each node. All nodes share one clock until a test separates a node's clock.
    clocks: Vec<Arc<AtomicU64>>,
    servers: Vec<Option<Server>>,
}

pub(crate) const KEY: &[u8] = b"a key that these nodes share";

impl Nodes {
    /// Starts three nodes. The second node owns the keys from `h` on, the third node the keys from `p` on.
    pub(crate) fn three() -> Self {
        Self::with(&["", "h", "p"], |_| ())
    }

    pub(crate) fn with(shares: &[&str], change: impl FnOnce(&mut Options)) -> Self {
        // Longer than a test takes.
        Self::with_transactions_of(Duration::from_secs(300), shares, change)
    }

    /// Like [`with`](Self::with), with a time limit for interactive transactions.
    pub(crate) fn with_transactions_of(
        transaction_timeout: Duration,
        shares: &[&str],
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let listeners: Vec<_> =
            shares.iter().map(|_| Arc::new(TcpListener::bind("127.0.0.1:0").unwrap())).collect();
        let member = |(pe, from): (u16, &&str)| Member {
            pe: PeId(pe),
            address: listeners[usize::from(pe)].local_addr().unwrap(),
            clients: None,
            from: Some((*from).to_owned()),
            left: false,
        };
        let members = (0..).zip(shares).map(member).collect();
        let members = Membership::new(0xc1, "cluster.key".into(), members).unwrap();
        let mut options = Options::default();
        options.request_timeout = Duration::from_secs(30);
        options.move_timeout = Duration::from_secs(20);
        options.remind_interval = Duration::from_millis(20);
        // On a busy machine, heartbeats of a live node may be delayed for long, so they are disabled.
        options.heartbeat_interval = None;
        change(&mut options);
        let now_ms = Arc::new(AtomicU64::new(BEGAN_MS));
        let mut nodes = Self {
            clocks: shares.iter().map(|_| Arc::clone(&now_ms)).collect(),
            members,
            now_ms,
            options,
            transaction_timeout,
            databases: shares.iter().map(|_| Database::in_memory().unwrap()).collect(),
            servers: shares.iter().map(|_| None).collect(),
            listeners,
        };
        (0..shares.len()).for_each(|node| nodes.launch(node));
        nodes.wait_until_all_are_connected();
        nodes.wait_until_all_have_their_keys();
        nodes
    }

    /// Waits until each new node has its keys. This may take longer than the time limit of one request.
    fn wait_until_all_have_their_keys(&self) {
        let mut client = self.client(0);
        wait_until("all nodes have their keys", || client.ask("DBSIZE").starts_with(':'));
    }

    /// Starts a node, and waits until all running nodes are connected: requests for keys of an unconnected
    /// node are refused at once.
    pub(crate) fn start(&mut self, node: usize) {
        self.launch(node);
        self.wait_until_all_are_connected();
    }

    fn wait_until_all_are_connected(&self) {
        let running: Vec<_> = (0..self.len()).filter(|node| self.servers[*node].is_some()).collect();
        for node in &running {
            let all = (running.len() - 1).to_string();
            let is_connected = (0..6000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                self.info(*node, "nodes_reached") == all
            });
            assert!(is_connected, "node {node} reaches {} of {all}", self.info(*node, "nodes_reached"));
        }
    }

    /// Starts a node without waiting for connections.
    pub(crate) fn launch(&mut self, node: usize) {
        let key = AuthKey::new(KEY).unwrap();
        let mut cluster = ClusterOptions::new(Arc::new(self.members.clone()), PeId(node as u16), key);
        cluster.listener = Some(Arc::clone(&self.listeners[node]));
        cluster.node = self.options.clone();
        let mut options = ServerOptions::default();
        options.listen = "127.0.0.1:0".parse().unwrap();
        options.clock = Clock::Manual(Arc::clone(&self.clocks[node]));
        options.metrics = Some("127.0.0.1:0".parse().unwrap());
        options.transaction_timeout = self.transaction_timeout;
        options.cluster = Some(cluster);
        self.servers[node] = Some(Server::start(self.databases[node].clone(), options).unwrap());
    }

    /// Gives a node its own clock from its next start on. The clock begins with the shared time.
    pub(crate) fn separate_clock(&mut self, node: usize) -> Arc<AtomicU64> {
        self.clocks[node] = Arc::new(AtomicU64::new(self.now_ms.load(SeqCst)));
        Arc::clone(&self.clocks[node])
    }

    /// Returns a page of the metrics port, including the head.
    pub(crate) fn page(&self, node: usize, path: &str) -> String {
        let address = self.servers[node].as_ref().unwrap().metrics_address().unwrap();
        http_response(address, &format!("GET {path} HTTP/1.0\r\n\r\n"))
    }

    pub(crate) fn database(&self, node: usize) -> Database {
        self.databases[node].clone()
    }

    /// Stops a node and replaces its store by an empty one. The node refuses that store unless the options
    /// accept the loss.
    pub(crate) fn lose(&mut self, node: usize) {
        self.stop(node);
        self.databases[node] = Database::in_memory().unwrap();
    }

    /// Stops a node and replaces its store by one restored from a backup of it.
    pub(crate) fn restore(&mut self, node: usize) {
        let (mut backup, builder) =
            (Vec::new(), Database::builder().file_system(Arc::new(azekura_io::FaultFs::new())));
        self.databases[node].backup().to_writer(&mut backup).unwrap();
        self.stop(node);
        azekura::Restore::new().builder(builder.clone()).from_reader(&backup[..], "/restored").unwrap();
        self.databases[node] = builder.open("/restored").unwrap();
    }

    /// Changes the settings of nodes that are started from now on.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Options)) {
        change(&mut self.options);
    }

    /// Stops a node; its store is kept. Waits until the other nodes have noticed the end of its connections:
    /// a request that is sent over such a connection has an unknown outcome.
    pub(crate) fn stop(&mut self, node: usize) {
        self.servers[node] = None;
        let running: Vec<_> = (0..self.len()).filter(|node| self.servers[*node].is_some()).collect();
        for other in &running {
            wait_until("the connection of a stopped node has ended", || {
                self.info(*other, "nodes_reached").parse::<usize>().unwrap() < running.len()
            });
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn client_address(&self, node: usize) -> SocketAddr {
        self.servers[node].as_ref().unwrap().address().tcp().unwrap()
    }

    /// Returns the listener of a node for other nodes.
    pub(crate) fn listener(&self, node: usize) -> &TcpListener {
        &self.listeners[node]
    }

    pub(crate) fn node_address(&self, node: usize) -> SocketAddr {
        self.listeners[node].local_addr().unwrap()
    }

    pub(crate) fn client(&self, node: usize) -> Client {
        Client::new(TcpStream::connect(self.client_address(node)).unwrap())
    }

    /// Returns the node that owns the leaf of a key, according to node 0.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let leaf = self.client(0).ask(&format!("AZ.CLUSTER MAP FROM {key} LIMIT 1"));
        let words: Vec<_> = leaf.trim_matches(['[', ']']).split(' ').collect();
        words[words.len() - 3].trim_start_matches(':').parse().unwrap()
    }

    /// Waits until no transaction is open at any node. A transaction that was refused is closed after its
    /// client has got the reply.
    pub(crate) fn wait_until_none_is_open(&self) {
        let is_none_open = |node| self.info(node, "open_transactions") == "0";
        wait_until("no transaction is open", || (0..self.len()).all(is_none_open));
    }

    /// Returns a value from a node's reply to `INFO cluster`.
    pub(crate) fn info(&self, node: usize, name: &str) -> String {
        let info = self.client(node).ask("INFO cluster");
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("azekura_{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().to_owned()
    }
}
