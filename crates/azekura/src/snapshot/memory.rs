//! Memory of a thread for its next reads by snapshots: a snapshot for each read is common, so a read makes as
//! few allocations as possible.

use std::cell::Cell;

use crate::transaction::TypesOf;

/// Largest buffer that a thread keeps, in bytes.
const KEPT_BYTES: usize = 64 << 10;

/// Buffers for an encoded key and for a value.
#[derive(Default)]
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
}

azekura_base::per_thread! {
    static BUFFERS: Cell<Option<Buffers>> = const { Cell::new(None) };
}

/// Lends buffers for a key and for a value, both empty, to `read`; a read inside of it gets other ones.
pub(super) fn with_buffers<T>(read: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> T) -> T {
    // A thread that is ending keeps nothing.
    let mut buffers = BUFFERS.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = read(&mut buffers.key, &mut buffers.value);
    if buffers.key.capacity().max(buffers.value.capacity()) <= KEPT_BYTES {
        buffers.key.clear();
        buffers.value.clear();
        let _ = BUFFERS.try_with(|kept| kept.set(Some(buffers)));
    }
    result
}

/// A row of the catalog with the types that it was found to have.
struct CheckedRow {
    row: Vec<u8>,
    types: TypesOf,
}

azekura_base::per_thread! {
    static CHECKED: Cell<Option<CheckedRow>> = const { Cell::new(None) };
}

/// Returns whether this catalog row is the last one that this thread has [noted](note_checked), with the same
/// types. So the names of the types need not be compared.
pub(super) fn is_checked(row: &[u8], types: TypesOf) -> bool {
    let Some(last) = CHECKED.try_with(Cell::take).ok().flatten() else { return false };
    let is_same = last.types.is(types) && last.row == row;
    let _ = CHECKED.try_with(|checked| checked.set(Some(last)));
    is_same
}

/// Notes that a catalog row has these types.
pub(super) fn note_checked(row: &[u8], types: TypesOf) {
    let _ = CHECKED.try_with(|checked| checked.set(Some(CheckedRow { row: row.to_vec(), types })));
}
