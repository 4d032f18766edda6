//! A client of a node's Redis server: sends a command and reads the reply, in RESP2.
//!
//! Six commands are needed. The crate `redis` would add 32 packages (`docs/decisions/047-sizes.md`).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Length of the longest line of a reply: a number, or a text without line ends.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Length of the longest string of a reply.
const MAX_STRING_BYTES: u64 = 64 << 20;
/// Largest number of elements of an array.
const MAX_ELEMENTS: u64 = 1 << 20;
/// Largest depth of arrays in arrays.
const MAX_DEPTH: u32 = 8;

/// A reply other than an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A simple string or a bulk string.
    Text(Vec<u8>),
    /// A number.
    Integer(i64),
    /// No value.
    Null,
    /// An array of replies.
    Array(Vec<Self>),
}

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The connection failed, or the node did not answer in time.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The node rejected the command, with this text.
    #[error("{0}")]
    Refused(String),
    /// The bytes are not a reply in RESP2.
    #[error("the reply is not RESP2: {0}; is this the port of a Redis server?")]
    Malformed(&'static str),
}

/// A connection to a node.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects within `timeout`.
    pub(super) fn connect(address: SocketAddr, timeout: Duration) -> Result<Self, ClientError> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sets the longest wait for a reply.
    pub(super) fn set_timeout(&self, timeout: Duration) -> Result<(), ClientError> {
        Ok(self.stream.get_ref().set_read_timeout(Some(timeout))?)
    }

    /// Sends a command and waits for its reply.
    pub(super) fn ask<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Reply, ClientError> {
        self.stream.get_mut().write_all(&encoded(command))?;
        read_reply(&mut self.stream, 0)
    }
}

fn encoded<A: AsRef<[u8]>>(command: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for argument in command {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn read_reply(source: &mut impl BufRead, depth: u32) -> Result<Reply, ClientError> {
    let line = read_line(source)?;
    let (kind, rest) = line.split_first().ok_or(ClientError::Malformed("an empty line"))?;
    match kind {
        b'+' => Ok(Reply::Text(rest.to_vec())),
        b'-' => Err(ClientError::Refused(String::from_utf8_lossy(rest).into_owned())),
        b':' => number(rest).map(Reply::Integer),
        b'$' => match length(rest, MAX_STRING_BYTES)? {
            Some(length) => read_string(source, length).map(Reply::Text),
            None => Ok(Reply::Null),
        },
        b'*' if depth == MAX_DEPTH => Err(ClientError::Malformed("arrays are nested too deep")),
        b'*' => match length(rest, MAX_ELEMENTS)? {
            Some(length) => {
                (0..length).map(|_| read_reply(source, depth + 1)).collect::<Result<_, _>>().map(Reply::Array)
            }
            None => Ok(Reply::Null),
        },
        _ => Err(ClientError::Malformed("an unknown kind of reply")),
    }
}

/// Reads a line without its end.
fn read_line(source: &mut impl BufRead) -> Result<Vec<u8>, ClientError> {
    let mut line = Vec::new();
    source.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(text) => Ok(text.to_vec()),
        None if line.len() as u64 == MAX_LINE_BYTES => Err(ClientError::Malformed("a line is too long")),
        None if line.ends_with(b"\n") => Err(ClientError::Malformed("a line ends without a carriage return")),
        None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// Reads a string of `length` bytes and the line end after it. Memory grows with the bytes that arrive.
fn read_string(source: &mut impl BufRead, length: u64) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    source.take(length + 2).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length + 2 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    match bytes.strip_suffix(b"\r\n") {
        Some(text) => Ok(text.to_vec()),
        None => Err(ClientError::Malformed("a string does not end where its length says")),
    }
}

fn number(text: &[u8]) -> Result<i64, ClientError> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or(ClientError::Malformed("a number is expected"))
}

/// Parses a length of at most `max`; `None` for the length −1.
fn length(text: &[u8], max: u64) -> Result<Option<u64>, ClientError> {
    match number(text)? {
        -1 => Ok(None),
        length => match u64::try_from(length) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => Err(ClientError::Malformed("a length is out of bounds")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Reply, ClientError> {
        read_reply(&mut &*bytes, 0)
    }

    fn text(bytes: &[u8]) -> Reply {
        Reply::Text(bytes.to_vec())
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        assert_eq!(read(b"+OK\r\n").unwrap(), text(b"OK"));
        assert_eq!(read(b":-12\r\n").unwrap(), Reply::Integer(-12));
        assert_eq!(read(b"$4\r\na\r\nb\r\n").unwrap(), text(b"a\r\nb"));
        assert_eq!(read(b"$0\r\n\r\n").unwrap(), text(b""));
        assert_eq!((read(b"$-1\r\n").unwrap(), read(b"*-1\r\n").unwrap()), (Reply::Null, Reply::Null));
        let nested = Reply::Array(vec![text(b"a"), Reply::Array(vec![Reply::Integer(1), Reply::Null])]);
        assert_eq!(read(b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n").unwrap(), nested);
        let refused = read(b"*2\r\n:1\r\n-NOPERM no\r\n").unwrap_err();
        assert!(matches!(&refused, ClientError::Refused(why) if why == "NOPERM no"), "{refused:?}");
        assert_eq!(encoded(&[&b"GET"[..], b"a\r\n"]), b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n");
    }

    #[test]
    fn a_reply_that_is_cut_off_anywhere_is_an_error() {
        let whole = b"*3\r\n$1\r\na\r\n:1\r\n+x\r\n";
        for end in 0..whole.len() {
            let error = read(&whole[..end]).unwrap_err();
            assert!(
                matches!(&error, ClientError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof),
                "{error:?}"
            );
        }
    }

    #[test]
    fn other_bytes_are_refused_and_lengths_and_depths_are_bounded() {
        let deep = b"*1\r\n".repeat(100_000);
        let long = [b"+".as_slice(), &[b'x'; 100_000], b"\r\n"].concat();
        let others: [&[u8]; 9] = [
            b"\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"+a\n",
            b":1x\r\n",
            b"$-2\r\n",
            b"$9999999999999\r\n",
            b"*99999999\r\n",
            &deep,
            &long,
        ];
        for bytes in others {
            let error = read(bytes).unwrap_err();
            assert!(matches!(error, ClientError::Malformed(_)), "{error:?}");
        }
        assert!(matches!(read(b"$1\r\nab\r\n"), Err(ClientError::Malformed(_))));
    }
}
