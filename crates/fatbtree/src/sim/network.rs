//! Frames in flight between simulated nodes: delayed, reordered, lost, or blocked.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::id::PeId;
use crate::node::Node;
use crate::sim::executor::Executor;
use crate::world::{Clock, Net, Rng};

/// Faults of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Shortest delay of a frame.
    pub least_delay: Duration,
    /// Longest delay of a frame. Frames may arrive in another order.
    pub most_delay: Duration,
    /// One of this number of frames is lost, on average; 0 loses none.
    pub lose_one_in: usize,
}

/// A model of the time that sending takes.
pub trait Delivery {
    /// Returns the time at which a frame that is sent now leaves `from`.
    fn leave(&self, from: PeId) -> Duration;
}

/// The network of a simulated cluster. Clones share the same state.
#[derive(Clone)]
pub struct Network(Rc<Inner>);

struct Inner {
    executor: Executor,
    faults: Cell<Faults>,
    nodes: RefCell<BTreeMap<PeId, Weak<Node>>>,
    /// Pairs of PEs: frames from the first to the second are lost.
    cut: RefCell<BTreeSet<(PeId, PeId)>>,
    delivery: RefCell<Option<Rc<dyn Delivery>>>,
    frames: Cell<u64>,
    bytes: Cell<u64>,
    /// Hash of all delivered frames and their times.
    trace: Cell<u64>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("faults", &self.0.faults.get())
            .field("frames", &self.frames())
            .finish()
    }
}

impl Network {
    /// Creates a network without nodes.
    #[must_use]
    pub fn new(executor: Executor, faults: Faults) -> Self {
        Self(Rc::new(Inner {
            executor,
            faults: Cell::new(faults),
            nodes: RefCell::default(),
            cut: RefCell::default(),
            delivery: RefCell::default(),
            frames: Cell::default(),
            bytes: Cell::default(),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
        }))
    }

    /// Returns the network interface of one PE.
    #[must_use]
    pub fn port(&self, pe: PeId) -> Rc<dyn Net> {
        Rc::new(Port { network: self.clone(), pe })
    }

    /// Sets the faults of frames from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.faults.set(faults);
    }

    /// Sets a model of the time that sending takes.
    pub fn set_delivery(&self, delivery: Rc<dyn Delivery>) {
        *self.0.delivery.borrow_mut() = Some(delivery);
    }

    /// Delivers frames for `pe` to this node, or drops them if `node` is `None`.
    pub fn connect(&self, pe: PeId, node: Option<&Rc<Node>>) {
        self.0.nodes.borrow_mut().insert(pe, node.map_or_else(Weak::new, Rc::downgrade));
    }

    /// Blocks frames from one PE to another, in this direction only.
    pub fn cut(&self, from: PeId, to: PeId) {
        self.0.cut.borrow_mut().insert((from, to));
    }

    /// Removes all blocks.
    pub fn mend(&self) {
        self.0.cut.borrow_mut().clear();
    }

    /// Returns the number of frames sent so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.0.frames.get()
    }

    /// Returns the number of bytes sent so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    /// Returns a hash of the run: two runs that delivered the same frames at the same times have the same
    /// hash.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.0.trace.get()
    }

    fn send(&self, from: PeId, to: PeId, frame: Vec<u8>) {
        let inner = &*self.0;
        inner.frames.set(inner.frames.get() + 1);
        inner.bytes.set(inner.bytes.get() + frame.len() as u64);
        let leaves =
            inner.delivery.borrow().as_ref().map_or(inner.executor.now(), |delivery| delivery.leave(from));
        let faults = inner.faults.get();
        if faults.lose_one_in > 0 && inner.executor.below(faults.lose_one_in) == 0 {
            return;
        }
        let spread = faults.most_delay.saturating_sub(faults.least_delay);
        let part =
            if spread.is_zero() { 0.0 } else { inner.executor.below(1 << 20) as f64 / f64::from(1 << 20) };
        let network = self.clone();
        inner.executor.at(leaves + faults.least_delay + spread.mul_f64(part), move || {
            network.deliver(from, to, &frame);
        });
    }

    fn deliver(&self, from: PeId, to: PeId, frame: &[u8]) {
        if self.0.cut.borrow().contains(&(from, to)) {
            return;
        }
        let node = self.0.nodes.borrow().get(&to).and_then(Weak::upgrade);
        let Some(node) = node else { return };
        let when = self.0.executor.now().as_nanos() as u64;
        for word in [when, u64::from(to.0), u64::from(crc32c::crc32c(frame))] {
            self.0.trace.set((self.0.trace.get() ^ word).wrapping_mul(0x0100_0000_01b3));
        }
        // The first four bytes are the length, which only a stream needs.
        node.receive(&frame[4..]).expect("a simulated net damages nothing");
    }
}

struct Port {
    network: Network,
    pe: PeId,
}

impl Net for Port {
    fn send(&self, to: PeId, frame: Vec<u8>) {
        self.network.send(self.pe, to, frame);
    }
}
