//! Entry of a fuzz target: bytes from a client without a key or with a defect, sent to a memory server, and
//! the bytes that a server sends. The decoder returns frames or an error, and never panics. A server replies
//! only with frames, and keeps nothing of a session after its connection has ended.

use azekura_far::wire::auth::{AuthKey, admit, introduce};
use azekura_far::wire::{HEADER, Header, Open, Opened, VERSION};
use azekura_far::{Server, digest::Digest};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// Runs one input. Bit 0 of the first byte repairs each frame's checksums, so that the code after the checks
/// is reached. Bit 1 sends the frames to a server, and bit 2 runs the handshake. The remaining bytes are
/// sent.
pub(crate) fn far_wire(data: &[u8]) {
    let (&how, bytes) = data.split_first().unwrap_or((&0, &[]));
    let bytes = if how & 1 != 0 { mended(bytes) } else { bytes.to_vec() };
    frames(&bytes);
    let _ = Open::decode(&bytes).map(|open| assert_eq!(open.encode()[..], bytes[..]));
    let _ = Opened::decode(&bytes).map(|opened| assert_eq!(opened.encode()[..], bytes[..]));
    if how & 4 != 0 {
        handshake(&bytes);
    }
    if how & 2 != 0 {
        session(&bytes);
    }
}

/// Decodes frames as both sides do. Encoding them again must give the same bytes. Returns the number of
/// frames.
fn frames(mut bytes: &[u8]) -> usize {
    for count in 0.. {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() else { return count };
        let Ok(header) = Header::decode(head) else { return count };
        assert_eq!(header.encode(), *head);
        let Some((payload, rest)) = rest.split_at_checked(header.length as usize) else { return count };
        if !payload.is_empty() && digest(payload, header.more) != header.digest {
            return count;
        }
        bytes = rest;
    }
    unreachable!("a counter of this width has no end")
}

/// Returns the digest of a payload of `more` + 1 pages.
fn digest(payload: &[u8], more: u32) -> Digest {
    let page = payload.len() / (more as usize + 1);
    Digest::of_run(payload.chunks(page.max(1)).map(Digest::of))
}

/// Returns the same bytes with repaired checksums.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut mended = bytes.to_vec();
    let mut at = 0;
    while mended.len() - at >= HEADER {
        let (head, rest) = mended[at..].split_at_mut(HEADER);
        head[0] = VERSION;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let payload = &rest[..length.min(rest.len())];
        let more = u32::from_le_bytes([head[40], head[41], head[42], head[43]]).min(511);
        head[24..40].copy_from_slice(&digest(payload, more).0.to_le_bytes());
        let sum = azekura_base::checksum::crc32c(&head[..44]);
        head[44..48].copy_from_slice(&sum.to_le_bytes());
        at += HEADER + length.min(mended.len() - at - HEADER);
    }
    mended
}

/// A peer that sends these bytes and reads nothing.
struct Stranger<'a>(&'a [u8]);

impl Read for Stranger<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Stranger<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that no client is admitted without the key, and that no peer passes as a server with the key.
fn handshake(bytes: &[u8]) {
    let key = AuthKey::new(b"0123456789abcdef").expect("long enough");
    assert!(admit(&mut Stranger(bytes), Some(&key)).is_err());
    assert!(introduce(&mut Stranger(bytes), Some(&key)).is_err());
    let _ = admit(&mut Stranger(bytes), None);
    let _ = introduce(&mut Stranger(bytes), None);
}

/// Sends bytes to a server after the handshake. Returns the number of replies.
fn session(bytes: &[u8]) -> usize {
    // The server ends a handshake after 5 s, for which a busy machine may stop this thread.
    (0..3).find_map(|_| try_session(bytes)).expect("no key is needed")
}

