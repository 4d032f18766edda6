//! Runs of small pages are swapped many at a time: no byte is lost, a sweep causes few faults, and a random
//! access fetches few pages.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::wire::auth::introduce;
use azekura_far::wire::{HEADER, Header, Kind, Open};
use azekura_far::{Compression, FarError, FarMemory, FarMemoryBuilder, Mechanism, Policy, Server};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

const PAGE: usize = 4 << 10;
const PAGES: usize = 1024;

fn server(capacity: usize) -> Server {
    Server::builder().capacity(capacity as u64).listen("127.0.0.1:0").unwrap()
}

/// A run is an eighth of the local half, less the reserve for leaving pages: 32 pages.
fn setting(servers: &[&Server]) -> FarMemoryBuilder {
    FarMemory::builder()
        .bytes(PAGES * PAGE)
        .local(PAGES / 2 * PAGE)
        .page(PAGE)
        .reserve(0)
        .servers(servers.iter().map(|server| server.address().to_string()))
        // Only servers that a test stops fail here, and a busy machine may be slow.
        .stall(Duration::from_secs(60))
}

/// Accesses random pages, sweeps up and down and in strides, discards ranges, and compares with an array.
fn work(memory: &mut FarMemory, seed: u64, rounds: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut plain = vec![0_u8; memory.len()];
    for round in 0..rounds {
        let (first, many) = (rng.random_range(0..PAGES - 200), rng.random_range(1..200));
        let stride = rng.random_range(1..4);
        let mut pages: Vec<usize> = (first..first + many).step_by(stride).collect();
        match rng.random_range(0..8) {
            0 => pages.reverse(),
            1 => pages.iter_mut().for_each(|page| *page = rng.random_range(0..PAGES)),
            2 => {
                let given: Range<usize> = first * PAGE..(first + many / 4) * PAGE;
                memory.discard(given.clone());
                plain[given].fill(0);
            }
            _ => {}
        }
        let writes = rng.random();
        for page in pages {
            let at = page * PAGE + rng.random_range(0..PAGE);
            assert_eq!(memory[at], plain[at], "seed {seed}, round {round}, page {page}");
            if writes {
                plain[at] = rng.random();
                memory[at] = plain[at];
            }
        }
    }
    assert!(memory[..] == plain[..], "seed {seed}: the whole at the end");
}

/// Pages that are nearly all zeros fit into the tier, so none is sent or fetched.
#[test]
fn with_a_compressed_tier_no_byte_is_lost_and_nothing_is_sent_that_fits_there() {
    for mechanism in Mechanism::LADDER {
        let server = server(PAGES * PAGE);
        match setting(&[&server]).mechanism(mechanism).compression(Compression::Lz4).build() {
            Ok(mut memory) => {
                work(&mut memory, 9, 120);
                let stats = memory.stats();
                assert!(stats.compressed_ins > 500 && stats.compressed_outs > 500, "{mechanism}: {stats:?}");
                assert_eq!((stats.swap_outs, stats.swap_ins), (0, 0), "{mechanism}: {stats:?}");
                assert!(stats.compressed_bytes < (PAGES / 8 * PAGE) as u64, "{mechanism}: {stats:?}");
            }
            Err(FarError::Mechanism { source, .. }) if mechanism != Mechanism::Sigsegv => {
                println!("skipped: {mechanism} is not available here: {source}");
            }
            Err(error) => panic!("{mechanism}: {error}"),
        }
    }
}

#[test]
fn f5_no_byte_is_lost_by_swapping_runs_by_any_mechanism() {
    for mechanism in Mechanism::LADDER {
        for (seed, policy) in (0..).zip([Policy::Adaptive, Policy::Fifo, Policy::UClock, Policy::Random]) {
            let server = server(PAGES * PAGE);
            match setting(&[&server]).mechanism(mechanism).policy(policy).seed(seed).build() {
                Ok(mut memory) => work(&mut memory, seed, 120),
                Err(FarError::Mechanism { source, .. }) if mechanism != Mechanism::Sigsegv => {
                    println!("skipped: {mechanism} is not available here: {source}");
                }
                Err(error) => panic!("{mechanism}: {error}"),
            }
        }
    }
}

#[test]
fn f4_if_a_server_accepts_only_the_first_pages_of_a_run_another_gets_the_rest() {
    for seed in 0..4 {
        // The capacity is not a multiple of a run.
        let (small, large) = (server((150 + 7 * seed as usize) * PAGE), server(PAGES * PAGE));
        let mut memory = setting(&[&small, &large]).build().unwrap();
        work(&mut memory, seed, 150);
        assert!(small.stats().refused > 0 && small.stats().puts > 0, "{:?}", small.stats());
    }
}

#[test]
fn f4_a_server_that_stops_during_runs_loses_no_byte() {
    for seed in 0..4 {
        let (mut first, second) = (server(PAGES * PAGE), server(PAGES * PAGE));
        let mut memory = setting(&[&first, &second]).copies(2).build().unwrap();
        let worked = std::thread::scope(|scope| {
            let working = scope.spawn(|| work(&mut memory, seed, 200));
            std::thread::sleep(Duration::from_millis(20));
            first.shutdown();
            working.join()
        });
        assert!(worked.is_ok(), "seed {seed}");
    }
}

/// Attempts of a test of the pager's read-ahead. Read-ahead depends on the arrival times of pages, so on a
/// busy machine an attempt can exceed a bound. Pages that are fetched one by one exceed it in each attempt.
const ATTEMPTS: usize = 20;

