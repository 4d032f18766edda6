//! One level of a tree that is built bottom-up: collects the entries of the node that is being filled.
//!
//! A node's prefix follows from both of its fences, and its upper fence from the entry after its last one. So
//! entries are collected until the end of the node is determined. The node is cut before the entry with which
//! it would be too full, one entry later. The further a node reaches, the shorter is its prefix and the
//! longer are its entries. So once a cut is too late, all later cuts are too late. One entry always fits
//! (5/16 of a page, and 1/4 for each fence), and so do two children of an inner node.

use azekura_base::TreeId;

use crate::node::{Cell, CorruptNode, NodeSpec, Scratch, common_prefix, entry_bytes, separator};

/// A complete set of a node's entries, and its lower fence.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) level: u8,
    pub(super) lower: Vec<u8>,
    pub(super) page: Scratch,
}

impl Built {
    /// Returns `true` if the node is the first of its level.
    pub(super) fn is_first(&self) -> bool {
        self.lower.is_empty()
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Offset of the key; the value follows the key.
    at: usize,
    key_len: u16,
    value_len: u16,
    flags: u16,
}

/// The node of one level that is being filled; see the module head.
#[derive(Debug)]
pub(super) struct Filler {
    page_size: usize,
    tree: TreeId,
    level: u8,
    /// Keys and values, one after the other.
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    lower: Vec<u8>,
    /// Upper bound of the size of all entries in a node, in bytes: their size without a prefix.
    most_used: usize,
    /// Prefix length and size in bytes of the node of all entries but the last, if they were computed. With
    /// two or more entries, this node fits a page.
    before_last: Option<(usize, usize)>,
}

impl Filler {
    pub(super) fn new(page_size: usize, tree: TreeId, level: u8) -> Self {
        Self {
            page_size,
            tree,
            level,
            bytes: Vec::new(),
            entries: Vec::new(),
            lower: Vec::new(),
            most_used: 0,
            before_last: None,
        }
    }

    /// Returns the key of the last entry. Only before the first entry there is none.
    pub(super) fn last_key(&self) -> Option<&[u8]> {
        self.entries.last().map(|&last| self.key(last))
    }

    /// Adds an entry with a key above all previous keys; returns the node that it completes, if any. `page`
    /// returns memory in which the node is built.
    pub(super) fn push(
        &mut self,
        key: &[u8],
        cell: Cell<'_>,
        page: impl FnOnce() -> Scratch,
    ) -> Result<Option<Built>, CorruptNode> {
        let mut closed = None;
        if !self.entries.is_empty() && !self.fits_before(key) {
            let end = self.entries.len() - 1;
            let fence = self.fence_before(end).to_vec();
            closed = Some(self.close(end, fence, page())?);
            let fits = self.fits_before(key);
            debug_assert!(fits, "one entry fits a node");
        }
        let at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(cell.value);
        self.entries.push(Entry {
            at,
            key_len: key.len() as u16,
            value_len: cell.value.len() as u16,
            flags: cell.flags,
        });
        self.most_used += entry_bytes(key.len(), cell.value.len());
        Ok(closed)
    }

    /// Returns `true` if a node of all entries fits a page. The next entry has the key `key`.
    fn fits_before(&mut self, key: &[u8]) -> bool {
        let Some((&last, before)) = self.entries.split_last() else { return true };
        // True for most entries of a node. No separator is longer than `key`.
        if before.is_empty() || self.is_room(self.most_used, key) {
            self.before_last = None;
            return true;
        }
        let fence = if self.level == 0 { separator(self.key(last), key) } else { key };
        let prefix_len = common_prefix(&self.lower, fence);
        let used = match self.before_last {
            Some((of, used)) if of == prefix_len => {
                used + self.entry_bytes(self.entries.len() - 1, 0, prefix_len)
            }
            _ => self.bytes_from(0, prefix_len),
        };
        let is_room = self.is_room(used, fence);
        if is_room {
            self.before_last = Some((prefix_len, used));
        }
        is_room
    }

    /// Returns the size of entry `i` in a node that begins with entry `first` and has a prefix of this
    /// length.
    fn entry_bytes(&self, i: usize, first: usize, prefix_len: usize) -> usize {
        let entry = self.entries[i];
        let is_first_child = self.level > 0 && i == first;
        let suffix_len =
            if is_first_child { 0 } else { usize::from(entry.key_len).saturating_sub(prefix_len) };
        entry_bytes(suffix_len, entry.value_len.into())
    }

    /// Returns the size of the entries from `first` on in one node with a prefix of this length.
    fn bytes_from(&self, first: usize, prefix_len: usize) -> usize {
        (first..self.entries.len()).map(|i| self.entry_bytes(i, first, prefix_len)).sum()
    }

