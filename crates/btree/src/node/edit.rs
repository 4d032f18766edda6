//! In-place changes of one node: the steps of page operations.
//!
//! Each change has a `check_*` function, which changes nothing. The change itself cannot fail after a
//! successful check. Cells are allocated from the bottom of the heap; released bytes count as garbage until a
//! compaction. The time and result of a compaction depend only on the node's bytes, so do and redo give the
//! same page.

use azekura_base::page::PageMut;

use super::{
    COUNT_AT, Cell, GARBAGE_AT, HEAP_AT, Node, SLOT_BYTES, SLOTS_AT, Slot, cell_words, entry_bytes, head_of,
};

/// The reason that a node is corrupt: an inconsistent header, or a change that does not fit the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptNode(pub &'static str);

type Check = Result<(), CorruptNode>;

fn ensure(holds: bool, what: &'static str) -> Check {
    if holds { Ok(()) } else { Err(CorruptNode(what)) }
}

/// Checks the header fields that every change relies on.
pub(super) fn check_header(node: Node<'_>) -> Check {
    ensure(node.level().is_some(), "not a node of a tree")?;
    let slots_end = SLOTS_AT + SLOT_BYTES * node.count();
    ensure(8 * node.heap_words() >= slots_end, "the heap starts inside the slots")?;
    ensure(node.heap_words() <= heap_end(node), "the heap starts inside the fences")
}

fn heap_end(node: Node<'_>) -> usize {
    (SLOTS_AT + node.capacity()) / 8
}

fn check_cell(node: Node<'_>, slot: Slot) -> Check {
    let start = usize::from(slot.offset);
    ensure(start >= node.heap_words() || slot.cell_words() == 0, "a cell lies below the heap")?;
    ensure(start + slot.cell_words() <= heap_end(node), "a cell reaches beyond the heap")
}

/// Checks that an entry of these lengths fits a page.
pub(super) fn check_lengths(node: Node<'_>, suffix_len: usize, value_len: usize) -> Check {
    let page_size = node.page().len();
    let is_possible = entry_bytes(suffix_len, value_len) <= super::max_entry(page_size);
    ensure(suffix_len <= super::max_key(page_size) && is_possible, "the entry is too large for the page")
}

/// Checks that `need` contiguous bytes are available, possibly after a compaction that drops slot `without`.
pub(super) fn check_room(node: Node<'_>, need: usize, without: Option<usize>) -> Check {
    if node.contiguous_free() >= need {
        return Ok(());
    }
    let mut live = 0;
    for i in (0..node.count()).filter(|&i| Some(i) != without) {
        check_cell(node, node.slot(i))?;
        live += 8 * node.slot(i).cell_words();
    }
    ensure(live + SLOT_BYTES * node.count() + need <= node.capacity(), "the entry does not fit the node")
}

/// Checks that `insert` can be done.
///
/// # Errors
///
/// A description of the contradiction.
pub fn check_insert(node: Node<'_>, slot: usize, suffix: &[u8], cell: Cell<'_>) -> Check {
    check_header(node)?;
    ensure(slot <= node.count(), "insertion behind the last slot")?;
    check_lengths(node, suffix.len(), cell.value.len())?;
    check_room(node, entry_bytes(suffix.len(), cell.value.len()), None)
}

/// Checks that `remove` can be done.
///
/// # Errors
///
/// A description of the contradiction.
pub fn check_remove(node: Node<'_>, slot: usize) -> Check {
    check_header(node)?;
    ensure(slot < node.count(), "no such slot")?;
    check_cell(node, node.slot(slot))
}

/// Checks that `replace` can be done.
///
/// # Errors
///
/// A description of the contradiction.
pub fn check_replace(node: Node<'_>, slot: usize, cell: Cell<'_>) -> Check {
    check_remove(node, slot)?;
    let old = node.slot(slot);
    let longest = super::max_inline_value(node.page().len(), old.suffix_len.into());
    ensure(cell.value.len() <= longest, "the value is too large for the page")?;
    let words = cell_words(old.suffix_len.into(), cell.value.len());
    if words <= old.cell_words() { Ok(()) } else { check_room(node, 8 * words, Some(slot)) }
}

/// Inserts an entry before slot `slot`.
pub(crate) fn insert(page: &mut PageMut<'_>, slot: usize, suffix: &[u8], cell: Cell<'_>) {
    let need = entry_bytes(suffix.len(), cell.value.len());
    if Node::new(page.words()).contiguous_free() < need {
        compact(page, None);
    }
    let node = Node::new(page.words());
    let count = node.count();
    let offset = node.heap_words() - cell_words(suffix.len(), cell.value.len());
    page.set_u16(HEAP_AT, offset as u16);
    let at = slot_word(slot);
    page.move_words(at, at + 2, 2 * (count - slot));
    set_entry(page, slot, offset, suffix, cell);
    page.set_u16(COUNT_AT, (count + 1) as u16);
}

