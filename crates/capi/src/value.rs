//! Reads of parts of values, which do not copy the whole value.

use std::ffi::{c_char, c_int};
use std::{ptr, slice};

use azekura::{Error, TableDefinition, ValueRef};

use super::{
    azk_error, azk_slice, azk_snapshot, azk_status, azk_tx, bytes, guarded, handle, null, put, text, with_tx,
};

/// The arguments of a read of a part of a value.
struct Part {
    offset: u64,
    to: *mut u8,
    len: usize,
}

impl Part {
    /// Returns an error if `to` and `len` cannot describe a buffer.
    fn checked(self) -> Result<Self, Error> {
        match (self.to.is_null(), isize::try_from(self.len)) {
            (_, Err(_)) => {
                Err(Error::Invalid(format!("argument len is {} bytes; no memory has that many", self.len)))
            }
            (true, Ok(1..)) => Err(null("to")),
            _ => Ok(self),
        }
    }

    /// Copies the part of a value; returns the number of copied bytes and the length of the value.
    unsafe fn read(&self, value: &ValueRef<'_>) -> Result<(usize, u64), Error> {
        let rest = value.len().saturating_sub(self.offset);
        let len = self.len.min(usize::try_from(rest).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok((0, value.len()));
        }
        // SAFETY: CAPI-2: `to` points to at least `len` writable bytes. The bytes have values before they
        // are borrowed.
        let out = unsafe {
            ptr::write_bytes(self.to, 0, len);
            slice::from_raw_parts_mut(self.to, len)
        };
        Ok((value.read_at(self.offset, out)?, value.len()))
    }

    /// Stores the results of a read; `None` means that there is no row.
    unsafe fn deliver(
        read: Option<(usize, u64)>,
        (copied, size, found): (*mut usize, *mut u64, *mut c_int),
    ) -> Result<(), Error> {
        let (bytes, of) = read.unwrap_or_default();
        // SAFETY: CAPI-2.
        unsafe {
            put(copied, bytes, "copied")?;
            if !size.is_null() {
                put(size, of, "size")?;
            }
            put(found, c_int::from(read.is_some()), "found")
        }
    }
}

/// Copies a part of the value at a key to the memory at `to`: the bytes from `offset` on, at most `len`.
/// Sets `copied` to their number, which is less than `len` only at the end of the value, and `size`, unless
/// it is null, to the length of the whole value. Of a large value, only the pages with these bytes are read.
/// Sets `found` to 1 if there is a row, otherwise to 0. With a `len` of 0, `to` may be null, and the call
/// returns the length of the value.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `to` points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_read_at(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    offset: u64,
    to: *mut u8,
    len: usize,
    copied: *mut usize,
    size: *mut u64,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        let part = Part { offset, to, len }.checked()?;
        let read = with_tx(&tx.tx, |open| {
            let table = open.table(&TableDefinition::<[u8], [u8]>::raw(table))?;
            // SAFETY: CAPI-2.
            table.with_value(key, |value| unsafe { part.read(&value) })
        })?;
        // SAFETY: CAPI-2.
        unsafe { Part::deliver(read, (copied, size, found)) }
    })
}

/// Copies a part of a value as `azk_read_at` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `to` points to `len` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_read_at(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    key: azk_slice,
    offset: u64,
    to: *mut u8,
    len: usize,
    copied: *mut usize,
    size: *mut u64,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (from, table) = unsafe { (handle(snapshot, "snapshot")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let key = unsafe { bytes(key, "key")? };
        let part = Part { offset, to, len }.checked()?;
        let table = from.snapshot.table(&TableDefinition::raw(table))?;
        // SAFETY: CAPI-2.
        let read = table.with_value(key, |value| unsafe { part.read(&value) })?;
        // SAFETY: CAPI-2.
        unsafe { Part::deliver(read, (copied, size, found)) }
    })
}
