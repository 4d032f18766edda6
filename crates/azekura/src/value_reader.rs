//! Values as a stream of bytes.

use std::fmt;
use std::io::{self, Read};

use azekura_btree::{ChainReader, OverflowRef};

use crate::Error;
use crate::value_ref::ValueRef;

/// Reads the bytes of a value in order; made by [`ValueRef::reader`].
///
/// Has one page of a large value in memory. A read after a failed one continues at the same byte, or fails
/// again. A failed read returns an [`io::Error`] with the [`Error`] as its source; [`ValueRef::bytes`] lists
/// the errors.
pub struct ValueReader<'r> {
    value: ValueRef<'r>,
    /// The pages of a large value that are not read yet; `None` before the first read.
    pages: Option<ChainReader<'r>>,
    /// The current page of a large value.
    page: Vec<u8>,
    /// Bytes of the page, or of a small value, that were read.
    at: usize,
}

impl fmt::Debug for ValueReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader").field("value", &self.value).finish_non_exhaustive()
    }
}

impl<'r> ValueReader<'r> {
    pub(crate) const fn new(value: ValueRef<'r>) -> Self {
        Self { value, pages: None, page: Vec::new(), at: 0 }
    }

    /// Reads the next page of a large value; it is empty after the last one.
    fn next_page(&mut self, reference: OverflowRef) -> Result<(), Error> {
        let Self { value, pages, page, at } = self;
        page.clear();
        *at = 0;
        let pages = match pages {
            Some(pages) => pages,
            None => {
                let first = ChainReader::new(value.env(), reference);
                pages.insert(first.map_err(|error| value.failed(error))?)
            }
        };
        // Bytes that were copied from pages of another value are not passed on.
        value.protected(|_| pages.next_page(page)).inspect_err(|_| page.clear())?;
        Ok(())
    }
}

impl Read for ValueReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(reference) = self.value.large()
            && self.at == self.page.len()
        {
            self.next_page(reference).map_err(io::Error::other)?;
        }
        let mut rest = &self.value.as_slice().unwrap_or(&self.page)[self.at..];
        let read = rest.read(out)?;
        self.at += read;
        Ok(read)
    }
}
