//! Read-ahead: a scan that comes to a leaf which is not in the pool has the next ones brought in with it.
//!
//! 1. The parent of the absent leaf names its siblings. Take those from the leaf on in the scan's direction,
//!    as far as the range goes.
//! 2. As many as the scan has earned: none besides the leaf at its first miss, then twice as many each time,
//!    up to what the pool takes at once ([`BufferPool::read_ahead_pages`]). So a short scan reads nothing in
//!    vain, and a long one reads less often.
//! 3. Validate the parent; what it said counts for nothing if it has changed. The pool reads siblings that
//!    lie side by side by one call.
//!
//! It ends at the parent's last child: the next parent's first leaf is the next miss. A page that is no leaf
//! of the tree any more when it is read does no harm: it is in the pool, and nobody looks at it.

use azekura_base::PageId;
use azekura_buffer::{BufferPool, OptimisticPage};

use crate::descent::Seek;
use crate::node::Node;

/// What a scan has earned.
#[derive(Clone, Debug, Default)]
pub(super) struct Ahead {
    misses: u32,
}

impl Ahead {
    /// Brings leaves in; `range` is whether the scan ascends, and what is left of it.
    pub(super) fn leaf_is_absent(
        &mut self,
        pool: &BufferPool,
        parent: OptimisticPage<'_>,
        seek: Seek<'_>,
        range: (bool, &[u8], Option<&[u8]>),
    ) {
        let most = pool.read_ahead_pages().min(1 << self.misses.min(16));
        self.misses += 1;
        if most < 2 {
            return;
        }
        let node = Node::new(parent.words());
        if node.level() != Some(1) {
            return;
        }
        let mut leaves = siblings(node, seek, most, range);
        if parent.is_valid() {
            // In the order of their places, so that neighbours are found.
            leaves.sort_unstable();
            pool.read_ahead_of(leaves);
        }
    }
}

/// Steps 1 and 2.
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
    slots.map(|slot| node.child(slot)).collect()
}
