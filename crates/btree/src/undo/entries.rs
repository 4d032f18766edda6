//! The bytes of a transaction's undo entries, in segments.
//!
//! The newest bytes are in a vector, the buffer. When the buffer has a quarter MiB, its bytes are copied to
//! memory that is mapped from the system, and the buffer is emptied. So a long undo log never moves as a
//! whole in order to grow, and its memory returns to the system when the transaction ends. The memory of one
//! large vector would stay in the allocator's arena of the thread, and so would that of each smaller size
//! that the vector had before.

use azekura_base::zeroed::ZeroedArray;

/// Number of bytes from which the buffer becomes a segment. The removal of all rows in one transaction takes
/// 1.02 times the processor time that it took with one vector (rows of 100 and of 1,000 bytes); its rollback
/// takes 1.06 and 0.93 times.
const SEGMENT_BYTES: usize = 256 << 10;

/// Bytes of undo entries, oldest first. Positions count from the first byte of the oldest entry.
///
/// - **SEGMENT-1** The segments and the buffer are adjacent, in this order, and no entry is in two of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    full: Vec<Segment>,
    /// The newest bytes, from position `first` on.
    buffer: Vec<u8>,
    first: usize,
    /// Largest size of the buffer so far. This memory is still in use.
    most_buffered: usize,
}

#[derive(Clone, Debug)]
struct Segment {
    /// Position of the first byte.
    first: usize,
    bytes: ZeroedArray<u8>,
}

impl Entries {
    /// Returns the number of bytes, which is the position of the next entry.
    pub(super) const fn len(&self) -> usize {
        self.first + self.buffer.len()
    }

    /// Returns the number of bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        self.first + self.most_buffered.max(self.buffer.len())
    }

    /// Appends the bytes that `write` appends to the buffer: whole entries.
    #[inline]
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.buffer.len() >= SEGMENT_BYTES {
            self.seal();
        }
        write(&mut self.buffer);
    }

    /// Moves the bytes of the buffer to a segment.
    #[cold]
    fn seal(&mut self) {
        let mut bytes = ZeroedArray::new(self.buffer.len(), || 0_u8);
        bytes.items_mut().copy_from_slice(&self.buffer);
        self.full.push(Segment { first: self.first, bytes });
        self.most_buffered = self.most_buffered.max(self.buffer.len());
        self.first += self.buffer.len();
        self.buffer.clear();
    }

    /// Returns the bytes from `at`, the position of an entry, to the end of its segment; none if `at` is the
    /// end of all entries.
    #[inline]
    pub(super) fn from(&self, at: usize) -> &[u8] {
        if let Some(in_buffer) = at.checked_sub(self.first) {
            return self.buffer.get(in_buffer..).unwrap_or_default();
        }
        let after = self.full.partition_point(|segment| segment.first <= at);
        let segment = after.checked_sub(1).map(|i| &self.full[i]);
        segment.and_then(|segment| segment.bytes.get(at - segment.first..)).unwrap_or_default()
    }

    /// Removes the entries from position `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.most_buffered = self.most_buffered.max(self.buffer.len());
        while len < self.first
            && let Some(segment) = self.full.pop()
        {
            self.first = segment.first;
            self.buffer.clear();
            if segment.first < len {
                self.buffer.extend_from_slice(&segment.bytes);
            }
        }
        self.buffer.truncate(len.saturating_sub(self.first));
    }

    /// Removes all entries, and keeps the memory of the buffer.
    pub(super) fn clear(&mut self) {
        self.truncate(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of entry `n`: its length, the number, and filler.
    fn entry(n: u32) -> Vec<u8> {
        let len = 8 + (n as usize * 7919) % 3000;
        let mut bytes = (len as u32).to_le_bytes().to_vec();
        bytes.extend(n.to_le_bytes());
        bytes.resize(len, n as u8);
        bytes
    }

    fn check(entries: &Entries, starts: &[usize]) {
        for (n, &start) in starts.iter().enumerate() {
            let expected = entry(n as u32);
            assert_eq!(entries.from(start).get(..expected.len()), Some(&expected[..]), "entry {n}");
        }
        assert!(entries.from(entries.len()).is_empty(), "the end");
    }

    #[test]
    fn entries_of_many_segments_are_found_and_removed_newest_first() {
        let (mut entries, mut starts) = (Entries::default(), Vec::new());
        let push = |entries: &mut Entries, starts: &mut Vec<usize>| {
            starts.push(entries.len());
            entries.append(|out| out.extend(entry(starts.len() as u32 - 1)));
        };
        for _ in 0..1000 {
            push(&mut entries, &mut starts);
        }
        assert!(entries.full.len() >= 4, "{} segments", entries.full.len());
        check(&entries, &starts);
        check(&entries.clone(), &starts);
        let memory = entries.memory();
        assert!((entries.len()..entries.len() + 2 * SEGMENT_BYTES).contains(&memory), "{memory}");
        // One by one over two ends of segments, then to the first entry of a segment, then by many at once.
        let second = starts.partition_point(|&start| start < entries.full[1].first);
        let newest = (600..1000).rev();
        for len in newest.chain([second + 1, second, second - 1, 3, 1, 0]) {
            entries.truncate(starts[len]);
            starts.truncate(len);
            assert_eq!(entries.len(), (0..len as u32).map(|n| entry(n).len()).sum::<usize>());
            check(&entries, &starts);
            push(&mut entries, &mut starts);
            check(&entries, &starts);
        }
        assert!(entries.full.is_empty() && entries.memory() < 2 * SEGMENT_BYTES, "{}", entries.memory());
    }
}
