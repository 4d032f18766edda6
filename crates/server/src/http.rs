//! The least of HTTP that a scraper and a health check need: one `GET`, one page, and the end of the
//! connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A request that is longer is refused.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// For the whole of a request, and of sending the answer: such clients are served one after another.
const PATIENCE: Duration = Duration::from_secs(2);

/// An answer.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) status: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
}

impl Page {
    pub(crate) fn plain(status: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Answers the one request of `stream` with the page that `page` has for its path.
pub(crate) fn serve(stream: &TcpStream, page: impl FnOnce(&str) -> Option<Page>) {
    // Whoever asks will ask again.
    let _ = answer(stream, page);
}

fn answer(mut stream: &TcpStream, page: impl FnOnce(&str) -> Option<Page>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let page = match read_path(&mut stream)? {
        Some(path) => {
            page(&path).unwrap_or_else(|| Page::plain("404 Not Found", "there are /metrics and /healthz\n"))
        }
        None => Page::plain("400 Bad Request", "only GET, in few lines\n"),
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.status,
        page.content_type,
        page.body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(page.body.as_bytes())
}

/// The path that is asked for; `None` if it is no request that we answer.
fn read_path(stream: &mut impl Read) -> io::Result<Option<String>> {
    let began = std::time::Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let count = stream.read(&mut piece)?;
        head.extend_from_slice(&piece[..count]);
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let is_get = request.method == Some("GET");
                let path = request.path.map(|path| path.split('?').next().unwrap_or_default().to_owned());
                return Ok(path.filter(|_| is_get));
            }
            Ok(httparse::Status::Partial)
                if count > 0 && head.len() < MAX_HEAD_BYTES && began.elapsed() < PATIENCE => {}
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_short_gets_are_answered() {
        let path = |request: &[u8]| read_path(&mut &*request).expect("a slice reads");
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(), Some("/metrics"));
        assert_eq!(path(b"POST /metrics HTTP/1.1\r\n\r\n"), None);
        assert_eq!(path(b"GET /met"), None);
        assert_eq!(path(b"\0\xff"), None);
        assert_eq!(path(&[b"GET / HTTP/1.1\r\na: ".as_slice(), &[b'b'; 20_000]].concat()), None);
    }
}
