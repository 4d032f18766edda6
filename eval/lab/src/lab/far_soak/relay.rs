//! A TCP relay in front of a memory server: its connections can be cut, and new ones led to another server.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    streams: Mutex<Vec<TcpStream>>,
    ends: AtomicBool,
}

/// A TCP relay; see the [module](self). Each connection has threads that end with it.
#[derive(Debug)]
pub(super) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    pub(super) fn new(target: String) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            streams: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let listening = Arc::clone(&shared);
        thread::Builder::new().name("relay".into()).spawn(move || {
            for client in listener.incoming() {
                // Relaxed: no other data depends on the flag. `drop` connects once to make this thread read
                // it.
                if listening.ends.load(Relaxed) {
                    return;
                }
                // If the server or a thread is missing, the client's connection is closed.
                if let Ok(client) = client {
                    let _ = listening.lead(client);
                }
            }
        })?;
        Ok(Self { address, shared })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Leads new connections to `target`.
    pub(super) fn leads_to(&self, target: String) {
        *lock(&self.shared.target) = target;
    }

    /// Closes all connections.
    pub(super) fn cut(&self) {
        for stream in lock(&self.shared.streams).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ends.store(true, Relaxed);
        self.cut();
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)); // wakes the listener
    }
}

impl Shared {
    fn lead(&self, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(&*lock(&self.target))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        lock(&self.streams).extend([client.try_clone()?, server.try_clone()?]);
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        for (mut from, mut to) in [(from, to), (server, client)] {
            thread::Builder::new().name("relay-way".into()).spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            })?;
        }
        Ok(())
    }
}