/// Runs one session. Returns `None` if the handshake fails. Only one session runs at a time, because the
/// memory that another session reserves would appear as left behind by this one.
fn try_session(bytes: &[u8]) -> Option<usize> {
    static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();
    let listen =
        || Mutex::new(Server::builder().capacity(1 << 20).listen("127.0.0.1:0").expect("a free port"));
    let server = &*SERVER.get_or_init(listen).lock().unwrap_or_else(PoisonError::into_inner);
    let (mut client, served) = UnixStream::pair().expect("a pair of streams");
    let answers = thread::scope(|scope| {
        // The scope joins the session's thread, so a panic there is a panic here.
        let session = scope.spawn(|| server.serve(served));
        if introduce(&mut client, None).is_err() {
            let _ = client.shutdown(Shutdown::Both);
            session.join().expect("a session does not panic");
            return None;
        }
        let mut listening = client.try_clone().expect("a descriptor");
        let listener = scope.spawn(move || {
            let mut answers = Vec::new();
            listening.read_to_end(&mut answers).map(|_| answers)
        });
        // The server may have closed the stream already. Then the rest is not sent.
        let _ = client.write_all(bytes);
        let _ = client.shutdown(Shutdown::Write);
        session.join().expect("a session does not panic");
        Some(listener.join().expect("no panic"))
    })?;
    // A reset ends the stream, too: the server did not read all bytes.
    let Ok(answers) = answers else { return Some(0) };
    let frames = frames(&answers);
    assert!(frames > 0 || answers.is_empty(), "{} bytes that are no frame", answers.len());
    assert_eq!(server.stats().promised_bytes, 0, "what a session held or was promised is given back");
    Some(frames)
}

/// Runs the first seed, which must be a valid exchange. Otherwise its mutations would be noise. Returns the
/// largest number of replies of three sessions: on a busy machine, the time limit of a login may end one.
pub(crate) fn answers_to_a_talk() -> usize {
    let talk = mended(&seeds()[0][1..]);
    (0..3).map(|_| session(&talk)).max().unwrap_or(0)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use azekura_far::wire::Kind::{self, Bye, Free, Get, Ping, Put, Resume};
    let open = Open { page_bytes: 4096, reserve_bytes: 8192, like: 0 }.encode();
    let page = vec![7_u8; 4096];
    let frame = |header: Header, payload: &[u8]| [&header.encode()[..], payload].concat();
    let opening = frame(Header::with(Kind::Open, 0, 0, &open), &open);
    let put = frame(Header::with(Put, 1, 5, &page), &page);
    let bare = |kind, tag, page| frame(Header::bare(kind, tag, page), &[]);
    let run = |kind, tag, payload: &[u8]| {
        frame(Header { more: 2, digest: digest(payload, 2), ..Header::with(kind, tag, 6, payload) }, payload)
    };
    let talk = [
        opening.clone(),
        put.clone(),
        bare(Get, 2, 5),
        bare(Ping, 3, 0),
        bare(Free, 4, 5),
        bare(Get, 5, 5),
        run(Put, 6, &page.repeat(3)),
        run(Get, 7, &[]),
    ];
    let small = |kind| {
        [opening.clone(), frame(Header::with(kind, 1, 5, b"ten bytes!"), b"ten bytes!"), bare(Get, 2, 5)]
            .concat()
    };
    let mut hello = vec![0; 96];
    hello[..8].copy_from_slice(b"AZKFAR\r\n");
    hello[8] = VERSION;
    let again = frame(Header::with(Resume, 0, 0, &[5; 32]), &[5; 32]);
    let gone = [opening.clone(), bare(Bye, 1, 0), bare(Get, 2, 5)].concat();
    let mut inputs = vec![talk.concat(), open.to_vec(), hello, put, again, gone, Vec::new()];
    inputs.extend([Kind::Open, Put, Get, Ping, Free, Kind::Opened, Kind::Page].map(small));
    [1, 3, 5]
        .into_iter()
        .flat_map(|how| inputs.iter().map(move |input| [&[how], &input[..]].concat()))
        .collect()
}