    /// Returns `true` if entries of `used` bytes fit a node with this upper fence. Nodes are filled
    /// completely, like nodes of rows that are inserted in key order. Free space would be written by each
    /// load, and the first rows in another order would split the node anyway.
    fn is_room(&self, used: usize, upper: &[u8]) -> bool {
        used <= self.spec(upper).capacity(self.page_size)
    }

    fn spec<'a>(&'a self, upper: &'a [u8]) -> NodeSpec<'a> {
        NodeSpec { level: self.level, tree: self.tree, lower: &self.lower, upper }
    }

    fn key(&self, entry: Entry) -> &[u8] {
        &self.bytes[entry.at..entry.at + usize::from(entry.key_len)]
    }

    fn cell(&self, entry: Entry) -> Cell<'_> {
        let at = entry.at + usize::from(entry.key_len);
        Cell { flags: entry.flags, value: &self.bytes[at..at + usize::from(entry.value_len)] }
    }

    /// Makes a node of the first `end` entries. The other entries belong to the next node, which begins at
    /// `fence`.
    fn close(&mut self, end: usize, fence: Vec<u8>, mut page: Scratch) -> Result<Built, CorruptNode> {
        page.format(self.spec(&fence))?;
        page.push_all(self.entries[..end].iter().map(|&entry| (self.key(entry), self.cell(entry))))?;
        let start = self.entries.get(end).map_or(self.bytes.len(), |entry| entry.at);
        self.bytes.drain(..start);
        self.entries.drain(..end);
        self.entries.iter_mut().for_each(|entry| entry.at -= start);
        self.most_used = self.bytes_from(0, 0);
        self.before_last = None;
        let lower = std::mem::replace(&mut self.lower, fence);
        Ok(Built { level: self.level, lower, page })
    }

    /// Ends the level and returns its last node or its last two nodes. The last node has no upper fence, and
    /// so no prefix: entries that filled one node may need two.
    pub(super) fn finish(&mut self, mut page: impl FnMut() -> Scratch) -> Result<Vec<Built>, CorruptNode> {
        let mut built = Vec::new();
        let mut first = 0;
        while first + 1 < self.entries.len() && !self.is_room_for_last(first) {
            first += 1;
        }
        if first > 0 {
            let fence = self.fence_before(first).to_vec();
            built.push(self.close(first, fence, page())?);
        }
        built.push(self.close(self.entries.len(), Vec::new(), page())?);
        Ok(built)
    }

    /// Returns `true` if the entries from `first` on fit the level's last node.
    fn is_room_for_last(&self, first: usize) -> bool {
        let lower = if first == 0 { &self.lower } else { self.fence_before(first) };
        let spec = NodeSpec { level: self.level, tree: self.tree, lower, upper: b"" };
        self.bytes_from(first, 0) <= spec.capacity(self.page_size)
    }