#[test]
fn a_sweep_takes_few_faults_and_random_touches_fetch_few_pages() {
    let failures: Vec<_> = (0..ATTEMPTS).map_while(|_| sweep_and_touch().err()).collect();
    assert!(failures.len() < ATTEMPTS, "{failures:#?}");
}

/// Fills the memory, sweeps over it in both directions, and touches random bytes. Returns the counts of the
/// first step that exceeds its bound.
fn sweep_and_touch() -> Result<(), String> {
    let within = |bound: bool, counts: String| if bound { Ok(()) } else { Err(counts) };
    let server = server(PAGES * PAGE);
    // FIFO clears no bits, so the fault count contains no faults that only set a bit.
    let mut memory = setting(&[&server]).policy(Policy::Fifo).build().unwrap();
    let before = memory.stats();
    memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 253) as u8 + 1);
    let filled = memory.stats();
    within(filled.faults - before.faults < PAGES as u64 / 4, format!("{filled}"))?;
    for backwards in [false, true] {
        let before = memory.stats();
        let read = |page: usize| u64::from(memory[if backwards { PAGES - 1 - page } else { page } * PAGE]);
        assert!((0..PAGES).map(read).sum::<u64>() > 0);
        let after = memory.stats();
        let came = after.swap_ins + after.prefetches - before.swap_ins - before.prefetches;
        let faults = after.faults - before.faults;
        within(
            faults < PAGES as u64 / 4 && came >= PAGES as u64 / 2,
            format!("{faults} faults, {came} pages, {after}"),
        )?;
    }
    let before = memory.stats();
    let mut rng = StdRng::seed_from_u64(5);
    let touches = 2000;
    for _ in 0..touches {
        let at = rng.random_range(0..memory.len());
        assert_eq!(memory[at], (at % 253) as u8 + 1);
    }
    let after = memory.stats();
    let came = after.swap_ins + after.prefetches - before.swap_ins - before.prefetches;
    within(came < 2 * touches, format!("{came} pages for {touches} touches: {after}"))
}

/// Connects a client without the library, and opens a session with pages of `page_bytes`.
fn client(server: &Server, page_bytes: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    introduce(&mut stream, None).unwrap();
    let open = Open { page_bytes: page_bytes as u32, reserve_bytes: 0, like: 0 }.encode();
    assert_eq!(ask(&mut stream, Header::with(Kind::Open, 0, 0, &open), &open).unwrap().0.kind, Kind::Opened);
    stream
}

/// Sends a request and reads the reply; `None` if the server closes the connection.
fn ask(stream: &mut TcpStream, header: Header, payload: &[u8]) -> Option<(Header, Vec<u8>)> {
    stream.write_all(&header.encode()).ok()?;
    stream.write_all(payload).ok()?;
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).ok()?;
    let header = Header::decode(&head).unwrap();
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).ok()?;
    Some((header, payload))
}

fn put(pages: Range<u64>) -> (Header, Vec<u8>) {
    let payload: Vec<u8> = pages.clone().flat_map(|page| [page as u8; PAGE]).collect();
    let digest =
        azekura_far::digest::Digest::of_run(payload.chunks(PAGE).map(azekura_far::digest::Digest::of));
    let more = (pages.end - pages.start) as u32 - 1;
    (Header { more, digest, ..Header::with(Kind::Put, 1, pages.start, &payload) }, payload)
}

fn get(pages: Range<u64>) -> Header {
    Header { more: (pages.end - pages.start) as u32 - 1, ..Header::bare(Kind::Get, 2, pages.start) }
}

#[test]
fn f6_a_server_returns_runs_and_stores_as_many_pages_as_fit() {
    let server = server(10 * PAGE);
    let mut stream = client(&server, PAGE);
    let mut tell = |(header, payload): (Header, Vec<u8>)| ask(&mut stream, header, &payload).unwrap();
    assert_eq!(tell(put(5..12)).0, Header { more: 6, ..Header::bare(Kind::Stored, 1, 5) });
    assert_eq!(tell(put(10..20)).0, Header { more: 4, ..Header::bare(Kind::Stored, 1, 10) });
    assert_eq!(tell(put(17..19)).0.kind, Kind::Refused);
    let (header, bytes) = tell((get(5..15), Vec::new()));
    assert_eq!((header.kind, header.more, bytes.len()), (Kind::Page, 9, 10 * PAGE));
    assert_eq!((header.page, header.digest), (5, put(5..15).0.digest));
    assert!(bytes == put(5..15).1);
    assert_eq!(tell((get(5..16), Vec::new())).0.kind, Kind::Missing);
    assert_eq!(server.stats().pages, 10);
}

#[test]
fn f6_a_malformed_run_ends_the_connection() {
    let (good, payload) = put(5..8);
    let wrong = [
        // Pages in another order, one page too few, and page numbers above the largest.
        (good, payload.iter().rev().copied().collect::<Vec<u8>>()),
        (Header { more: 1, ..good }, payload.clone()),
        (Header { page: u64::MAX - 1, ..good }, payload),
        (Header { page: u64::MAX, ..get(0..2) }, Vec::new()),
        (Header { kind: Kind::Free, ..get(0..2) }, Vec::new()),
    ];
    for (header, payload) in wrong {
        let server = server(10 * PAGE);
        let mut stream = client(&server, PAGE);
        assert_eq!(ask(&mut stream, header, &payload), None, "{header:?}");
        assert_eq!(server.stats().puts, 0);
    }
    // More bytes than a reply can have.
    let server = server(10 * PAGE);
    assert_eq!(ask(&mut client(&server, 2 * PAGE), get(0..512), &[]), None);
    assert_eq!(ask(&mut client(&server, PAGE), get(0..512), &[]).unwrap().0.kind, Kind::Missing);
}
