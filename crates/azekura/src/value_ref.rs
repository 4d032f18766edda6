//! Values that are lent: a small value as its bytes, a large value read from its pages on request.
//!
//! The pages of a large value are not lent themselves. Each page is copied to a buffer, which fits in the
//! processor's cache, and the caller gets the copy. So no latch is held while the caller's code runs. The
//! caller's code may wait for other threads, remove the row, roll back, or let a snapshot become too old.
//! Pages that it frees may be reused at once.
//!
//! - **LENT-1** A page is passed to the caller only if it was part of the value when it was copied. In a
//!   transaction the row is locked, and the transaction's own changes free pages only after the commit. A
//!   rollback frees the pages of values that it removes, so each read first checks for a rollback
//!   ([`UndoMark`]). For a snapshot, the check of its age comes after the copy, because pages are freed after
//!   the snapshot is marked as too old.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

use azekura_btree::node::Cell;
use azekura_btree::{ChainReader, Env, OverflowRef, TreeError, ValueRef as Stored};

use crate::Error;
use crate::own_writes::UndoMark;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;
use crate::value::Value;
use crate::value_reader::ValueReader;

/// The source of a large value, and the protection of its pages.
#[derive(Clone, Copy)]
enum Reader<'r> {
    /// A transaction that has locked the row, and the position in its undo log when the row had this value.
    Transaction(&'r Transaction, &'r UndoMark),
    Snapshot(&'r Snapshot),
}

