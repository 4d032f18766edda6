//! Fuzz entry: input of a connection. The result is requests or an error, is independent of how the bytes are
//! divided into reads, and uses at most a few times the memory of the input.

use azekura_server::{ProtocolError, RequestReader, WireLimits};

const LIMITS: WireLimits = WireLimits { max_bulk_bytes: 300, max_arguments: 40, max_request_bytes: 1000 };

/// Parses the input. The first byte determines the size of the pieces; the rest is the input of the
/// connection.
pub(crate) fn requests(data: &[u8]) {
    let (&size, bytes) = data.split_first().unwrap_or((&0, &[]));
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, usize::from(size) % 64 + 1), whole, "pieces of {}", size % 64 + 1);
    for request in &whole.0 {
        assert!(!request.is_empty() && request.len() <= LIMITS.max_arguments);
    }
}

type Request = Vec<Vec<u8>>;

fn read(bytes: &[u8], size: usize) -> (Vec<Request>, Option<ProtocolError>) {
    let mut reader = RequestReader::new(LIMITS);
    let mut found = Vec::new();
    for mut piece in bytes.chunks(size) {
        while !piece.is_empty() {
            reader.fill(&mut piece).expect("a slice reads");
            loop {
                match reader.next() {
                    Ok(None) => break,
                    Ok(Some(request)) => found.push(request.iter().map(<[u8]>::to_vec).collect()),
                    Err(error) => return (found, Some(error)),
                }
            }
            assert!(reader.held_bytes() <= (64 << 10) + 4 * bytes.len());
        }
    }
    (found, None)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 7] = [
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"PING\r\n\r\nSET a \"b\\x41 \\n\" 'c d'\nQUIT\r\n",
        b"*0\r\n*-1\r\n*1\r\n$0\r\n\r\n",
        b"*2\r\n$4\r\nECHO\r\n$16\r\n0123456789abcdef\r\nGET k\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n*1\r\n*1\r\n$1\r\n",
        b"*40\r\n$300\r\n",
        b"",
    ];
    [0, 2, 40].into_iter().flat_map(|size| texts.iter().map(move |text| [&[size], *text].concat())).collect()
}
