//! The handshake: both sides prove that they have the same key, without sending the key.
//!
//! | | sender | bytes |
//! |---|---|---|
//! | 1 | client | magic 8, version 1, zero 7, nonce 32 |
//! | 2 | server | magic 8, version 1, "key required" flag 1, zero 6, nonce 32 |
//! | 3 | client | HMAC-SHA256(key, "azekura far client" ‖ 1 ‖ 2), or zeros without a key |
//! | 4 | server | 1 for accepted, and HMAC-SHA256(key, "azekura far server" ‖ 1 ‖ 2), or zeros |
//!
//! A client that resumes a session proves in the same way that it has the session's name: by
//! HMAC-SHA256(name, "azekura far session" ‖ 1 ‖ 2). The name itself is sent only once, when the session
//! opens.
//!
//! Every message has a fixed size, so no length from an unauthenticated client is parsed. The labels differ,
//! so a proof cannot be reflected. The nonces have 256 random bits, so a proof cannot be replayed. The frames
//! after the handshake are neither encrypted nor signed. On a network where an attacker can write into a TCP
//! stream, use a tunnel.

use super::VERSION;
pub use azekura_auth::AuthKey;
use azekura_auth::PROOF_BYTES;
pub(crate) use azekura_auth::nonce;
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"AZKFAR\r\n";
const HELLO: usize = 48;

/// The nonces of a completed handshake, which bind a proof to this connection.
#[derive(Clone, Copy, Debug)]
pub struct Handshake {
    hello: [u8; HELLO],
    challenge: [u8; HELLO],
}

impl Handshake {
    /// Size of a proof in bytes.
    pub const PROOF: usize = PROOF_BYTES;

    /// Returns a proof that the caller has a session's name.
    #[must_use]
    pub fn proof(&self, session: u128) -> [u8; PROOF_BYTES] {
        key_of(session).proof(SESSION, &[&self.hello, &self.challenge])
    }

    /// Checks a proof in constant time.
    #[must_use]
    pub fn proves(&self, session: u128, proof: &[u8]) -> bool {
        key_of(session).is_proof(SESSION, &[&self.hello, &self.challenge], proof)
    }
}

fn key_of(session: u128) -> AuthKey {
    AuthKey::new(&session.to_le_bytes()).expect("a name is as long as the shortest key")
}

/// Error of a handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The connection failed or timed out.
    #[error("the connection broke in the handshake")]
    Io(#[from] io::Error),
    /// The other side uses another protocol.
    #[error("the other side is no azekura memory server or client")]
    Stranger,
    /// The other side uses another version of the protocol.
    #[error(
        "the other side has protocol version {0}, this one {VERSION}; use the same version of azekura on both"
    )]
    Version(u8),
    /// The server requires a key, but the client has none.
    #[error("the server requires a key; give it with --auth-key FILE")]
    KeyNeeded,
    /// The client has a key, but the server does not require one.
    #[error(
        "the server has no key, but this client was given one; check the address, or start the server \
         with --auth-key FILE"
    )]
    KeyUnknown,
    /// The keys differ.
    #[error("the keys of client and server differ; give both the same file (--auth-key)")]
    KeyWrong,
}

const CLIENT: &str = "azekura far client";
const SERVER: &str = "azekura far server";
const SESSION: &str = "azekura far session";

fn greeting(needs_key: bool) -> io::Result<[u8; HELLO]> {
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

/// Performs the client's side of the handshake.
///
/// # Errors
///
/// [`AuthError`].
pub fn introduce(stream: &mut (impl Read + Write), key: Option<&AuthKey>) -> Result<Handshake, AuthError> {
    let hello = greeting(false)?;
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
        // `is_proof` compares in constant time.
        Some(key) if !key.is_proof(SERVER, &[&hello, &challenge], &answer[1..]) => Err(AuthError::KeyWrong),
        _ => Ok(Handshake { hello, challenge }),
    }
}

/// Performs the server's side of the handshake.
///
/// # Errors
///
/// [`AuthError`]: the caller must close the stream.
pub fn admit(stream: &mut (impl Read + Write), key: Option<&AuthKey>) -> Result<Handshake, AuthError> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello)?;
    judge(&hello)?;
    let challenge = greeting(key.is_some())?;
    stream.write_all(&challenge)?;
    let mut proof = [0; 32];
    stream.read_exact(&mut proof)?;
    let mut answer = [0; 33];
    if let Some(key) = key {
        if !key.is_proof(CLIENT, &[&hello, &challenge], &proof) {
            stream.write_all(&answer)?;
            return Err(AuthError::KeyWrong);
        }
        answer[1..].copy_from_slice(&key.proof(SERVER, &[&hello, &challenge]));
    }
    answer[0] = 1;
    stream.write_all(&answer)?;
    Ok(Handshake { hello, challenge })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    type Outcome = Result<Handshake, AuthError>;

    fn both(client: Option<&str>, server: Option<&str>) -> (Outcome, Outcome) {
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
        assert!(matches!(both(one, one), (Ok(_), Ok(_))));
        assert!(matches!(both(None, None), (Ok(_), Ok(_))));
        assert!(matches!(both(one, two), (Err(AuthError::KeyWrong), Err(AuthError::KeyWrong))));
        assert!(matches!(both(None, one), (Err(AuthError::KeyNeeded), Err(_))));
        assert!(matches!(both(one, None), (Err(AuthError::KeyUnknown), Err(_))));
        assert!(AuthKey::new(b"short").is_none());
    }

    #[test]
    fn a_sessions_name_is_shown_in_one_meeting_and_the_proof_is_good_for_no_other() {
        let (one, other) = (both(None, None), both(None, None));
        let (one, other) = ((one.0.unwrap(), one.1.unwrap()), (other.0.unwrap(), other.1.unwrap()));
        let proof = one.0.proof(77);
        assert!(one.1.proves(77, &proof));
        assert!(!one.1.proves(78, &proof) && !one.1.proves(77, &proof[1..]) && !one.1.proves(77, &[]));
        assert!(!other.1.proves(77, &proof));
    }

    #[test]
    fn a_foreign_peer_is_distinguished_from_another_version() {
        for (change, at) in [(b'X', 0), (9, 8)] {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            let mut greeting = greeting(false).unwrap();
            greeting[at] = change;
            a.write_all(&greeting).unwrap();
            let refused = admit(&mut b, None).unwrap_err();
            assert!(matches!((at, refused), (0, AuthError::Stranger) | (8, AuthError::Version(9))));
        }
    }
}
