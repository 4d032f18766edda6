//! Requests: arrays of bulk strings, parsed as their bytes arrive.
//!
//! This is not a general RESP decoder. A request is never nested, so the parser needs no recursion. Each
//! announced length is compared with a limit before any of its bytes is kept. Memory grows with the bytes
//! that have arrived, never with announced lengths. A request that arrives in pieces is not parsed again from
//! its beginning.
//!
//! | state | means | next |
//! |---|---|---|
//! | `missing = None` | between requests | a `*n` line, or a line of words (inline) |
//! | `missing = Some(n)`, `bulk = None` | `n` arguments to come | a `$len` line |
//! | `missing = Some(n)`, `bulk = Some(len)` | inside an argument | `len` bytes and CR LF |

use std::io::{self, Read};
use std::ops::Range;

use super::inline;
use super::request::Request;

/// Bounds of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLimits {
    /// Longest argument, in bytes.
    pub max_bulk_bytes: usize,
    /// Maximum number of arguments of a request.
    pub max_arguments: usize,
    /// Largest request, in bytes.
    pub max_request_bytes: usize,
}

impl WireLimits {
    /// Returns the limits of a connection before its login.
    #[must_use]
    pub const fn unauthenticated() -> Self {
        Self { max_bulk_bytes: 16 << 10, max_arguments: 10, max_request_bytes: 64 << 10 }
    }
}

impl Default for WireLimits {
    fn default() -> Self {
        Self { max_bulk_bytes: 16 << 20, max_arguments: 1 << 20, max_request_bytes: 64 << 20 }
    }
}

/// An error in the bytes of a request. The connection must end, because the start of the next request is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A length line is not a number, or is out of the range of the protocol.
    #[error("Protocol error: invalid {what} length")]
    Length {
        /// The kind of length: `multibulk` or `bulk`.
        what: &'static str,
    },
    /// A request has more arguments than the limit.
    #[error("Protocol error: invalid multibulk length: {count} arguments, {max} are allowed")]
    TooManyArguments {
        /// The announced number.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// An argument is longer than the limit.
    #[error("Protocol error: invalid bulk length: {len} bytes, {max} are allowed")]
    ArgumentTooLong {
        /// The announced length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A request is larger than the limit.
    #[error("Protocol error: a request of more than {max} bytes")]
    RequestTooLong {
        /// The limit.
        max: usize,
    },
    /// An argument begins with a wrong byte.
    #[error("Protocol error: expected '$', got {}", shown(*.got))]
    ExpectedBulk {
        /// The byte.
        got: u8,
    },
    /// An argument does not end at its announced length.
    #[error("Protocol error: an argument is not followed by CR LF")]
    UnterminatedBulk,
    /// A line is longer than the limit.
    #[error("Protocol error: a line of more than {max} bytes")]
    LineTooLong {
        /// The limit.
        max: usize,
    },
    /// A quote of an inline request is not closed.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
}

impl ProtocolError {
    /// Returns `true` if the request exceeds a limit, and may be well formed.
    pub(crate) const fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::TooManyArguments { .. } | Self::ArgumentTooLong { .. } | Self::RequestTooLong { .. }
        )
    }
}

fn shown(byte: u8) -> String {
    format!("'{}'", byte.escape_ascii())
}

/// Maximum length of a line in bytes: a length line, or an inline request.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum of digits of a length on the fast path, which does not search for the end of the line first.
const SHORT_DIGITS: usize = 5;
/// Least free buffer space for a read, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Size in bytes beyond which an empty buffer is freed.
const KEPT_BYTES: usize = 64 << 10;

/// Reads the requests of one connection.
///
/// ```
/// use azekura_server::{RequestReader, WireLimits};
/// let mut reader = RequestReader::new(WireLimits::default());
/// reader.fill(&mut &b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*1\r\n$4\r\nPI"[..])?;
/// assert_eq!(reader.next()?.unwrap().arg(1), b"a");
/// assert_eq!(reader.next()?.unwrap().arg(0), b"PING"); // inline
/// assert!(reader.next()?.is_none()); // the rest has not arrived
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RequestReader {
    limits: WireLimits,
    /// Start of the request that was returned last.
    began: usize,
    /// Buffer. `bytes[start..end]` has arrived and has not been returned yet.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Position at which parsing continues.
    at: usize,
    missing: Option<usize>,
    bulk: Option<usize>,
    arguments: Vec<Range<usize>>,
    /// Unquoted words of an inline request.
    words: Vec<u8>,
}

