//! Second tier of a store's page cache, on memory servers. The tier holds images of clean pages. Servers may
//! drop an image at any time, because the disk has every page.
//!
//! A page that is evicted from the first tier is offered to this tier. A miss in the first tier looks here
//! before the disk is read. The directory of images (page, slot, digest of the image) is in this process
//! only. So an image of an earlier process, of another store or of another client is never used. An image is
//! returned only if it equals, bit for bit, the image that was offered last.
//!
//! | module | noun |
//! |---|---|
//! | `slots` | slots of the servers, and the page of each slot's image |
//! | `buffers` | memory of images in flight |
//! | `maintenance` | reconnecting to lost servers |
//!
//! # A stale image is never returned
//!
//! The thread that evicts a page offers its image. Before the offer arrives, another thread may read the page
//! from disk, change it and write it. So an offer carries a *stamp*, taken while no thread could change the
//! page, and a write of the page advances its stamp:
//!
//! | evictor of version 1 | another thread |
//! |---|---|
//! | takes the stamp; checks that the page is still mapped to its frame | |
//! | unmaps the page | |
//! | | reads the page from disk, makes version 2, writes it: `forget` advances the stamp |
//! | offers version 1: refused, because the stamp has advanced | |
//!
//! - **CACHE-1** An offer is accepted only if its page was not written after the stamp was taken. The check
//!   of the stamp and the change of the stamp happen under one mutex.
//! - **CACHE-2** After `forget` has returned, no `get` returns an image that was offered before the `forget`.
//!
//! # Cost and failure
//!
//! An offer copies the image, computes its digest (1 µs for 8 KiB) and holds a mutex for a short time. An
//! offer never waits for a server, and is dropped if too many offers are in flight. A `get` that hits waits
//! for one round trip. A server that is lost, slow or full, or that returns wrong bytes, counts as a miss. A
//! caller waits for such a server at most once, for the stall time. The cache tries to reconnect it in the
//! background.

mod buffers;
mod maintenance;
mod slots;

use crate::client::{Connection, ConnectionOptions, Order, Replica, Sink, Verb};
use crate::digest::Digest;
use crate::needed;
use crate::setters::setters;
use crate::wire::auth::AuthKey;
use buffers::{Buffers, Reply};
use slots::Slots;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest number of images in flight.
const BUFFERS: u32 = 64;
/// Largest number of offers in flight, shared equally by the servers. Gets need the other buffers, and a
/// stalled server must not use up the buffers of the other servers.
const OFFERS: u32 = BUFFERS / 2;
/// Number of stamps. Several pages share a stamp: writing one page refuses pending offers of the others too,
/// which may cost a miss later.
const STAMPS: usize = 4096;

/// Settings of a cache.
#[derive(Clone, Debug)]
pub struct FarCacheBuilder {
    servers: Vec<String>,
    bytes: u64,
    page: usize,
    key: Option<AuthKey>,
    stall: Duration,
}

/// Error of creating a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarCacheError {
    /// The page size is not a power of two within the limits.
    #[error("the page size is {0} bytes; use 4 KiB, 8 KiB … or 2 MiB")]
    Page(usize),
    /// The number of servers is not between 1 and 64.
    #[error("the cache has {0} memory servers; use 1 to 64")]
    Servers(usize),
    /// The cache has less than one page per server, or more pages than can be counted.
    #[error(
        "a cache of {bytes} bytes in pages of {page_bytes} does not fit {servers} memory servers: \
         use at least a page on each"
    )]
    Size {
        /// Requested size in bytes.
        bytes: u64,
        /// Number of servers.
        servers: usize,
        /// Page size in bytes.
        page_bytes: usize,
    },
    /// The maintenance thread could not be started.
    #[error("cannot start the far cache")]
    Threads(#[source] io::Error),
}

