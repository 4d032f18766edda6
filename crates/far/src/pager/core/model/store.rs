//! A memory server's part: orders wait until the world has one answered.

use super::PAGE;
use crate::client::{Keeper, Order, Verb};
use crate::digest::Digest;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug)]
enum Bulk {
    Put(Order),
    Free(u32),
}

#[derive(Debug, Default)]
struct Inner {
    gets: VecDeque<Order>,
    /// In the order in which they were sent, as on a connection.
    bulk: VecDeque<Bulk>,
    pages: HashMap<u32, [u8; PAGE]>,
    closed: bool,
}

/// Keeps pages.
#[derive(Debug, Default)]
pub(super) struct Store(Mutex<Inner>);

impl Store {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("one thread")
    }

    pub(super) fn has_orders(&self) -> bool {
        let inner = self.inner();
        !inner.gets.is_empty() || !inner.bulk.is_empty()
    }

    pub(super) fn has(&self, page: u32, bytes: &[u8; PAGE]) -> bool {
        self.inner().pages.get(&page) == Some(bytes)
    }

    pub(super) fn pages(&self) -> Vec<u32> {
        self.inner().pages.keys().copied().collect()
    }

    /// All its orders come back, and its pages are gone.
    pub(super) fn lose(&self) -> Vec<Order> {
        let mut inner = self.inner();
        inner.closed = true;
        inner.pages.clear();
        let mut orders: Vec<Order> = inner.gets.drain(..).collect();
        orders.extend(inner.bulk.drain(..).filter_map(|bulk| match bulk {
            Bulk::Put(order) => Some(order),
            Bulk::Free(_) => None,
        }));
        orders
    }

    /// Answers one order, a page that somebody waits for or the longest waiting one of the others; perhaps with a refusal.
    pub(super) fn answer(&self, urgent: bool, may_refuse: bool) -> Option<(Order, Option<String>)> {
        let mut inner = self.inner();
        if (urgent || inner.bulk.is_empty())
            && let Some(mut order) = inner.gets.pop_front()
        {
            let bytes = inner.pages.get(&order.page).expect("KEEPER: it is asked for what it has");
            assert_eq!(Digest::of(bytes), order.digest, "it is asked for what it has");
            order.target().copy_from_slice(bytes);
            return Some((order, None));
        }
        match inner.bulk.pop_front()? {
            Bulk::Free(page) => {
                inner.pages.remove(&page);
                None
            }
            Bulk::Put(order) if may_refuse => Some((order, Some("not today".into()))),
            Bulk::Put(order) => {
                assert_eq!(
                    Digest::of(order.source()),
                    order.digest,
                    "KEEPER-1: the frame was written meanwhile"
                );
                let bytes = order.source().try_into().expect("a page");
                inner.pages.insert(order.page, bytes);
                Some((order, None))
            }
        }
    }
}

impl Keeper for Store {
    fn submit(&self, mut order: Order) -> Result<(), Order> {
        let mut inner = self.inner();
        if inner.closed {
            return Err(order);
        }
        match order.verb {
            Verb::Get => {
                order.target().fill(0x77); // half received
                inner.gets.push_back(order);
            }
            Verb::Put => inner.bulk.push_back(Bulk::Put(order)),
        }
        Ok(())
    }

    fn forget(&self, page: u32) {
        let mut inner = self.inner();
        if !inner.closed {
            inner.bulk.push_back(Bulk::Free(page));
        }
    }

    fn is_closed(&self) -> bool {
        self.inner().closed
    }

    fn name(&self) -> &str {
        "store"
    }

    fn close(&self) {}
}