impl RequestReader {
    /// Creates a reader.
    #[must_use]
    pub const fn new(limits: WireLimits) -> Self {
        Self {
            limits,
            bytes: Vec::new(),
            began: 0,
            start: 0,
            end: 0,
            at: 0,
            missing: None,
            bulk: None,
            arguments: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Changes the limits of later requests.
    pub const fn set_limits(&mut self, limits: WireLimits) {
        self.limits = limits;
    }

    /// Returns the memory of the buffer and of the places of the arguments, in bytes.
    #[must_use]
    pub const fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.arguments.capacity() * size_of::<Range<usize>>()
    }

    /// Reads once from `source`. Returns the number of bytes, 0 at the end.
    ///
    /// # Errors
    ///
    /// The error of `source`.
    pub fn fill(&mut self, source: &mut impl Read) -> io::Result<usize> {
        self.make_room();
        let count = source.read(&mut self.bytes[self.end..])?;
        self.end += count;
        Ok(count)
    }

    /// Returns `true` if the last [`fill`](Self::fill) filled the buffer: there may be more to read.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.end == self.bytes.len()
    }

    /// Returns the next request, if all of it has arrived.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`]: nothing more can be read after it.
    #[expect(clippy::should_implement_trait, reason = "a request borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Request<'_>>, ProtocolError> {
        while self.start < self.end {
            let is_inline = self.missing.is_none() && self.bytes[self.start] != b'*';
            let is_whole = if is_inline { self.read_inline()? } else { self.read_array()? };
            if !is_whole {
                return Ok(None);
            }
            (self.began, self.start, self.missing) = (self.start, self.at, None);
            if !self.arguments.is_empty() {
                let bytes: &[u8] = if is_inline { &self.words } else { &self.bytes };
                return Ok(Some(Request { bytes, arguments: &self.arguments }));
            }
        }
        Ok(None)
    }

    /// Passes the next complete requests to `each`, at most `most` of them. The following `next` returns the
    /// first of them again. Does nothing if a part of the first request was parsed already.
    pub(crate) fn look_ahead(&mut self, most: usize, mut each: impl FnMut(Request<'_>)) {
        if self.missing.is_some() {
            return;
        }
        let place = (self.began, self.start);
        for _ in 0..most {
            let Ok(Some(request)) = self.next() else { break };
            each(request);
        }
        (self.began, self.start) = place;
        (self.missing, self.bulk) = (None, None);
    }

    /// Undoes the last [`next`](Self::next): the following `next` returns the same request again.
    pub(crate) fn take_back(&mut self) {
        self.start = self.began;
        // The array is parsed completely: no argument is missing.
        self.missing = (self.bytes.get(self.start) == Some(&b'*')).then_some(0);
    }

    /// Frees a large buffer when it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.start == self.end && self.held_bytes() > KEPT_BYTES {
            (self.start, self.end, self.at) = (0, 0, 0);
            self.arguments = Vec::new();
            self.bytes = Vec::new();
        }
    }

    /// Moves the remaining bytes to the front, and ensures free space behind them.
    fn make_room(&mut self) {
        if self.start == self.end {
            (self.start, self.end, self.at) = (0, 0, 0);
            self.arguments.clear();
            if self.bytes.len() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end >= READ_BYTES {
            return;
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            if self.missing.is_none() {
                self.arguments.clear(); // they belong to the previous request
            }
            self.arguments.iter_mut().for_each(|a| *a = a.start - self.start..a.end - self.start);
            (self.end, self.at, self.start) = (self.end - self.start, self.at - self.start, 0);
        }
        if self.bytes.len() - self.end < READ_BYTES {
            self.bytes.resize((self.end * 2).max(self.end + READ_BYTES), 0);
        }
    }

    /// Returns the line at `at` without its CR LF.
    fn line(&mut self) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &self.bytes[self.at..self.end];
        let Some(len) = rest.iter().take(MAX_LINE_BYTES + 1).position(|&b| b == b'\n') else {
            if rest.len() > MAX_LINE_BYTES {
                return Err(ProtocolError::LineTooLong { max: MAX_LINE_BYTES });
            }
            return Ok(None);
        };
        let end = self.at + len;
        let is_cr = len > 0 && self.bytes[end - 1] == b'\r';
        let line = self.at..end - usize::from(is_cr);
        self.at = end + 1;
        Ok(Some(line))
    }

    fn read_inline(&mut self) -> Result<bool, ProtocolError> {
        self.at = self.start;
        let Some(line) = self.line()? else { return Ok(false) };
        self.words.clear();
        self.arguments.clear();
        inline::split(&self.bytes[line], &mut self.words, &mut self.arguments)?;
        if self.arguments.len() > self.limits.max_arguments {
            return Err(ProtocolError::TooManyArguments {
                count: self.arguments.len(),
                max: self.limits.max_arguments,
            });
        }
        Ok(true)
    }

    fn read_array(&mut self) -> Result<bool, ProtocolError> {
        if self.missing.is_none() {
            self.at = self.start;
            self.arguments.clear();
            let Some(count) = self.array_head()? else { return Ok(false) };
            self.missing = Some(count);
        }
        while let Some(missing @ 1..) = self.missing {
            if !self.read_argument()? {
                return Ok(false);
            }
            self.missing = Some(missing - 1);
        }
        Ok(true)
    }

    /// Parses a complete length line with few digits, after its first byte: the fast path. Returns `None` if
    /// the general path must be used.
    fn short_length(&mut self) -> Option<usize> {
        // Digits, and CR LF, follow the first byte.
        let line: &[u8; 1 + SHORT_DIGITS + 2] = self.bytes[self.at..self.end].first_chunk()?;
        let mut length = 0;
        for at in 1..=SHORT_DIGITS + 1 {
            let digit = line[at].wrapping_sub(b'0');
            if digit <= 9 && at <= SHORT_DIGITS {
                length = 10 * length + usize::from(digit);
            } else if at > 1 && line[at..at + 2] == *b"\r\n" && (line[1] != b'0' || at == 2) {
                self.at += at + 2;
                return Some(length);
            } else {
                return None;
            }
        }
        None
    }

    /// Parses any length line, after its first byte. Returns `None` if it has not arrived completely.
    fn long_length(&mut self, what: &'static str) -> Result<Option<i64>, ProtocolError> {
        let Some(line) = self.line()? else { return Ok(None) };
        let has_cr = self.bytes[line.end] == b'\r';
        let length = number(&self.bytes[line.start + 1..line.end]).filter(|_| has_cr);
        length.map(Some).ok_or(ProtocolError::Length { what })
    }

    fn array_head(&mut self) -> Result<Option<usize>, ProtocolError> {
        let count = match self.short_length() {
            Some(count) => count,
            None => {
                let Some(count) = self.long_length("multibulk")? else { return Ok(None) };
                // `*-1` and `*0` are empty requests.
                usize::try_from(count).unwrap_or(0)
            }
        };
        let max = self.limits.max_arguments;
        if count > max { Err(ProtocolError::TooManyArguments { count, max }) } else { Ok(Some(count)) }
    }

    fn read_argument(&mut self) -> Result<bool, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => {
                let Some(len) = self.bulk_head()? else { return Ok(false) };
                *self.bulk.insert(len)
            }
        };
        let Some(ending) = self.bytes[self.at..self.end].get(len..len + 2) else { return Ok(false) };
        if ending != b"\r\n" {
            return Err(ProtocolError::UnterminatedBulk);
        }
        self.arguments.push(self.at..self.at + len);
        self.at += len + 2;
        self.bulk = None;
        Ok(true)
    }

    fn bulk_head(&mut self) -> Result<Option<usize>, ProtocolError> {
        if let Some(&got) = self.bytes[self.at..self.end].first()
            && got != b'$'
        {
            return Err(ProtocolError::ExpectedBulk { got });
        }
        let len = match self.short_length() {
            Some(len) => len,
            None => {
                let Some(len) = self.long_length("bulk")? else { return Ok(None) };
                usize::try_from(len).map_err(|_| ProtocolError::Length { what: "bulk" })?
            }
        };
        let (max, max_request) = (self.limits.max_bulk_bytes, self.limits.max_request_bytes);
        if len > max {
            return Err(ProtocolError::ArgumentTooLong { len, max });
        }
        let so_far = self.at - self.start + self.arguments.len() * size_of::<Range<usize>>();
        if so_far.saturating_add(len) > max_request {
            return Err(ProtocolError::RequestTooLong { max: max_request });
        }
        Ok(Some(len))
    }
}

