//! HOP-1: a reader follows a pointer into a page that is concurrently freed and becomes part of another tree.
//! The reader never uses the content of that page.
//!
//! The model runs the production hop over three pages with the production latch. Page words are atomics of
//! `std`, so the model interleaves only at the operations of latches, which contain the protocol.
//!
//! Loom stores only the last access to each atomic. A latch is acquired by a load and a CAS, and that load
//! hides an earlier load of another thread: loom would then treat different interleavings as one. So every
//! step of a thread also increments one counter (Relaxed: it orders nothing), which makes the steps of all
//! threads contend.
#![cfg(loom)]

use std::sync::atomic::AtomicU64;

use azekura_base::page::PageMut;
use azekura_base::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use azekura_base::sync::{Arc, thread};
use azekura_base::{PageId, PageWords, TreeId};
use azekura_btree::change::{PageOp, apply};
use azekura_btree::descent::{Hop, OptimisticRead, Seek, hop};
use azekura_btree::node::{Cell, Node, NodeSpec, Position, Scratch};
use azekura_latch::{HybridLatch, Version};

const ROOT: usize = 0;
const OLD: usize = 1;
const NEW: usize = 2;

struct Page {
    latch: HybridLatch,
    words: Box<[AtomicU64]>,
}

impl Page {
    fn words(&self) -> PageWords<'_> {
        PageWords::new(&self.words)
    }

    fn become_node(&self, id: usize, level: u8, tree: u32, value: &[u8]) {
        let mut scratch = Scratch::new(4096);
        let spec = NodeSpec { level, tree: TreeId(tree), lower: b"", upper: b"" };
        scratch.format(spec).expect("no fences");
        let insert = PageOp::Insert { slot: 0, suffix: b"", cell: Cell::inline(value) };
        apply(&insert, &mut scratch.page_mut(), PageId(id as u64)).expect("fits");
        let mut image = Vec::new();
        let image = PageOp::image_of(scratch.page(), &mut image);
        apply(&image, &mut PageMut::new(self.words()), PageId(id as u64)).expect("an image fits any page");
    }
}

#[derive(Clone, Copy)]
struct Look<'p> {
    pages: &'p Pages,
    page: &'p Page,
    version: Version,
}

impl OptimisticRead for Look<'_> {
    fn words(&self) -> PageWords<'_> {
        self.page.words()
    }
    fn is_valid(self) -> bool {
        self.pages.step();
        self.page.latch.validate(self.version)
    }
}

struct Pages([Page; 3], AtomicUsize);

impl Pages {
    fn step(&self) {
        self.1.fetch_add(1, Relaxed);
    }

    fn new() -> Self {
        let page =
            || Page { latch: HybridLatch::new(), words: (0..512).map(|_| AtomicU64::new(0)).collect() };
        let pages = Self([page(), page(), page()], AtomicUsize::new(0));
        pages.0[ROOT].become_node(ROOT, 1, 1, &(OLD as u64).to_le_bytes());
        pages.0[OLD].become_node(OLD, 0, 1, b"of tree 1");
        pages
    }

    fn look(&self, id: PageId) -> Option<Look<'_>> {
        let page = self.0.get(id.0 as usize)?;
        self.step();
        Some(Look { pages: self, page, version: page.latch.optimistic()? })
    }

    /// Makes one attempt to read the only key; returns `None` if it must be repeated.
    fn read(&self) -> Option<Vec<u8>> {
        let root = self.look(PageId(ROOT as u64))?;
        let Hop::Child(_, Some(leaf)) = hop(root, Seek::Covering(b""), |id| self.look(id)) else {
            return None;
        };
        let node = Node::new(leaf.page.words());
        let mut value = Vec::new();
        if let Position::Found(i) = node.search(b"") {
            node.value_into(node.slot(i), &mut value);
        }
        leaf.is_valid().then_some(value)
    }

    /// Moves the record to another leaf, as in a merge, and releases its old leaf.
    fn move_record(&self) {
        for id in [ROOT, OLD, NEW] {
            self.step();
            self.0[id].latch.lock_exclusive();
        }
        self.0[NEW].become_node(NEW, 0, 1, b"of tree 1");
        self.0[ROOT].become_node(ROOT, 1, 1, &(NEW as u64).to_le_bytes());
        apply(&PageOp::Release, &mut PageMut::new(self.0[OLD].words()), PageId(OLD as u64)).expect("release");
        for id in [ROOT, OLD, NEW] {
            self.step();
            self.0[id].latch.unlock_exclusive();
        }
    }

    /// Makes the old leaf's page a leaf of another tree.
    fn reuse_page(&self) {
        self.step();
        self.0[OLD].latch.lock_exclusive();
        self.0[OLD].become_node(OLD, 0, 2, b"of tree 2");
        self.step();
        self.0[OLD].latch.unlock_exclusive();
    }
}

#[test]
fn a_reader_never_uses_a_page_that_has_left_its_tree() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    let believed = std::sync::Arc::new([const { std::sync::atomic::AtomicUsize::new(0) }; 2]);
    let count = std::sync::Arc::clone(&believed);
    model.check(move || {
        let pages = Arc::new(Pages::new());
        let writer = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || {
                pages.move_record();
                pages.reuse_page();
            })
        };
        for _ in 0..2 {
            let read = pages.read();
            count[usize::from(read.is_some())].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert!(read.is_none_or(|value| value == b"of tree 1"));
        }
        writer.join().expect("the writer panicked");
        assert_eq!(pages.read().as_deref(), Some(&b"of tree 1"[..]), "nothing moves any more");
    });
    let [repeated, believed] = believed.each_ref().map(|n| n.load(std::sync::atomic::Ordering::Relaxed));
    println!("{believed} reads believed, {repeated} to be repeated");
    assert!(believed > 100 && repeated > 100, "the model has hardly run");
}
