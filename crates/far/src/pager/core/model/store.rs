//! Simulation of a memory server: orders wait until the test executes them.

use super::PAGE;
use crate::client::{Order, Replica, Verb};
use crate::digest::Digest;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug)]
enum Bulk {
    Put(Vec<Order>),
    Free(u32),
}

#[derive(Debug, Default)]
struct Inner {
    gets: VecDeque<Vec<Order>>,
    /// Requests without urgency, in the order in which they were sent, as on a connection.
    bulk: VecDeque<Bulk>,
    pages: HashMap<u32, [u8; PAGE]>,
    closed: bool,
}

/// A simulated store of pages.
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

    /// Rejects further orders, without informing the pager.
    pub(super) fn shut(&self) {
        self.inner().closed = true;
    }

    /// Loses the server and its pages. Returns all its open orders.
    pub(super) fn lose(&self) -> Vec<Order> {
        let mut inner = self.inner();
        inner.closed = true;
        inner.pages.clear();
        let mut orders: Vec<Order> = inner.gets.drain(..).flatten().collect();
        orders.extend(inner.bulk.drain(..).flat_map(|bulk| match bulk {
            Bulk::Put(run) => run,
            Bulk::Free(_) => Vec::new(),
        }));
        orders
    }

    /// Executes one run: an urgent one, or else the oldest of the others. For a put, the first `takes` pages
    /// are stored, and the others are refused.
    pub(super) fn answer(&self, urgent: bool, takes: usize) -> Vec<(Vec<Order>, Option<String>)> {
        let mut inner = self.inner();
        if (urgent || inner.bulk.is_empty())
            && let Some(mut run) = inner.gets.pop_front()
        {
            for order in &mut run {
                let bytes = inner.pages.get(&order.page).expect("KEEPER: it is asked for what it has");
                assert_eq!(Digest::of(bytes), order.digest, "it is asked for what it has");
                order.target().copy_from_slice(bytes);
            }
            return vec![(run, None)];
        }
        match inner.bulk.pop_front() {
            None => Vec::new(),
            Some(Bulk::Free(page)) => {
                inner.pages.remove(&page);
                Vec::new()
            }
            Some(Bulk::Put(mut run)) => {
                let refused = run.split_off(takes.min(run.len()));
                for order in &run {
                    let bytes: [u8; PAGE] = order.source().try_into().expect("a page");
                    assert_eq!(Digest::of(&bytes), order.digest, "KEEPER-1: the frame was written meanwhile");
                    inner.pages.insert(order.page, bytes);
                }
                let parts = [(run, None), (refused, Some("not today".into()))];
                parts.into_iter().filter(|(part, _)| !part.is_empty()).collect()
            }
        }
    }
}

impl Replica for Store {
    fn submit(&self, mut run: Vec<Order>) -> Result<(), Vec<Order>> {
        let mut inner = self.inner();
        let first = (run[0].verb, run[0].page);
        let is_run = |(page, order): (u32, &Order)| (order.verb, order.page) == (first.0, page);
        assert!((first.1..).zip(&run).all(is_run), "no run: {run:?}");
        if inner.closed {
            return Err(run);
        }
        match first.0 {
            Verb::Get => {
                run.iter_mut().for_each(|order| order.target().fill(0x77)); // simulates a partial receive
                inner.gets.push_back(run);
            }
            Verb::Put => inner.bulk.push_back(Bulk::Put(run)),
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
