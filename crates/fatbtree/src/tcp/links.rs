//! Links: one outbound connection to each other node. The node queues frames on a link; the link connects,
//! sends, and reports losses. No frame is lost without ending a connection (LINK-5).
//!
//! | state | meaning | frames |
//! |---|---|---|
//! | `Calling` | connecting for the first time, or to a node that has just connected to this one | wait |
//! | `Up` | the handshake succeeded | are sent |
//! | `Lost` | the connection has ended, and the next attempt has not begun | are dropped |
//! | `Down` | the last attempt failed; attempts are repeated after growing pauses | are dropped |
//!
//! - **LINK-1** The bytes of waiting frames are bounded. While they exceed [`MOST_WAITING_BYTES`], tasks with
//!   requests, answers and leaves wait before they send ([`Net::room`]); other messages are small. So a burst
//!   of large values delays requests, but loses none.
//! - **LINK-2** When a connection ends, its waiting frames are dropped too: no outdated request is sent.
//! - **LINK-3** The kernel ends a connection without acknowledgments after [`SILENCE`] (`TCP_USER_TIMEOUT`),
//!   and probes idle connections. So a broken cable ends a connection just as a killed process does.
//! - **LINK-4** A node that connects to this one is reachable. So this node calls it at once, and frames for
//!   it wait for that call: the answers to its first requests. Each inbound connection causes one call.
//! - **LINK-5** When a frame is lost, the inbound connection from the other node is closed, so that the other
//!   node does not wait for a lost answer. The other node then repeats reads, and reports the outcome of
//!   writes as unknown.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use azekura_auth::AuthKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::id::PeId;
use crate::node::Node;
use crate::tcp::handshake::{self, HandshakeError, Identity};
use crate::tcp::inbound::InboundConnections;
use crate::world::{Net, Rng, Task};

/// Bytes that wait for one connection, from which on senders of large frames wait (LINK-1).
const MOST_WAITING_BYTES: usize = 64 << 20;
/// Approximate number of bytes written to the socket at once.
const BATCH_BYTES: usize = 256 << 10;
/// Time limit for a connection and its handshake.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Shortest and longest pause between two calls. Each pause is twice the previous one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_secs(1);
/// Time without any message after which a connection is closed.
pub(super) const SILENCE: Duration = Duration::from_secs(3);

/// State of the link to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Connecting for the first time, or to a node that has just connected to this one.
    Calling,
    /// Connected: frames are sent.
    Up,
    /// The connection has ended, for this reason. The next call has not begun.
    Lost(String),
    /// The last call failed, for this reason.
    Down(String),
}

impl LinkState {
    /// Returns `true` if frames are dropped in this state.
    const fn drops_frames(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Down(_))
    }
}

/// Status of the link to another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkStatus {
    /// The other node.
    pub pe: PeId,
    /// Address of the other node.
    pub address: SocketAddr,
    /// State of the link.
    pub state: LinkState,
    /// Number of connections made so far.
    pub connections: u64,
    /// Number of frames sent so far.
    pub sent: u64,
    /// Number of dropped frames: the other node was unreachable.
    pub dropped: u64,
}

struct Link {
    pe: PeId,
    address: Cell<SocketAddr>,
    state: RefCell<LinkState>,
    queue: RefCell<VecDeque<Vec<u8>>>,
    waiting_bytes: Cell<usize>,
    /// Notified when a frame was added to the queue.
    notify: Notify,
    /// Notified when there is room for further frames.
    room: Notify,
    /// Number of connections that the other node has made to this one.
    comings: Cell<u64>,
    /// Notified when the other node has connected to this one.
    came: Notify,
    inbound: Rc<InboundConnections>,
    counts: Cell<(u64, u64, u64)>,
    /// State that was last reported as an event, so that a lasting state is reported once.
    reported: RefCell<LinkState>,
}

/// All links of a node.
pub(super) struct Links {
    /// Identity of this node, without its store and its list of members.
    me: Identity,
    key: AuthKey,
    rng: Rc<dyn Rng>,
    inbound: Rc<InboundConnections>,
    links: RefCell<BTreeMap<PeId, Rc<Link>>>,
}

impl Net for Links {
    fn send(&self, to: PeId, frame: Vec<u8>) {
        if let Some(link) = self.links.borrow().get(&to) {
            link.put(frame);
        }
    }

    fn room(&self, to: PeId) -> Option<Task<'static, ()>> {
        let link = self.links.borrow().get(&to).filter(|link| !link.has_room()).map(Rc::clone)?;
        Some(Box::pin(async move {
            while !link.has_room() {
                link.room.notified().await; // no other task runs between the check and the wait
            }
        }))
    }

    fn is_up(&self, to: PeId) -> bool {
        // A request is not queued for a connection that may never be made. It is refused and retried.
        self.links.borrow().get(&to).is_some_and(|link| *link.state.borrow() == LinkState::Up)
    }

    fn is_down(&self, to: PeId) -> bool {
        self.links.borrow().get(&to).is_some_and(|link| matches!(*link.state.borrow(), LinkState::Down(_)))
    }

    fn trouble(&self, to: PeId) -> String {
        match self.links.borrow().get(&to).map(|link| link.state.borrow().clone()) {
            None => format!("{to} is not on the list of members"),
            Some(LinkState::Lost(why) | LinkState::Down(why)) => format!("{to}: {why}"),
            Some(_) => format!("{to} is being called"),
        }
    }
}