/// Counters and current content of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FarCacheStats {
    /// Number of connected servers.
    pub servers_up: usize,
    /// Number of images held or in flight.
    pub images: usize,
    /// Largest number of images that can be held.
    pub capacity: usize,
    /// Requests for an image that returned it.
    pub hits: u64,
    /// Requests for pages without an image, or without a free buffer.
    pub misses: u64,
    /// Requests for held images that failed: the server was lost, or the page was written meanwhile.
    pub broken: u64,
    /// Images that were sent.
    pub offered: u64,
    /// Images that were offered but not sent: too many offers were in flight, or the page had been written.
    pub dropped: u64,
    /// Servers that were lost.
    pub losses: u64,
    /// Last error of a server that is not connected.
    pub last_loss: Option<String>,
}

struct Inner {
    slots: Slots,
    buffers: Buffers,
    connections: Vec<Option<Arc<Connection>>>,
    /// Number of offers in flight, by server.
    offers: Vec<u32>,
    stats: FarCacheStats,
    closing: bool,
}

struct Shared {
    page: usize,
    inner: Mutex<Inner>,
    /// Notified when a requested image has arrived or failed.
    came: Condvar,
    /// Notified when the cache is dropped.
    ends: Condvar,
    stamps: Vec<AtomicU64>,
    servers: Vec<String>,
    options: ConnectionOptions,
}

/// A cache of clean pages on memory servers; see the [module](self).
pub struct FarCache {
    shared: Arc<Shared>,
    maintenance: Option<JoinHandle<()>>,
}

/// A request for a page, in flight.
#[derive(Debug)]
#[must_use = "`take` returns its buffer"]
pub struct Asked {
    buffer: u32,
}

impl Default for FarCacheBuilder {
    fn default() -> Self {
        Self { servers: Vec::new(), bytes: 0, page: 8192, key: None, stall: Duration::from_millis(500) }
    }
}

impl FarCacheBuilder {
    /// Memory servers, as `host:port`.
    #[must_use]
    pub fn servers<S: Into<String>>(mut self, servers: impl IntoIterator<Item = S>) -> Self {
        self.servers = servers.into_iter().map(Into::into).collect();
        self
    }

    setters! {
        /// Total size of the images on all servers, in bytes.
        bytes(bytes: u64) -> bytes = bytes;

        /// Page size in bytes [default: 8192].
        page(bytes: usize) -> page = bytes;

        /// The authentication key of the servers.
        auth_key(key: AuthKey) -> key = Some(key);

        /// Time without a reply after which a server counts as lost [default: 0.5 s].
        stall(stall: Duration) -> stall = stall;
    }

    /// Creates the cache. Reachable servers are connected on return; the others are tried in the background.
    ///
    /// # Errors
    ///
    /// [`FarCacheError`], for invalid settings only. An unreachable server is not an error.
    pub fn build(self) -> Result<FarCache, FarCacheError> {
        if !self.page.is_power_of_two() || !(4 << 10..=2 << 20).contains(&self.page) {
            return Err(FarCacheError::Page(self.page));
        }
        let servers = self.servers.len();
        if !(1..=64).contains(&servers) {
            return Err(FarCacheError::Servers(servers));
        }
        let per_server = self.bytes / self.page as u64 / servers as u64;
        let size = FarCacheError::Size { bytes: self.bytes, servers, page_bytes: self.page };
        let Ok(per_server @ 1..) = u32::try_from(per_server) else { return Err(size) };
        if per_server.checked_mul(servers as u32).is_none() {
            return Err(size);
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 2 MiB, checked above")]
        let options = ConnectionOptions {
            page_bytes: self.page as u32,
            reserve_bytes: u64::from(per_server) * self.page as u64,
            stall: self.stall,
            key: self.key,
            like: 0,
            alone: false,
        };
        let inner = Inner {
            slots: Slots::new(per_server, servers),
            buffers: Buffers::new(BUFFERS, self.page),
            connections: vec![None; servers],
            offers: vec![0; servers],
            stats: FarCacheStats { capacity: per_server as usize * servers, ..FarCacheStats::default() },
            closing: false,
        };
        let shared = Arc::new(Shared {
            page: self.page,
            inner: Mutex::new(inner),
            came: Condvar::new(),
            ends: Condvar::new(),
            stamps: (0..STAMPS).map(|_| AtomicU64::new(0)).collect(),
            servers: self.servers,
            options,
        });
        shared.ask_all();
        let maintained = Arc::clone(&shared);
        let maintenance =
            needed::spawn("far-cache", move || maintained.maintenance()).map_err(FarCacheError::Threads)?;
        Ok(FarCache { shared, maintenance: Some(maintenance) })
    }
}

impl FarCache {
    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> FarCacheBuilder {
        FarCacheBuilder::default()
    }