    /// Returns the separator between entry `first`, which is not entry 0, and the entry before it.
    fn fence_before(&self, first: usize) -> &[u8] {
        let key = self.key(self.entries[first]);
        if self.level == 0 { separator(self.key(self.entries[first - 1]), key) } else { key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Expected, Node, max_inline_value, verify_node};

    const PAGE: usize = 4096;
    const TREE: TreeId = TreeId(5);

    /// Fills one level, checks that every node is valid and full and that together they hold the entries, and
    /// returns the fill of each node.
    fn fill(level: u8, rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<f64> {
        let mut filler = Filler::new(PAGE, TREE, level);
        let mut built = Vec::new();
        for (key, value) in rows {
            let cell = Cell::inline(value);
            built.extend(filler.push(key, cell, || Scratch::new(PAGE)).expect("fits"));
        }
        built.extend(filler.finish(|| Scratch::new(PAGE)).expect("fits"));
        let mut found = Vec::new();
        for (i, node) in built.iter().enumerate() {
            let upper = built.get(i + 1).map_or(&[][..], |next| &next.lower);
            let expected = Expected { level, tree: TREE, lower: &node.lower, upper };
            verify_node(node.page.page(), expected, &mut |what| panic!("node {i}: {what}"));
            let view = node.page.node();
            assert!(view.count() > 0, "node {i} is empty");
            for slot in 0..view.count() {
                let mut value = Vec::new();
                view.value_into(view.slot(slot), &mut value);
                found.push((if level == 0 { view.key(slot) } else { view.child_key(slot) }, value));
            }
        }
        assert!(found == rows, "{} entries in, {} out", rows.len(), found.len());
        let mut first = 0;
        for (i, node) in built.iter().enumerate().take(built.len().saturating_sub(2)) {
            let end = first + node.page.node().count();
            assert!(!fits(level, &node.lower, &rows[first..=end], &rows[end + 1].0), "node {i} has room");
            first = end;
        }
        built.iter().map(|node| fullness(node.page.node())).collect()
    }

    /// Returns `true` if these entries fit a node that ends before the key `next`.
    fn fits(level: u8, lower: &[u8], entries: &[(Vec<u8>, Vec<u8>)], next: &[u8]) -> bool {
        let last = entries.last().map_or(&[][..], |(key, _)| key);
        let upper = if level == 0 { separator(last, next) } else { next };
        let spec = NodeSpec { level, tree: TREE, lower, upper };
        let size = |(i, (key, value)): (usize, &(Vec<u8>, Vec<u8>))| {
            let is_first_child = level > 0 && i == 0;
            let suffix_len = if is_first_child { 0 } else { key.len() - spec.prefix_len() };
            entry_bytes(suffix_len, value.len())
        };
        entries.iter().enumerate().map(size).sum::<usize>() <= spec.capacity(PAGE)
    }

    fn fullness(node: Node<'_>) -> f64 {
        node.used() as f64 / node.capacity() as f64
    }

    fn rows(
        count: u32,
        key: impl Fn(u32) -> Vec<u8>,
        value_len: impl Fn(u32) -> usize,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..count).map(|i| (key(i), vec![i as u8; value_len(i)])).collect()
    }

    #[test]
    fn small_rows_leave_every_node_but_the_last_full() {
        let filled = fill(0, &rows(5000, |i| i.to_be_bytes().to_vec(), |_| 20));
        let (last, others) = filled.split_last().expect("nodes");
        assert!(others.iter().all(|&full| (0.98..=1.0).contains(&full)), "{others:?}");
        assert!(*last > 0.0);
    }

    #[test]
    fn long_prefixes_are_kept_once_in_every_node_but_the_last() {
        let long = |i: u32| [&[b'p'; 480][..], &i.to_be_bytes()].concat();
        let filled = fill(0, &rows(3000, long, |_| 8));
        // Without prefixes a page would hold seven of these rows.
        assert!(filled.len() < 45, "{} nodes", filled.len());
    }

    #[test]
    fn the_largest_rows_and_keys_that_share_nothing_fit() {
        let key = |i: u32| {
            let mut key = vec![(i % 7) as u8; PAGE / 4];
            key[..4].copy_from_slice(&(i.wrapping_mul(3)).to_be_bytes());
            key
        };
        fill(0, &rows(300, key, |_| max_inline_value(PAGE, PAGE / 4)));
        let long_value = |i| if i % 3 == 0 { max_inline_value(PAGE, 4) } else { 0 };
        fill(0, &rows(300, |i| i.to_be_bytes().to_vec(), long_value));
        let growing = |i: u32| vec![b'a'; i as usize];
        fill(0, &rows(PAGE as u32 / 4, growing, |i| i as usize % 50));
        // Long keys that differ at their beginning, at their end, and in the middle, and short ones between.
        let mixed = |i: u32| {
            let mut key = vec![7; [PAGE / 4, 3, PAGE / 4, PAGE / 5][i as usize % 4]];
            key[..2].copy_from_slice(&((i / 40) as u16).to_be_bytes());
            let at = [2, key.len() - 1][i as usize / 40 % 2];
            key[at] = (i % 40) as u8;
            key
        };
        let mut keys: Vec<_> = (0..2000).map(mixed).collect();
        keys.sort_unstable();
        keys.dedup();
        let row = |key: &Vec<u8>| (key.clone(), vec![1; key.len() % 300]);
        fill(0, &keys.iter().map(row).collect::<Vec<_>>());
        // Each inner node of the upper levels has at least two children, so a tree of such keys ends.
        let mut children: Vec<_> = keys.iter().map(|key| (key.clone(), vec![1; 8])).collect();
        children[0].0.clear();
        let nodes = fill(1, &children).len();
        assert!(nodes <= children.len() / 2 + 1, "{nodes} nodes of {} children", children.len());
    }

    #[test]
    fn inner_levels_begin_at_the_fence_of_their_first_child() {
        let mut children = rows(2000, |i| format!("k{i:05}").into_bytes(), |_| 8);
        children[0].0.clear(); // the leftmost child is unbounded below
        fill(3, &children);
    }

    #[test]
    fn one_entry_makes_one_node() {
        assert_eq!(fill(0, &rows(1, |_| Vec::new(), |_| 0)).len(), 1);
    }
}