impl Links {
    pub(super) fn new(me: Identity, key: AuthKey, rng: Rc<dyn Rng>, inbound: Rc<InboundConnections>) -> Self {
        Self { me, key, rng, inbound, links: RefCell::default() }
    }

    /// Adds a link to another node, or changes its address for the next call. `node` is notified each time
    /// that the other node is reached, and each time that the connection is lost.
    pub(super) fn add(self: &Rc<Self>, pe: PeId, address: SocketAddr, node: Weak<Node>) {
        if let Some(link) = self.links.borrow().get(&pe) {
            link.address.set(address);
            return;
        }
        let link = Rc::new(Link {
            pe,
            address: Cell::new(address),
            state: RefCell::new(LinkState::Calling),
            queue: RefCell::default(),
            waiting_bytes: Cell::new(0),
            notify: Notify::new(),
            room: Notify::new(),
            comings: Cell::new(0),
            came: Notify::new(),
            inbound: Rc::clone(&self.inbound),
            counts: Cell::default(),
            reported: RefCell::new(LinkState::Calling),
        });
        self.links.borrow_mut().insert(pe, Rc::clone(&link));
        let links = Rc::clone(self);
        tokio::task::spawn_local(async move { links.keep_up(&link, &node).await });
    }

    pub(super) fn is_member(&self, pe: PeId) -> bool {
        self.links.borrow().contains_key(&pe)
    }

    /// Records that a node has connected to this one, so it is reachable (LINK-4).
    pub(super) fn came(&self, pe: PeId) {
        if let Some(link) = self.links.borrow().get(&pe) {
            link.comings.set(link.comings.get() + 1);
            let drops_frames = link.state.borrow().drops_frames();
            if drops_frames {
                link.state.replace(LinkState::Calling);
            }
            link.came.notify_one();
        }
    }

    pub(super) fn status(&self) -> Vec<LinkStatus> {
        self.links.borrow().values().map(|link| link.status()).collect()
    }

    /// Keeps a link connected: calls, sends until the connection ends, and calls again, until the other node
    /// has left.
    async fn keep_up(&self, link: &Link, node: &Weak<Node>) {
        let mut pause = FIRST_PAUSE;
        loop {
            let comings = link.comings.get();
            if node.upgrade().is_none_or(|node| node.has_left(link.pe)) {
                // The other node has left: its last connection has ended after all frames were sent.
                self.links.borrow_mut().remove(&link.pe);
                return;
            }
            let called = tokio::time::timeout(CALL_TIMEOUT, self.call(link, node)).await;
            // The other node has connected since (LINK-4), so this node calls again at once. A wrong clock is
            // reported.
            let has_come = link.comings.get() != comings;
            let state = match called {
                Ok(Ok(stream)) => {
                    link.rise();
                    if let Some(node) = node.upgrade() {
                        node.greet(link.pe);
                    }
                    let began = Instant::now();
                    let ended = link.send_all(stream).await;
                    // The pause is reset only after a lasting connection, so that repeated short connections
                    // do not cause calls without a pause.
                    if began.elapsed() > MOST_PAUSE {
                        pause = FIRST_PAUSE;
                    }
                    LinkState::Lost(format!("the connection ended: {ended}"))
                }
                Ok(Err(error @ HandshakeError::Clock(..))) => LinkState::Down(tell(&error)),
                _ if has_come => continue,
                Ok(Err(error)) => LinkState::Down(tell(&error)),
                Err(_) => LinkState::Down(format!("no answer within {CALL_TIMEOUT:?}")),
            };
            link.fall(state);
            match node.upgrade() {
                Some(node) => node.lost_touch(link.pe),
                None => return,
            }
            let jitter = self.rng.below(1000) as f64 / 1000.0 + 0.5;
            let comings = link.comings.get();
            // Waits until the other node connects, or the pause is over.
            let _ = tokio::time::timeout(pause.mul_f64(jitter), link.next_coming(comings)).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    async fn call(&self, link: &Link, node: &Weak<Node>) -> Result<TcpStream, HandshakeError> {
        let mut stream = TcpStream::connect(link.address.get()).await?;
        set_socket_options(&stream)?;
        // Epochs would differ only after a takeover by another machine, which is not supported. So both nodes
        // use the same epoch.
        let node = node.upgrade().ok_or_else(|| io::Error::other("this node is stopping"))?;
        let asked_ms = node.clock_ms();
        let me = Identity { store: node.credentials(), list: node.list(), clock_ms: asked_ms, ..self.me };
        let (shown, clock_ms) =
            handshake::call(&mut stream, me, link.pe, me.epoch, &self.key).await.inspect_err(|error| {
                if let HandshakeError::Displaced(witness) = error {
                    node.displaced(*witness);
                }
            })?;
        // Clocks are compared only if the rows of both nodes expire.
        let offset = (asked_ms > 0 && clock_ms > 0)
            .then(|| node.judge_clock(clock_ms, (asked_ms, node.clock_ms())))
            .flatten();
        if let Some(offset) = offset {
            return Err(HandshakeError::Clock(link.pe, offset));
        }
        match node.admits(link.pe, shown).await {
            Some(true) => Ok(stream),
            Some(false) => Err(HandshakeError::OtherStore(link.pe)),
            None => Err(HandshakeError::NotRecorded(link.pe)),
        }
    }
}

/// Sets the socket options of a connection between nodes, on both sides (LINK-3).
pub(super) fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, SILENCE.as_secs() as u32)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, SILENCE.as_millis() as u32)?;
    Ok(())
}