    /// Returns the page's stamp, for a later [`offer`](Self::offer). The caller takes the stamp while no
    /// other thread can have read the page from disk to change it: after taking the stamp, the evicting
    /// thread must find the page still mapped.
    #[must_use]
    pub fn stamp(&self, page: u64) -> u64 {
        // Acquire: pairs with Release in `forget`. A thread that reads an advanced stamp sees everything
        // before the write of the page, including the unmapping of the page by the evicting thread.
        self.shared.stamp(page).load(Acquire)
    }

    /// Offers the image of an evicted page. It is accepted if the page was not written since the stamp was
    /// taken. Does not wait for a server.
    ///
    /// # Panics
    ///
    /// If the image is not one page long.
    pub fn offer(&self, page: u64, stamp: u64, image: &[u8]) {
        assert_eq!(image.len(), self.shared.page, "an image is one page");
        let digest = Digest::of(image);
        let mut inner = self.shared.lock();
        if self.shared.stamp(page).load(Acquire) != stamp {
            inner.stats.dropped += 1;
            return;
        }
        if inner.slots.has(page, digest) {
            return;
        }
        inner.offer(page, digest, image);
    }

    /// Requests a page; `None` if its image is not held. Does not wait.
    #[must_use]
    pub fn ask(&self, page: u64) -> Option<Asked> {
        self.shared.lock().ask(page)
    }

    /// Waits for a requested page. Returns `true` if `out` contains the image; otherwise the content of `out`
    /// is unspecified.
    ///
    /// # Panics
    ///
    /// If `out` is not one page long.
    #[must_use]
    pub fn take(&self, asked: Asked, out: &mut [u8]) -> bool {
        assert_eq!(out.len(), self.shared.page, "an image is one page");
        let waiting = |inner: &mut Inner| inner.buffers.reply(asked.buffer) == Reply::Awaited;
        let mut inner =
            self.shared.came.wait_while(self.shared.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        let came = inner.buffers.reply(asked.buffer) == Reply::Came;
        if came {
            out.copy_from_slice(inner.buffers.bytes(asked.buffer));
        }
        inner.buffers.give(asked.buffer);
        *if came { &mut inner.stats.hits } else { &mut inner.stats.broken } += 1;
        came
    }

    /// Returns an image synchronously: [`ask`](Self::ask) and [`take`](Self::take).
    #[must_use]
    pub fn get(&self, page: u64, out: &mut [u8]) -> bool {
        self.ask(page).is_some_and(|asked| self.take(asked, out))
    }

    /// Discards the images of pages that are about to be written (CACHE-2).
    pub fn forget(&self, pages: impl IntoIterator<Item = u64>) {
        let mut inner = self.shared.lock();
        for page in pages {
            // Release: pairs with Acquire in `stamp`.
            self.shared.stamp(page).fetch_add(1, Release);
            inner.slots.forget(page);
        }
    }

    /// Returns the counters and the current content.
    #[must_use]
    pub fn stats(&self) -> FarCacheStats {
        let inner = self.shared.lock();
        FarCacheStats {
            servers_up: inner.slots.servers_up(),
            images: inner.slots.held(),
            ..inner.stats.clone()
        }
    }
}

impl Inner {
    fn offer(&mut self, page: u64, digest: Digest, image: &[u8]) {
        let share = (OFFERS / self.offers.len() as u32).max(1);
        let (slots, offers) = (&mut self.slots, &self.offers);
        let slot = slots.begin_put(page, digest, |server| offers[server] < share);
        let buffer = slot.and_then(|_| self.buffers.take());
        let (Some(slot), Some(buffer)) = (slot, buffer) else {
            slot.into_iter().for_each(|slot| self.slots.cancel_put(slot));
            self.stats.dropped += 1;
            return;
        };
        self.buffers.fill(buffer, image);
        if self.submit(Verb::Put, slot, buffer, digest) {
            self.offers[self.slots.server_of(slot)] += 1;
            self.stats.offered += 1;
        } else {
            // The connection is lost. The thread that watches it reports the loss.
            self.buffers.give(buffer);
            self.slots.cancel_put(slot);
        }
    }

