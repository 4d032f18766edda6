//! Speed of bare TCP on this machine: the upper bound for every transfer over TCP.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

const REQUEST: usize = 32;
const BLOCK: usize = 1 << 20;

/// Measured speed of a bare TCP connection between two threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Median time of a request of 32 bytes with a reply of 4 KiB, in microseconds.
    pub round_trip_us: f64,
    /// Throughput in one direction, in megabytes per second.
    pub stream: f64,
}

impl Link {
    /// Measures `rounds` round trips, and then one transfer of `megabytes` megabytes.
    ///
    /// # Errors
    ///
    /// An error of the operating system.
    pub fn measure(rounds: usize, megabytes: usize) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let other = thread::spawn(move || answer(&listener, rounds, megabytes));
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let (request, mut reply) = ([1_u8; REQUEST], [0_u8; 4096]);
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Instant::now();
            stream.write_all(&request)?;
            stream.read_exact(&mut reply)?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let mut block = vec![0_u8; BLOCK];
        let began = Instant::now();
        for _ in 0..megabytes {
            stream.read_exact(&mut block)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        other.join().unwrap_or_else(|_| Err(io::Error::other("the other end of the link panicked")))?;
        let bytes = (megabytes * BLOCK) as f64;
        Ok(Self {
            round_trip_us: times.get(rounds / 2).copied().unwrap_or(0.0),
            stream: bytes / 1e6 / seconds,
        })
    }
}

fn answer(listener: &TcpListener, rounds: usize, megabytes: usize) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let (mut request, reply) = ([0_u8; REQUEST], [2_u8; 4096]);
    for _ in 0..rounds {
        stream.read_exact(&mut request)?;
        stream.write_all(&reply)?;
    }
    let block = vec![3_u8; BLOCK];
    (0..megabytes).try_for_each(|_| stream.write_all(&block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_round_trip_and_a_stream() {
        let link = Link::measure(20, 2).unwrap();
        assert!(link.round_trip_us > 0.0 && link.stream > 0.0, "{link:?}");
    }
}
