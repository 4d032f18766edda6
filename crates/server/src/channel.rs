//! The non-blocking socket of a connection, in clear text or with TLS.

use std::io::{self, ErrorKind, IoSlice, Write};

use rustls::ServerConnection;

use crate::listener::Socket;
use crate::resp::{MAX_PARTS, Output, RequestReader};

/// Transport of a connection.
#[derive(Debug)]
pub(crate) enum Channel {
    Clear,
    Tls(Box<ServerConnection>),
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This number of bytes was read; there may be more.
    Bytes(usize),
    /// No bytes are available now.
    Nothing,
    /// The client has closed its direction.
    End,
}

impl Channel {
    /// Reads once.
    pub(crate) fn receive(&mut self, socket: &Socket, reader: &mut RequestReader) -> io::Result<Received> {
        match self {
            Self::Clear => match reader.fill(&mut &*socket) {
                Ok(0) => Ok(Received::End),
                Ok(count) => Ok(Received::Bytes(count)),
                Err(error) => nothing_yet(error),
            },
            Self::Tls(tls) => receive_tls(tls, socket, reader),
        }
    }

    /// Sends as many bytes of `output` as the socket accepts at once; returns their number.
    pub(crate) fn send(&mut self, socket: &Socket, output: &Output) -> io::Result<usize> {
        let mut parts = [IoSlice::new(&[]); MAX_PARTS];
        let count = output.parts(&mut parts);
        match self {
            Self::Clear => match (&*socket).write_vectored(&parts[..count]) {
                Err(error) if is_not_yet(&error) => Ok(0),
                done => done,
            },
            Self::Tls(tls) => {
                // Bytes that are already encrypted are sent first. rustls bounds their number.
                flush_tls(tls, socket)?;
                let taken =
                    if tls.is_handshaking() { 0 } else { tls.writer().write_vectored(&parts[..count])? };
                flush_tls(tls, socket)?;
                Ok(taken)
            }
        }
    }

    /// Returns `true` until the handshake of TLS is complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Self::Clear => false,
            Self::Tls(tls) => tls.is_handshaking(),
        }
    }

    /// Returns `true` if bytes that `send` accepted are not sent yet.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Clear => false,
            Self::Tls(tls) => tls.wants_write(),
        }
    }

    /// Sends TLS's close message, as far as the socket accepts it at once.
    pub(crate) fn close_notify(&mut self, socket: &Socket) {
        if let Self::Tls(tls) = self {
            tls.send_close_notify();
            // The client may have disconnected.
            let _ = flush_tls(tls, socket);
        }
    }
}

fn receive_tls(
    tls: &mut ServerConnection,
    mut socket: &Socket,
    reader: &mut RequestReader,
) -> io::Result<Received> {
    loop {
        // Decrypted bytes come first.
        match reader.fill(&mut tls.reader()) {
            Ok(0) => return Ok(Received::End),
            Ok(count) => return Ok(Received::Bytes(count)),
            // The stream ended without the close message of TLS. That is safe: requests have explicit
            // lengths, so a truncated request is detected.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Received::End),
            Err(error) if is_not_yet(&error) => {}
            Err(error) => return Err(error),
        }
        if let Err(error) = tls.read_tls(&mut socket) {
            return nothing_yet(error);
        }
        let done = tls.process_new_packets();
        // Sends messages of the handshake, or an alert.
        flush_tls(tls, socket)?;
        done.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
}

fn flush_tls(tls: &mut ServerConnection, mut socket: &Socket) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(&mut socket) {
            Ok(_) => {}
            Err(error) if is_not_yet(&error) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn nothing_yet(error: io::Error) -> io::Result<Received> {
    if is_not_yet(&error) { Ok(Received::Nothing) } else { Err(error) }
}
