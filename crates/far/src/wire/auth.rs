//! The handshake: both sides show that they know one key, and neither says it.
//!
//! | | who | bytes |
//! |---|---|---|
//! | 1 | client | magic 8, version 1, zero 7, nonce 32 |
//! | 2 | server | magic 8, version 1, "a key is needed" 1, zero 6, nonce 32 |
//! | 3 | client | HMAC-SHA256(key, "azekura far client" ‖ 1 ‖ 2), or zeros without a key |
//! | 4 | server | 1 for yes and the same of "azekura far server", or zeros |
//!
//! Every message has a fixed size, so nothing a stranger sends is parsed for a length. Labels differ, so a proof cannot be
//! reflected; nonces are 256 random bits, so it cannot be replayed. What follows is neither encrypted nor signed frame by frame: on a network
//! where others can write into a TCP stream, put it through a tunnel.

use super::VERSION;
pub use azekura_auth::AuthKey;
use azekura_auth::PROOF_BYTES;
pub(crate) use azekura_auth::nonce;
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"AZKFAR\r\n";
const HELLO: usize = 48;

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The connection failed, or took too long.
    #[error("handshake")]
    Io(#[from] io::Error),
    /// The other side speaks something else.
    #[error("the other side is no azekura memory server or client")]
    Stranger,
    /// The other side is of another version.
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}")]
    Version(u8),
    /// The server wants a key and there is none.
    #[error("the server wants a key; give one with --auth-key FILE")]
    KeyNeeded,
    /// We have a key and the server does not ask for it.
    #[error("the server knows no key, although one was given: it is not the server that was meant")]
    KeyUnknown,
    /// The keys differ.
    #[error("the keys of client and server differ")]
    KeyWrong,
}

const CLIENT: &str = "azekura far client";
const SERVER: &str = "azekura far server";

fn hello(needs_key: bool) -> io::Result<[u8; HELLO]> {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8] = VERSION;
    hello[9] = u8::from(needs_key);
    hello[16..].copy_from_slice(&nonce::<32>()?);
    Ok(hello)
}

fn judge(hello: &[u8; HELLO]) -> Result<(), AuthError> {
    if hello[..8] != MAGIC {
        return Err(AuthError::Stranger);
    }
    if hello[8] != VERSION {
        return Err(AuthError::Version(hello[8]));
    }
    Ok(())
}

/// The client's side.
///
/// # Errors
///
/// [`AuthError`].
pub fn introduce(stream: &mut (impl Read + Write), key: Option<&AuthKey>) -> Result<(), AuthError> {
    let hello = hello(false)?;
    stream.write_all(&hello)?;
    let mut challenge = [0; HELLO];
    stream.read_exact(&mut challenge)?;
    judge(&challenge)?;
    let key = match (key, challenge[9] != 0) {
        (Some(key), true) => Some(key),
        (None, false) => None,
        (None, true) => return Err(AuthError::KeyNeeded),
        (Some(_), false) => return Err(AuthError::KeyUnknown),
    };
    let proof = key.map_or([0; PROOF_BYTES], |key| key.proof(CLIENT, &[&hello, &challenge]));
    stream.write_all(&proof)?;
    let mut answer = [0; 33];
    stream.read_exact(&mut answer)?;
    if answer[0] != 1 {
        return Err(AuthError::KeyWrong);
    }
    match key {
        // In constant time, as the library does it.
        Some(key) if !key.is_proof(SERVER, &[&hello, &challenge], &answer[1..]) => Err(AuthError::KeyWrong),
        _ => Ok(()),
    }
}

/// The server's side.
///
/// # Errors
///
/// [`AuthError`]: the stream is to be closed.
pub fn admit(stream: &mut (impl Read + Write), key: Option<&AuthKey>) -> Result<(), AuthError> {
    let mut greeting = [0; HELLO];
    stream.read_exact(&mut greeting)?;
    judge(&greeting)?;
    let challenge = hello(key.is_some())?;
    stream.write_all(&challenge)?;
    let mut proof = [0; 32];
    stream.read_exact(&mut proof)?;
    let mut answer = [0; 33];
    if let Some(key) = key {
        if !key.is_proof(CLIENT, &[&greeting, &challenge], &proof) {
            stream.write_all(&answer)?;
            return Err(AuthError::KeyWrong);
        }
        answer[1..].copy_from_slice(&key.proof(SERVER, &[&greeting, &challenge]));
    }
    answer[0] = 1;
    stream.write_all(&answer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn both(client: Option<&str>, server: Option<&str>) -> (Result<(), AuthError>, Result<(), AuthError>) {
        let key = |text: Option<&str>| text.map(|t| AuthKey::new(t.as_bytes()).unwrap());
        let (client, server) = (key(client), key(server));
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let admitted = thread::spawn(move || admit(&mut b, server.as_ref()));
        let introduced = introduce(&mut a, client.as_ref());
        drop(a);
        (introduced, admitted.join().unwrap())
    }

    #[test]
    fn only_equal_keys_meet() {
        let (one, two) = (Some("0123456789abcdef"), Some("0123456789abcdeF"));
        assert!(matches!(both(one, one), (Ok(()), Ok(()))));
        assert!(matches!(both(None, None), (Ok(()), Ok(()))));
        assert!(matches!(both(one, two), (Err(AuthError::KeyWrong), Err(AuthError::KeyWrong))));
        assert!(matches!(both(None, one), (Err(AuthError::KeyNeeded), Err(_))));
        assert!(matches!(both(one, None), (Err(AuthError::KeyUnknown), Err(_))));
        assert!(AuthKey::new(b"short").is_none());
    }

    #[test]
    fn a_stranger_is_told_from_another_version() {
        for (change, at) in [(b'X', 0), (9, 8)] {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            let mut greeting = hello(false).unwrap();
            greeting[at] = change;
            a.write_all(&greeting).unwrap();
            let refused = admit(&mut b, None).unwrap_err();
            assert!(matches!((at, refused), (0, AuthError::Stranger) | (8, AuthError::Version(9))));
        }
    }
}