/// Parses a whole number in its canonical form: no plus sign, no leading zeros, no `-0`, as in Redis.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = text == b"0" || matches!(digits.first(), Some(b'1'..=b'9'));
    // 20 characters hold every i64: a longer text is refused before it is parsed.
    if text.len() > 20 || !is_canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(reader: &mut RequestReader) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut found = Vec::new();
        while let Some(request) = reader.next()? {
            found.push(request.iter().map(<[u8]>::to_vec).collect());
        }
        Ok(found)
    }

    fn read(bytes: &[u8], pieces: usize) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut reader = RequestReader::new(WireLimits::default());
        let mut found = Vec::new();
        for mut piece in bytes.chunks(pieces) {
            while !piece.is_empty() {
                reader.fill(&mut piece).expect("a slice reads");
                found.extend(all(&mut reader)?);
            }
        }
        Ok(found)
    }

    #[test]
    fn the_places_of_arguments_count_as_memory_and_are_freed() {
        let mut reader = RequestReader::new(WireLimits::default());
        let mut request = &[b"*5001\r\n".as_slice(), &b"$0\r\n\r\n".repeat(5000), b"$0\r\n"].concat()[..];
        while !request.is_empty() {
            reader.fill(&mut request).expect("a slice reads");
            assert!(reader.next().expect("valid").is_none());
        }
        assert!(reader.held_bytes() >= 30_000 + 5000 * size_of::<Range<usize>>());
        reader.fill(&mut &b"\r\n"[..]).expect("a slice reads");
        assert_eq!(reader.next().expect("valid").map(Request::len), Some(5001));
        assert!(reader.next().expect("valid").is_none());
        reader.shrink();
        assert_eq!(reader.held_bytes(), 0);
    }

    const STREAM: &[u8] = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\nPING\r\n\r\n\
        *0\r\n*-1\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\nECHO \"a \\x41\" 'b c'\n";

    #[test]
    fn requests_are_the_same_however_they_come_in_pieces() {
        let whole = read(STREAM, STREAM.len()).expect("valid");
        let words = |words: &[&[u8]]| words.iter().map(|w| w.to_vec()).collect::<Vec<_>>();
        assert_eq!(
            whole,
            [
                words(&[b"SET", b"k", b"a\r\nb"]),
                words(&[b"PING"]),
                words(&[b"GET", b""]),
                words(&[b"ECHO", b"a A", b"b c"])
            ]
        );
        for pieces in 1..STREAM.len() {
            assert_eq!(read(STREAM, pieces).expect("valid"), whole, "pieces of {pieces}");
        }
    }

    #[test]
    fn a_length_is_a_number_in_canonical_form_with_cr_lf() {
        for digits in 1..7 {
            let len = 10_usize.pow(digits) / 9;
            let stream = format!("*1\r\n${len}\r\n{}\r\n", "x".repeat(len));
            for pieces in [1, 2, 3, stream.len()] {
                let found = read(stream.as_bytes(), pieces).expect("valid");
                assert_eq!(found[0][0].len(), len, "in pieces of {pieces}");
            }
        }
        let heads = ["*01\r\n", "*000001\r\n", "*00\r\n", "*-0\r\n", "*-01\r\n", "*1 \r\n", "*1\n"];
        let lengths = ["$04\r\n", "$0000004\r\n", "$-0\r\n", "$4\n"];
        let streams = heads.map(|head| (format!("{head}$4\r\nPING\r\n"), "multibulk length"));
        let others = lengths.map(|length| (format!("*1\r\n{length}PING\r\n"), "bulk length"));
        for (stream, what) in streams.into_iter().chain(others) {
            for pieces in [1, 2, 3, stream.len()] {
                let error = read(stream.as_bytes(), pieces).expect_err("no length").to_string();
                assert!(error.contains(what), "{stream:?} in pieces of {pieces}: {error}");
            }
        }
    }

    #[test]
    fn quotes_may_begin_inside_a_word_and_end_it() {
        let found = read(b"SET k a\"b c\" d' e'\r\n", 5).expect("valid");
        assert_eq!(found, [[b"SET".to_vec(), b"k".to_vec(), b"ab c".to_vec(), b"d e".to_vec()]]);
        assert_eq!(read(b"GET a\"b\"c\r\n", 5), Err(ProtocolError::Quotes));
    }

    #[test]
    fn invalid_requests_are_refused_by_name() {
        let refused = |bytes: &[u8]| read(bytes, 7).expect_err("no request").to_string();
        assert!(refused(b"*x\r\n").contains("multibulk length"));
        assert!(refused(b"*2000000000\r\n").contains("2000000000 arguments"));
        assert!(refused(b"*1\r\n$2000000000\r\n").contains("2000000000 bytes"));
        assert!(refused(b"*1\r\n$-1\r\n").contains("bulk length"));
        assert!(refused(b"*1\r\n$+1\r\n").contains("bulk length"));
        assert!(refused(b"*\r\n").contains("multibulk length"));
        assert!(refused(b"*1\r\n$\r\n").contains("bulk length"));
        assert!(refused(b"*1\r\n$1\rx\n").contains("bulk length"));
        assert!(refused(b"*1\r\n:5\r\n").contains("expected '$', got ':'"));
        assert!(refused(b"*1\r\n*1\r\n").contains("got '*'"));
        assert!(refused(b"*1\r\n$1\r\nabc\r\n").contains("CR LF"));
        assert!(refused(b"GET \"a\r\n").contains("quotes"));
        assert!(refused(&[b'a'; MAX_LINE_BYTES + 10]).contains("line"));
    }

    #[test]
    fn a_request_that_is_taken_back_comes_again_and_what_follows_it_once() {
        let whole = read(STREAM, STREAM.len()).expect("valid");
        for piece in 1..STREAM.len() {
            let mut reader = RequestReader::new(WireLimits::default());
            let mut found = Vec::new();
            for mut bytes in STREAM.chunks(piece) {
                // Input may arrive after a request was taken back.
                let mut times = 0;
                while !bytes.is_empty() {
                    reader.fill(&mut bytes).expect("a slice reads");
                    while let Some(request) = reader.next().expect("valid") {
                        let words: Vec<Vec<u8>> = request.iter().map(<[u8]>::to_vec).collect();
                        times += 1;
                        if times % 3 == 0 {
                            found.push(words);
                        } else {
                            reader.take_back();
                            reader.fill(&mut &b""[..]).expect("a slice reads");
                        }
                    }
                }
            }
            assert_eq!(found, whole, "pieces of {piece}");
        }
    }

    #[test]
    fn a_look_ahead_changes_no_request() {
        let whole = read(STREAM, STREAM.len()).expect("valid");
        for (piece, most) in (1..STREAM.len()).flat_map(|piece| [(piece, 0), (piece, 2), (piece, 99)]) {
            let mut reader = RequestReader::new(WireLimits::default());
            let mut found: Vec<Vec<Vec<u8>>> = Vec::new();
            for mut bytes in STREAM.chunks(piece) {
                while !bytes.is_empty() {
                    reader.fill(&mut bytes).expect("a slice reads");
                    let mut ahead = Vec::new();
                    let is_between = reader.missing.is_none();
                    reader.look_ahead(most, |request| {
                        ahead.push(request.iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
                    });
                    let come = all(&mut reader).expect("valid");
                    if is_between {
                        assert_eq!(ahead, come[..come.len().min(most)], "pieces of {piece}");
                    }
                    found.extend(come);
                }
            }
            assert_eq!(found, whole, "pieces of {piece}");
        }
    }

    #[test]
    fn an_announced_length_takes_no_memory() {
        let mut reader = RequestReader::new(WireLimits::default());
        reader.fill(&mut &b"*1000000\r\n$16000000\r\nab"[..]).expect("reads");
        assert!(reader.next().expect("valid so far").is_none());
        assert!(reader.held_bytes() <= 2 * READ_BYTES);
    }

    #[test]
    fn many_small_arguments_count_against_the_request() {
        let limits = WireLimits { max_request_bytes: 4096, ..WireLimits::default() };
        let mut reader = RequestReader::new(limits);
        let mut stream = b"*1000\r\n".to_vec();
        (0..1000).for_each(|_| stream.extend_from_slice(b"$0\r\n\r\n"));
        let mut rest = &stream[..];
        let refused = loop {
            assert!(reader.fill(&mut rest).expect("reads") > 0, "never refused");
            if let Err(error) = reader.next() {
                break error;
            }
        };
        assert_eq!(refused, ProtocolError::RequestTooLong { max: 4096 });
    }
}