/// Returns the text of an error with its causes.
pub(super) fn tell(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl Link {
    fn put(&self, frame: Vec<u8>) {
        if self.state.borrow().drops_frames() {
            return self.drop_frames(1);
        }
        self.waiting_bytes.set(self.waiting_bytes.get() + frame.len());
        self.queue.borrow_mut().push_back(frame);
        self.notify.notify_one();
    }

    /// Returns `true` if a large frame can be added, or would be dropped.
    fn has_room(&self) -> bool {
        self.waiting_bytes.get() < MOST_WAITING_BYTES || self.state.borrow().drops_frames()
    }

    /// Counts lost frames, and closes the inbound connection of the other node (LINK-5).
    fn drop_frames(&self, count: u64) {
        let (connections, sent, dropped) = self.counts.get();
        self.counts.set((connections, sent, dropped + count));
        if count > 0 {
            self.inbound.end(self.pe);
        }
    }

    /// Records a successful handshake.
    fn rise(&self) {
        let (connections, sent, dropped) = self.counts.get();
        self.counts.set((connections + 1, sent, dropped));
        self.state.replace(LinkState::Up);
        self.report();
    }

    /// Reports to the operator that a node was lost or is back.
    fn report(&self) {
        let state = self.state.borrow();
        if *self.reported.borrow() == *state {
            return;
        }
        self.reported.replace(state.clone());
        let (node, address) = (self.pe.0, self.address.get());
        match &*state {
            LinkState::Calling => {}
            LinkState::Up => tracing::info!(node, %address, "connected to node"),
            LinkState::Lost(reason) => tracing::warn!(node, %address, reason, "connection to node lost"),
            LinkState::Down(reason) => tracing::warn!(node, %address, reason, "node cannot be reached"),
        }
    }

    /// Records the end of a connection, and drops its waiting frames (LINK-2).
    fn fall(&self, state: LinkState) {
        let before = self.state.replace(state);
        self.report();
        let count = self.queue.borrow_mut().drain(..).count();
        self.drop_frames(count as u64);
        self.waiting_bytes.set(0);
        self.room.notify_waiters();
        if before == LinkState::Up {
            // Some of the sent frames may be lost (LINK-5).
            self.inbound.end(self.pe);
        }
    }

    /// Waits until the other node has connected more than `comings` times.
    async fn next_coming(&self, comings: u64) {
        while self.comings.get() == comings {
            self.came.notified().await;
        }
    }

    /// Sends frames until the connection ends, and returns the reason of the end.
    async fn send_all(&self, stream: TcpStream) -> String {
        let (mut reader, mut writer) = stream.into_split();
        let mut byte = [0];
        let sending = async {
            let mut batch = Vec::new();
            loop {
                let count = self.fill(&mut batch);
                if count == 0 {
                    self.notify.notified().await;
                    continue;
                }
                writer.write_all(&batch).await?;
                let (connections, sent, dropped) = self.counts.get();
                self.counts.set((connections, sent + count, dropped));
            }
        };
        // The other node sends nothing over this connection, so any read means its end.
        tokio::select! {
            ended = sending => {
                let ended: io::Result<()> = ended;
                ended.err().map_or_else(String::new, |error| error.to_string())
            }
            read = reader.read(&mut byte) => match read {
                Ok(0) => "by the peer".to_owned(),
                Ok(_) => "the peer sent an unexpected message".to_owned(),
                Err(error) => error.to_string(),
            },
        }
    }

    /// Moves waiting frames to `batch`. Returns their number.
    fn fill(&self, batch: &mut Vec<u8>) -> u64 {
        batch.clear();
        let (mut queue, mut count) = (self.queue.borrow_mut(), 0);
        while batch.len() < BATCH_BYTES
            && let Some(frame) = queue.pop_front()
        {
            batch.extend_from_slice(&frame);
            count += 1;
        }
        self.waiting_bytes.set(self.waiting_bytes.get().saturating_sub(batch.len()));
        if self.has_room() {
            self.room.notify_waiters();
        }
        count
    }

    fn status(&self) -> LinkStatus {
        let (connections, sent, dropped) = self.counts.get();
        LinkStatus {
            pe: self.pe,
            address: self.address.get(),
            state: self.state.borrow().clone(),
            connections,
            sent,
            dropped,
        }
    }
}
