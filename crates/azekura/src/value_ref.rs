//! Values that are lent: a small one as its bytes, a large one read from its pages on request.
//!
//! The pages of a large value are not lent themselves. Each is copied to a buffer, which stays in the
//! processor's cache, before the caller sees it: so no latch is held while the caller's code runs. That code
//! may wait for other threads, remove the row, roll back, or let a snapshot become too old, and pages that
//! are freed by it are used again.
//!
//! - **LENT-1** A page is passed on only if it was part of the value when it was copied. In a transaction the
//!   row is locked, and own changes free pages only after the commit. A rollback frees the pages that it
//!   takes back; each read first looks for one ([`UndoMark`]). In a snapshot the check that it is not too
//!   old comes after the copy, because pages are freed after the snapshot is marked.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;

use azekura_btree::node::Cell;
use azekura_btree::{ChainReader, Env, TreeError, ValueRef as Stored};

use crate::Error;
use crate::own_writes::UndoMark;
use crate::snapshot::Snapshot;
use crate::transaction::Transaction;
use crate::value::Value;

/// The protection of a large value's pages.
#[derive(Clone, Copy)]
enum Reader<'r> {
    /// The lock of the row, and the undo log as it was when the row had this value.
    Transaction(&'r Transaction, &'r UndoMark),
    Snapshot(&'r Snapshot),
}

/// The stored value of a row, lent by [`Table::with_value`](crate::Table::with_value),
/// [`Table::for_each`](crate::Table::for_each) and the same calls of a
/// [`SnapshotTable`](crate::SnapshotTable). Its bytes are those of the encoded value; for byte and text
/// values their bytes.
///
/// A value lies in the row if key and value take at most five sixteenths of a page: with pages of 8 KiB,
/// 2,520 bytes under a key of 8 bytes. [`as_slice`](Self::as_slice) lends it without a call that can fail. A
/// larger value has pages of its own, which are read only when its bytes are asked for: the length and the
/// key of the row cost nothing, [`read_at`](Self::read_at) reads only the pages with the requested bytes, and
/// [`for_each_piece`](Self::for_each_piece) never has more than one page in memory.
///
/// Between the calls the row may be changed or removed, also by its own transaction: the value stays the one
/// that was lent. A large value ends with its transaction, with a rollback to a savepoint from before it was
/// lent, and with a snapshot that becomes too old: reading more of it is then an error.
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
    /// Checked: a reference to a large value has the length of one. It is decoded when a call needs it, so
    /// that a lent row costs no more than its address.
    cell: Cell<'r>,
    reader: Reader<'r>,
}

impl fmt::Debug for ValueRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueRef").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<'r> ValueRef<'r> {
    /// Checks a cell before a value is made of it. Apart from that, because a result with a value in it is
    /// copied through memory for each row: half of the time of a scan of small rows.
    #[inline]
    pub(crate) fn check(cell: Cell<'_>) -> Result<(), Error> {
        Ok(Stored::check(cell)?)
    }

    /// The value in a checked cell of a row that `tx` has locked, as of `mark`.
    #[inline]
    pub(crate) const fn locked(cell: Cell<'r>, tx: &'r Transaction, mark: &'r UndoMark) -> Self {
        Self { cell, reader: Reader::Transaction(tx, mark) }
    }

    /// The value in a checked cell of a row that a snapshot sees.
    #[inline]
    pub(crate) const fn seen(cell: Cell<'r>, snapshot: &'r Snapshot) -> Self {
        Self { cell, reader: Reader::Snapshot(snapshot) }
    }

    #[inline]
    fn stored(&self) -> Stored<'r> {
        Stored::of_checked(self.cell)
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.stored().len()
    }

    /// Returns `true` if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored().is_empty()
    }

    /// Returns all bytes if they lie beside the key, as those of small values do; `None` for a large value.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> Option<&'r [u8]> {
        match self.stored() {
            Stored::Inline(bytes) => Some(bytes),
            Stored::Large(_) => None,
        }
    }

    /// Returns all bytes; reads and copies those of a large value.
    ///
    /// # Errors
    ///
    /// Of a large value only: damage, an error of reading its pages, [`Error::SnapshotTooOld`],
    /// [`Error::Aborted`], or [`Error::Invalid`] if the transaction was rolled back to a savepoint from
    /// before the value was lent.
    #[inline]
    pub fn bytes(&self) -> Result<Cow<'r, [u8]>, Error> {
        match self.stored() {
            Stored::Inline(bytes) => Ok(Cow::Borrowed(bytes)),
            Stored::Large(_) => self.read_whole().map(Cow::Owned),
        }
    }

    /// Copies the bytes from `offset` on to `out`, as many as there are and fit; returns their number.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes).
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        self.protected(|env| self.stored().read_at(env, offset, out))
    }

    /// Calls `each` with all bytes, in order, until it breaks or fails: those of a small value at once, those
    /// of a large one page by page. Not called for an empty value.
    ///
    /// # Errors
    ///
    /// As for [`bytes`](Self::bytes), and errors of `each`.
    pub fn for_each_piece(
        &self,
        mut each: impl FnMut(&[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        match self.stored() {
            Stored::Inline([]) => {}
            Stored::Inline(bytes) => _ = each(bytes)?,
            Stored::Large(reference) => {
                let mut pages = ChainReader::new(self.env(), reference)?;
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

    /// Decodes the value of a row of this table.
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

    fn env(&self) -> &'r Env {
        match self.reader {
            Reader::Transaction(tx, _) => &tx.shared().env,
            Reader::Snapshot(snapshot) => &snapshot.db().env,
        }
    }

    /// Reads pages of the value, and returns the result if they still were the value's (LENT-1).
    fn protected<T>(&self, read: impl FnOnce(&Env) -> Result<T, TreeError>) -> Result<T, Error> {
        if matches!(self.stored(), Stored::Inline(_)) {
            return Ok(read(self.env())?);
        }
        match self.reader {
            Reader::Transaction(tx, mark) => {
                tx.check_not_undone(*mark)?;
                Ok(read(self.env())?)
            }
            Reader::Snapshot(snapshot) => {
                snapshot.db().lifetime.check_process()?;
                let result = read(self.env());
                // First: a snapshot that is too old may meet freed pages, which are not damage.
                snapshot.checked(())?;
                Ok(result?)
            }
        }
    }
}
