//! Read-ahead: a scan that finds a leaf absent from the pool reads the next leaves together with it.
//!
//! 1. The parent of the absent leaf has the page ids of the leaf's siblings. Take the absent siblings from
//!    the leaf on in the scan's direction, up to the end of the range. Resident siblings between them are
//!    skipped: the pool reads across them, so a partly resident table does not make the reads small.
//! 2. A miss requests one leaf more than all earlier misses have read in, so the number doubles. The first
//!    miss reads only its own leaf; later misses read as many leaves as the pool reads at once
//!    ([`BufferPool::read_ahead_pages`]). So a short scan reads no unnecessary page, and a long scan makes
//!    fewer reads.
//! 3. The requested leaves, at most [`MOST_ANNOUNCED`] beyond those that are read in, are announced to the
//!    store. So the device reads ahead although a small pool has few frames for it.
//! 4. Validate the parent, and drop the siblings if it has changed. The pool reads siblings with adjacent
//!    page ids by one call.
//!
//! Read-ahead ends at the parent's last child: the next parent's first leaf is the next miss. A page that is
//! no longer a leaf of the tree when it is read does no harm: no scan visits it.

use azekura_base::PageId;
use azekura_buffer::{Announced, BufferPool, MOST_ANNOUNCED, OptimisticPage};

use crate::descent::Seek;
use crate::node::Node;

/// The state that decides the size of a scan's next read-ahead.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    /// Number of leaves that the misses of the scan have read in.
    leaves: usize,
    announced: Announced,
}

impl Ahead {
    /// Reads ahead from an absent leaf. `range`: `true` if the scan ascends, and the bounds of the rest of
    /// its range.
    pub(super) fn leaf_is_absent(
        &mut self,
        pool: &BufferPool,
        parent: OptimisticPage<'_>,
        seek: Seek<'_>,
        range: (bool, &[u8], Option<&[u8]>),
    ) {
        let requested = self.leaves + 1;
        let most_read = pool.read_ahead_pages().min(requested);
        let most_announced = (requested - most_read).min(MOST_ANNOUNCED);
        self.leaves += most_read;
        let announces = self.announced.reads(most_read, most_announced);
        if requested < 2 || most_read < 2 && !announces {
            return;
        }
        let node = Node::new(parent.words());
        if node.level() != Some(1) {
            return;
        }
        let most = if announces { most_read + most_announced } else { most_read };
        let near = siblings(node, seek, pool.read_ahead_looks().max(most), range).into_iter();
        let mut leaves: Vec<PageId> = near.filter(|&leaf| !pool.is_resident(leaf)).take(most).collect();
        if !parent.is_valid() {
            return;
        }
        if announces {
            pool.announce(&mut self.announced, &leaves, most_read);
        }
        leaves.truncate(most_read);
        if most_read > 1 {
            // Sorted by page id, so that adjacent leaves are read together.
            leaves.sort_unstable();
            pool.read_ahead_of(leaves);
        }
    }
}

/// Returns the absent leaf and its siblings after it, at most `most` pages, in the order of the scan.
fn siblings(
    node: Node<'_>,
    seek: Seek<'_>,
    most: usize,
    (is_ascending, from, to): (bool, &[u8], Option<&[u8]>),
) -> Vec<PageId> {
    let (at, count) = (seek.slot(node), node.count());
    let slots = if is_ascending {
        let last = to.map_or(count, |to| node.slot_before(to) + 1).min(count);
        at..last.min(at + most)
    } else {
        let first = if node.covers(from) { node.slot_covering(from) } else { 0 };
        first.max((at + 1).saturating_sub(most))..(at + 1).min(count)
    };
    let leaves = slots.map(|slot| node.child(slot));
    if is_ascending { leaves.collect() } else { leaves.rev().collect() }
}