/// Writes an entry: its slot, and its cell at word `offset`.
pub(super) fn set_entry(page: &mut PageMut<'_>, slot: usize, offset: usize, suffix: &[u8], cell: Cell<'_>) {
    let new = Slot {
        head: head_of(suffix),
        offset: offset as u16,
        suffix_len: suffix.len() as u16,
        value_len: cell.value.len() as u16,
        flags: cell.flags,
    };
    write_padded(page, 8 * offset, suffix.get(8..).unwrap_or_default());
    write_padded(page, new.value_at(), cell.value);
    set_slot(page, slot, new);
}

/// Removes slot `slot`.
pub(crate) fn remove(page: &mut PageMut<'_>, slot: usize) {
    let node = Node::new(page.words());
    let count = node.count();
    release_cell(page, node.slot(slot));
    let at = slot_word(slot);
    page.move_words(at + 2, at, 2 * (count - slot - 1));
    page.set_u16(COUNT_AT, (count - 1) as u16);
}

/// Replaces the value of slot `slot`. The value is replaced in place if it needs no more words than the old
/// value, and is otherwise stored in a new cell.
pub(crate) fn replace(page: &mut PageMut<'_>, slot: usize, cell: Cell<'_>) {
    let node = Node::new(page.words());
    let old = node.slot(slot);
    let words = cell_words(old.suffix_len.into(), cell.value.len());
    let mut new = Slot { value_len: cell.value.len() as u16, flags: cell.flags, ..old };
    if words <= old.cell_words() {
        let garbage = node.garbage_words() + old.cell_words() - words;
        page.set_u16(GARBAGE_AT, garbage as u16);
    } else {
        let mut rest = Vec::new();
        let rest_len = usize::from(old.suffix_len).saturating_sub(8);
        node.page().read_into(8 * usize::from(old.offset), rest_len, &mut rest);
        if node.contiguous_free() >= 8 * words {
            release_cell(page, old);
        } else {
            compact(page, Some(slot));
        }
        new.offset = (Node::new(page.words()).heap_words() - words) as u16;
        page.set_u16(HEAP_AT, new.offset);
        write_padded(page, 8 * usize::from(new.offset), &rest);
    }
    write_padded(page, new.value_at(), cell.value);
    set_slot(page, slot, new);
}

/// Flips the bits `diff` of the value of slot `slot`, from the value's byte `at` on.
pub(crate) fn flip(page: &mut PageMut<'_>, slot: usize, at: usize, diff: &[u8]) {
    let start = Node::new(page.words()).slot(slot).value_at() + at;
    let mut bytes = [0; 64];
    for (i, diff) in diff.chunks(64).enumerate() {
        let bytes = &mut bytes[..diff.len()];
        page.words().read(start + 64 * i, bytes);
        bytes.iter_mut().zip(diff).for_each(|(byte, diff)| *byte ^= diff);
        page.write(start + 64 * i, bytes);
    }
}

fn slot_word(slot: usize) -> usize {
    (SLOTS_AT + SLOT_BYTES * slot) / 8
}

pub(super) fn set_slot(page: &mut PageMut<'_>, i: usize, slot: Slot) {
    page.set_word(slot_word(i), slot.head);
    page.set_word(slot_word(i) + 1, slot.meta());
}

/// Writes whole words, so that the padding contains no bytes of an older cell.
fn write_padded(page: &mut PageMut<'_>, at: usize, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (i, chunk) in whole.iter().enumerate() {
        page.set_word(at / 8 + i, u64::from_le_bytes(*chunk));
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        page.set_word(at / 8 + whole.len(), u64::from_le_bytes(last));
    }
}

/// Counts a cell as garbage, or returns it to the free space if it is the lowest cell.
fn release_cell(page: &mut PageMut<'_>, slot: Slot) {
    let node = Node::new(page.words());
    let words = slot.cell_words();
    if usize::from(slot.offset) == node.heap_words() {
        page.set_u16(HEAP_AT, (node.heap_words() + words) as u16);
    } else {
        page.set_u16(GARBAGE_AT, (node.garbage_words() + words) as u16);
    }
}

/// Moves all cells against the fences, in slot order. Drops the cell of slot `without`.
fn compact(page: &mut PageMut<'_>, without: Option<usize>) {
    let node = Node::new(page.words());
    let (base, end) = (node.heap_words(), heap_end(node));
    let old: Vec<u64> = (base..end).map(|i| node.page().word(i)).collect();
    let mut to = end;
    for i in (0..node.count()).filter(|&i| Some(i) != without) {
        let slot = node.slot(i);
        let words = slot.cell_words();
        to -= words;
        let from = usize::from(slot.offset).saturating_sub(base);
        for (k, &word) in old[from..from + words].iter().enumerate() {
            page.set_word(to + k, word);
        }
        set_slot(page, i, Slot { offset: to as u16, ..slot });
    }
    page.set_u16(HEAP_AT, to as u16);
    page.set_u16(GARBAGE_AT, 0);
}