/// The stored value of a row, lent by [`Table::with_value`](crate::Table::with_value),
/// [`Table::for_each`](crate::Table::for_each) and the same calls of a
/// [`SnapshotTable`](crate::SnapshotTable). The bytes are those of the encoded value; for values of bytes or
/// text, these are their bytes.
///
/// A value is stored in the row if key and value together have at most five sixteenths of a page. With pages
/// of 8 KiB and a key of 8 bytes, these are values up to 2,520 bytes. [`as_slice`](Self::as_slice) lends such
/// a value without a call that can fail. A larger value is stored in overflow pages, which are read only when
/// its bytes are requested. The length of the value and the key of the row need no overflow page,
/// [`read_at`](Self::read_at) reads only the pages with the requested bytes, and
/// [`for_each_piece`](Self::for_each_piece) never has more than one page in memory.
///
/// Between the calls, the transaction may change or remove the row; the lent value stays the same. Three
/// events make a large value invalid: the end of its transaction, a rollback to a savepoint older than the
/// lent value, and a snapshot that becomes too old. Further reads then return an error.
///
/// # Examples
///
/// ```
/// use std::ops::ControlFlow::Continue;
///
/// use azekura::{Database, Error, TableDefinition};
/// const FILES: TableDefinition<str, [u8]> = TableDefinition::new("files");
///
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| tx.table(&FILES)?.insert("movie", &vec![7; 1 << 20]))?;
/// let copied = db.read(|snapshot| {
///     snapshot.table(&FILES)?.with_value("movie", |value| {
///         assert_eq!(value.len(), 1 << 20); // reads no page of the value
///         let mut header = [0; 16];
///         assert_eq!(value.read_at(0, &mut header)?, 16); // reads one
///         let mut copy = Vec::new(); // a file, or a connection
///         value.for_each_piece(|piece| {
///             copy.extend_from_slice(piece);
///             Ok(Continue(()))
///         })?;
///         Ok(copy.len())
///     })
/// })?;
/// assert_eq!(copied, Some(1 << 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct ValueRef<'r> {
    /// The cell, which was checked: a reference to a large value has the correct length. The reference is
    /// decoded when a call needs it, so that a lent row costs only its address.
    cell: Cell<'r>,
    reader: Reader<'r>,
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueRef").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<'r> ValueRef<'r> {
    /// Checks a cell before a [`ValueRef`] is created. The check is a separate function: a result that
    /// contains a value would be copied through memory for each row, which takes half of the time of a scan
    /// of small rows.
    #[inline]
    pub(crate) fn check(cell: Cell<'_>) -> Result<(), Error> {
        Ok(Stored::check(cell)?)
    }

    /// Returns the value in a checked cell of a row that `tx` has locked, as of `mark`.
    #[inline]
    pub(crate) const fn locked(cell: Cell<'r>, tx: &'r Transaction, mark: &'r UndoMark) -> Self {
        Self { cell, reader: Reader::Transaction(tx, mark) }
    }

    /// Returns the value in a checked cell of a row that a snapshot sees.
    #[inline]
    pub(crate) const fn seen(cell: Cell<'r>, snapshot: &'r Snapshot) -> Self {
        Self { cell, reader: Reader::Snapshot(snapshot) }
    }

    #[inline]
    fn stored(&self) -> Stored<'r> {
        Stored::of_checked(self.cell)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stored().len()
    }

    /// Returns `true` if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored().is_empty()
    }

    /// Returns all bytes of a small value, which is stored in the row; `None` for a large value.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> Option<&'r [u8]> {
        match self.stored() {
            Stored::Inline(bytes) => Some(bytes),
            Stored::Large(_) => None,
        }
    }

    /// Returns all bytes; reads and copies the pages of a large value.
    ///
    /// # Errors
    ///
    /// For a large value only: damage, an error of reading its pages, [`Error::SnapshotTooOld`],
    /// [`Error::Aborted`], or [`Error::Invalid`] if the transaction was rolled back to a savepoint older than
    /// the lent value.
    #[inline]
    pub fn bytes(&self) -> Result<Cow<'r, [u8]>, Error> {
        match self.stored() {
            Stored::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Stored::Large(_) => self.read_whole().map(Cow::Owned),
        }
    }

    /// Copies the bytes from `offset` on to `out`, until the value ends or `out` is full; returns their
    /// number.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        self.protected(|env| self.stored().read_at(env, offset, out))
    }

    /// Calls `each` with all bytes, in order, until `each` breaks or fails: the bytes of a small value at
    /// once, those of a large value page by page. `each` is not called for an empty value.
    ///
    /// # Errors
    ///
    /// The errors of [`bytes`](Self::bytes), and errors of `each`.
    pub fn for_each_piece(
        &self,
        mut each: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        match self.stored() {
            Stored::Inline([]) => {}
            Stored::Inline(bytes) => _ = each(bytes)?,
            Stored::Large(reference) => {
                let mut pages =
                    ChainReader::new(self.env(), reference).map_err(|error| self.failed(error))?;
                let mut piece = Vec::new();
                loop {
                    piece.clear();
                    if !self.protected(|_| pages.next_page(&mut piece))? || each(&piece)?.is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a reader of the bytes, for a copy to a file or a connection without the whole value in memory.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// # use azekura::{Database, Error, TableDefinition};
    /// const FILES: TableDefinition<str, [u8]> = TableDefinition::new("files");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let stored = db.transact(|tx| {
    ///     let mut file = std::io::repeat(7).take(20 << 20); // any `std::io::Read`
    ///     tx.table(&FILES)?.insert_from("movie", &mut file)
    /// })?;
    /// assert_eq!(stored, 20 << 20);
    /// let copied = db.read(|snapshot| {
    ///     snapshot.table(&FILES)?.with_value("movie", |value| {
    ///         std::io::copy(&mut value.reader(), &mut std::io::sink()).map_err(Error::other)
    ///     })
    /// })?;
    /// assert_eq!(copied, Some(20 << 20));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn reader(&self) -> ValueReader<'r> {
        ValueReader::new(*self)
    }

    /// Returns the reference to the pages of a large value.
    pub(crate) fn large(&self) -> Option<OverflowRef> {
        match self.stored() {
            Stored::Inline(_) => None,
            Stored::Large(reference) => Some(reference),
        }
    }

    /// Decodes the value of a row of the table with this name.
    pub(crate) fn decode<V: Value + ?Sized>(&self, table: &str) -> Result<V::Owned, Error> {
        let decoded = match self.stored() {
            Stored::Inline(bytes) => V::decode(bytes),
            Stored::Large(_) => V::decode_vec(self.read_whole()?),
        };
        decoded.map_err(|source| Error::Decode { table: table.to_owned(), source })
    }

    fn read_whole(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.protected(|env| self.stored().read(env, &mut bytes))?;
        Ok(bytes)
    }

    pub(crate) fn env(&self) -> &'r Env {
        match self.reader {
            Reader::Transaction(tx, _) => &tx.shared().env,
            Reader::Snapshot(snapshot) => &snapshot.db().env,
        }
    }

    /// Converts the error of a read; the error of a damaged page names the store.
    pub(crate) fn failed(&self, error: TreeError) -> Error {
        match self.reader {
            Reader::Transaction(tx, _) => Error::from(error).in_store(&tx.shared().path),
            Reader::Snapshot(snapshot) => snapshot.failed(error),
        }
    }

    /// Reads pages of the value, and returns the result if they were still part of the value (LENT-1).
    pub(crate) fn protected<T>(&self, read: impl FnOnce(&Env) -> Result<T, TreeError>) -> Result<T, Error> {
        if matches!(self.stored(), Stored::Inline(_)) {
            return read(self.env()).map_err(|error| self.failed(error));
        }
        match self.reader {
            Reader::Transaction(tx, mark) => {
                tx.check_not_undone(*mark)?;
                read(self.env()).map_err(|error| self.failed(error))
            }
            Reader::Snapshot(snapshot) => {
                snapshot.db().lifetime.check_process()?;
                let result = read(self.env());
                // Checked first, because a snapshot that is too old may read freed pages, which are not
                // damage.
                snapshot.checked(())?;
                result.map_err(|error| self.failed(error))
            }
        }
    }
}
