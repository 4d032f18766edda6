//! The sequence of pages that a program touched.

use crate::replace::{Access, PageNo};

const WRITE: u32 = 1 << 31;

/// Page touches in epochs. An epoch is a fixed small number of the program's accesses. Only the first read
/// and the first write of each page in an epoch are kept. So a program that alternates between twenty arrays
/// leaves twenty touches per epoch, not thousands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pages: u32,
    touches: Vec<u32>,
    ends: Vec<usize>,
    epoch_accesses: u32,
}

impl Trace {
    /// Creates an empty trace with epochs of `epoch_accesses` accesses.
    #[must_use]
    pub fn new(epoch_accesses: u32) -> Self {
        Self { pages: 0, touches: Vec::new(), ends: Vec::new(), epoch_accesses }
    }

    /// Creates a trace of reads, each in an epoch of one access.
    #[must_use]
    pub fn of_reads(pages: impl IntoIterator<Item = PageNo>) -> Self {
        let mut trace = Self::new(1);
        for page in pages {
            trace.touch(page, Access::Read);
            trace.end_epoch();
        }
        trace
    }

    /// Creates a trace from a recording: page numbers, each with whether the page was written, and the end
    /// index of each epoch.
    ///
    /// # Panics
    ///
    /// If an epoch ends before it begins or after the last touch, and in the case of [`touch`](Self::touch).
    #[must_use]
    pub fn of_epochs(epoch_accesses: u32, touches: &[(u32, bool)], ends: &[usize]) -> Self {
        let mut trace = Self::new(epoch_accesses);
        let mut start = 0;
        for &end in ends {
            for &(page, write) in &touches[start..end] {
                trace.touch(PageNo(page), if write { Access::Write } else { Access::Read });
            }
            trace.end_epoch();
            start = end;
        }
        trace
    }

    /// Appends a touch to the last epoch.
    ///
    /// # Panics
    ///
    /// If the page number does not fit into 31 bits.
    pub fn touch(&mut self, page: PageNo, access: Access) {
        assert!(page.0 < WRITE, "page {page} of a trace");
        self.pages = self.pages.max(page.0 + 1);
        self.touches.push(page.0 | if access == Access::Write { WRITE } else { 0 });
    }

    /// Ends the current epoch. The next touch begins a new one.
    pub fn end_epoch(&mut self) {
        self.ends.push(self.touches.len());
    }

    /// Returns the number of pages of the program: one more than the highest page that was touched.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the number of accesses of the program in one epoch.
    #[must_use]
    pub fn epoch_accesses(&self) -> u32 {
        self.epoch_accesses
    }

    /// Returns the epochs, each with its touches.
    pub fn epochs(&self) -> impl Iterator<Item = impl Iterator<Item = (PageNo, Access)> + '_> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let open =
            (self.ends.last().copied().unwrap_or(0) < self.touches.len()).then_some(self.touches.len());
        starts
            .zip(self.ends.iter().copied().chain(open))
            .map(|(start, end)| self.touches[start..end].iter().map(|&touch| unpack(touch)))
    }

    /// Returns all touches.
    pub fn touches(&self) -> impl DoubleEndedIterator<Item = (PageNo, Access)> + ExactSizeIterator + '_ {
        self.touches.iter().map(|&touch| unpack(touch))
    }
}

fn unpack(touch: u32) -> (PageNo, Access) {
    (PageNo(touch & !WRITE), if touch & WRITE == 0 { Access::Read } else { Access::Write })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_returned_by_epoch() {
        let mut trace = Trace::new(256);
        trace.touch(PageNo(3), Access::Write);
        trace.touch(PageNo(1), Access::Read);
        trace.end_epoch();
        trace.end_epoch();
        trace.touch(PageNo(0), Access::Read);
        let epochs: Vec<Vec<_>> = trace.epochs().map(Iterator::collect).collect();
        let first = vec![(PageNo(3), Access::Write), (PageNo(1), Access::Read)];
        assert_eq!(epochs, [first, vec![], vec![(PageNo(0), Access::Read)]]);
        assert_eq!((trace.pages(), trace.touches().len()), (4, 3));
    }

    #[test]
    fn a_recording_becomes_the_trace_of_its_epochs() {
        let trace = Trace::of_epochs(8, &[(3, true), (1, false), (0, true)], &[2, 2, 3]);
        let mut expected = Trace::new(8);
        expected.touch(PageNo(3), Access::Write);
        expected.touch(PageNo(1), Access::Read);
        expected.end_epoch();
        expected.end_epoch();
        expected.touch(PageNo(0), Access::Write);
        expected.end_epoch();
        assert_eq!(trace, expected);
    }
}