    fn ask(&mut self, page: u64) -> Option<Asked> {
        let found = self.slots.begin_get(page);
        let buffer = found.and_then(|_| self.buffers.take());
        let (Some((slot, digest)), Some(buffer)) = (found, buffer) else {
            if let Some((slot, _)) = found {
                self.slots.end_get(slot);
            }
            self.stats.misses += 1;
            return None;
        };
        self.buffers.await_reply(buffer);
        if self.submit(Verb::Get, slot, buffer, digest) {
            return Some(Asked { buffer });
        }
        self.slots.end_get(slot);
        self.buffers.give(buffer);
        self.stats.misses += 1;
        None
    }

    fn submit(&self, verb: Verb, slot: u32, buffer: u32, digest: Digest) -> bool {
        let order =
            Order { verb, page: slot, at: self.buffers.at(buffer), bytes: self.buffers.page_bytes(), digest };
        let server = self.slots.server_of(slot);
        self.connections[server].as_ref().is_some_and(|connection| connection.submit(vec![order]).is_ok())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stamp(&self, page: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "a remainder below the number of stamps")]
        &self.stamps[(page % STAMPS as u64) as usize]
    }

    fn put_ended(&self, inner: &mut Inner, order: &Order, taken: bool) {
        let server = inner.slots.server_of(order.page);
        inner.offers[server] -= 1;
        let buffer = inner.buffers.of(order.at);
        inner.buffers.give(buffer);
        inner.slots.end_put(order.page, taken);
    }

    fn get_ended(&self, inner: &mut Inner, order: &Order, came: bool) {
        let valid = inner.slots.end_get(order.page);
        let buffer = inner.buffers.of(order.at);
        inner.buffers.reply_with(buffer, came && valid);
        self.came.notify_all();
    }
}

impl Sink for Shared {
    fn finished(&self, _server: usize, run: Vec<Order>, refused: Option<String>) {
        let mut inner = self.lock();
        for order in &run {
            match order.verb {
                Verb::Put => self.put_ended(&mut inner, order, refused.is_none()),
                Verb::Get => self.get_ended(&mut inner, order, refused.is_none()),
            }
        }
        if refused.is_some() {
            inner.stats.last_loss = refused;
        }
    }

    fn lost(&self, server: usize, why: String, orders: Vec<Order>) {
        let mut inner = self.lock();
        for order in &orders {
            match order.verb {
                Verb::Put => self.put_ended(&mut inner, order, false),
                Verb::Get => self.get_ended(&mut inner, order, false),
            }
        }
        inner.slots.lose(server);
        // `drop` has taken the connections out of the vector if the cache is being dropped.
        if let Some(connection) = inner.connections.get_mut(server) {
            *connection = None;
        }
        if !inner.closing {
            inner.stats.losses += 1;
            inner.stats.last_loss = Some(format!("{}: {why}", self.servers[server]));
        }
    }
}

impl Drop for FarCache {
    fn drop(&mut self) {
        let connections = {
            let mut inner = self.shared.lock();
            inner.closing = true;
            std::mem::take(&mut inner.connections)
        };
        self.shared.ends.notify_all();
        connections.into_iter().flatten().for_each(|connection| connection.close());
        if let Some(maintenance) = self.maintenance.take() {
            let _ = maintenance.join();
        }
    }
}

impl fmt::Debug for FarCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarCache").field("servers", &self.shared.servers).finish_non_exhaustive()
    }
}
