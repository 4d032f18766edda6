//! Encoded replies that wait to be sent. Small replies share a buffer. A large value is sent from the memory
//! into which the store has read it.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Shortest value that gets its own chunk: copying a shorter value costs less than one more part of a
/// message.
const LARGE_BYTES: usize = 16 << 10;
/// Maximum of parts of one message.
pub(crate) const MAX_PARTS: usize = 16;
/// A shared buffer larger than this is freed after use.
const KEPT_BYTES: usize = 64 << 10;

/// A destination of encoded replies.
pub(crate) trait Sink {
    /// Returns the buffer to which small parts are appended.
    fn small(&mut self) -> &mut Vec<u8>;

    /// Appends the bytes of a value from `from` on.
    fn value(&mut self, bytes: Vec<u8>, from: usize);
}

impl Sink for Vec<u8> {
    fn small(&mut self) -> &mut Vec<u8> {
        self
    }

    fn value(&mut self, bytes: Vec<u8>, from: usize) {
        self.extend_from_slice(&bytes[from..]);
    }
}

/// The unsent replies of a connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The oldest bytes. Each chunk has the number of its first bytes that are not to be sent.
    chunks: VecDeque<(Vec<u8>, usize)>,
    /// The newest bytes.
    last: Vec<u8>,
    /// Number of bytes of `last` that are sent; 0 while there are chunks.
    sent: usize,
    /// Number of unsent bytes in `chunks`.
    in_chunks: usize,
}

impl Sink for Output {
    fn small(&mut self) -> &mut Vec<u8> {
        &mut self.last
    }

    fn value(&mut self, bytes: Vec<u8>, from: usize) {
        if bytes.len() - from < LARGE_BYTES {
            return self.last.extend_from_slice(&bytes[from..]);
        }
        let (before, sent) = (std::mem::take(&mut self.last), std::mem::take(&mut self.sent));
        for (chunk, from) in [(before, sent), (bytes, from)] {
            if from < chunk.len() {
                self.in_chunks += chunk.len() - from;
                self.chunks.push_back((chunk, from));
            }
        }
    }
}

impl Output {
    /// Returns the number of unsent bytes.
    pub(crate) const fn len(&self) -> usize {
        self.in_chunks + self.last.len() - self.sent
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Discards all bytes.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Fills `parts` with the first unsent parts; returns their number.
    pub(crate) fn parts<'a>(&'a self, parts: &mut [IoSlice<'a>; MAX_PARTS]) -> usize {
        let chunks = self.chunks.iter().map(|(chunk, from)| &chunk[*from..]);
        let last = Some(&self.last[self.sent..]).filter(|last| !last.is_empty());
        let mut count = 0;
        for (part, bytes) in parts.iter_mut().zip(chunks.chain(last)) {
            *part = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    /// Removes the first `count` bytes, which are sent.
    pub(crate) fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some((chunk, from)) = self.chunks.front_mut() else {
                self.sent += count;
                break;
            };
            let some = count.min(chunk.len() - *from);
            *from += some;
            count -= some;
            self.in_chunks -= some;
            if *from == chunk.len() {
                self.chunks.pop_front();
            }
        }
        if self.chunks.is_empty() && self.sent == self.last.len() {
            self.sent = 0;
            self.last.clear();
            if self.last.capacity() > KEPT_BYTES {
                self.last = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::resp::{Protocol, Reply};

    fn first_parts(output: &Output) -> Vec<u8> {
        let mut parts = [IoSlice::new(&[]); MAX_PARTS];
        let count = output.parts(&mut parts);
        parts[..count].iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn a_large_value_is_sent_from_the_memory_into_which_it_was_read() {
        let record: Vec<u8> = (0..=u8::MAX).cycle().take(LARGE_BYTES + 1).collect();
        let (at, value) = (record.as_ptr(), record[1..].to_vec());
        let mut output = Output::default();
        Reply::Array(vec![Reply::Integer(1), Reply::Stored(record, 1), Reply::Null])
            .encode(Protocol::Resp2, &mut output);
        let mut parts = [IoSlice::new(&[]); MAX_PARTS];
        assert_eq!(output.parts(&mut parts), 3);
        assert_eq!(parts[1].as_ptr(), at.wrapping_add(1));
        let wanted = [format!("*3\r\n:1\r\n${LARGE_BYTES}\r\n").as_bytes(), &value, b"\r\n$-1\r\n"].concat();
        assert_eq!(first_parts(&output), wanted);
        assert_eq!(output.len(), wanted.len());
    }

    #[test]
    fn any_pieces_that_are_sent_are_the_bytes_of_the_replies_in_order() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..50 {
            let (mut output, mut sent, mut wanted) = (Output::default(), Vec::new(), Vec::new());
            for number in 0..rng.random_range(1..60_u8) {
                let len = [1, 20, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES][rng.random_range(0..5)];
                let from = rng.random_range(0..len.min(10));
                let reply = Reply::Stored(vec![number; len], from);
                reply.clone().encode(Protocol::Resp2, &mut wanted);
                reply.encode(Protocol::Resp2, &mut output);
                while rng.random_range(0..3) == 0 && !output.is_empty() {
                    let some = first_parts(&output);
                    let count = rng.random_range(0..=some.len());
                    sent.extend_from_slice(&some[..count]);
                    output.advance(count);
                }
                assert_eq!(sent.len() + output.len(), wanted.len());
            }
            while !output.is_empty() {
                let some = first_parts(&output);
                sent.extend_from_slice(&some);
                output.advance(some.len());
            }
            assert!(sent == wanted && output.last.capacity() <= KEPT_BYTES);
        }
    }
}
