//! Trace files that are truncated, changed, or of another type give typed errors, never a panic or a wrong
//! result.

#[path = "fuzz/sample.rs"]
mod sample;

use azekura_trace::ReadError;
use azekura_trace::file::{ClockSample, CpuSource, Encoder, Ending, Trace};

fn trace() -> Trace {
    sample::trace(50)
}

#[test]
fn a_written_file_is_read_back() {
    assert_eq!(Trace::from_bytes(&trace().to_bytes()).unwrap(), trace());
}

#[test]
fn a_file_cut_anywhere_is_read_up_to_its_last_whole_block() {
    let bytes = trace().to_bytes();
    let mut most = 0;
    for len in 0..bytes.len() {
        match Trace::from_bytes(&bytes[..len]) {
            Ok(cut) => {
                assert!(matches!(cut.ending, Ending::CutShort { offset } if offset <= len as u64));
                assert!(cut.event_count() >= most, "a longer piece tells more");
                most = cut.event_count();
            }
            Err(ReadError::NoHead { .. }) => assert_eq!(most, 0),
            Err(ReadError::NotATrace { .. }) => assert_eq!(len, 0),
            Err(other) => panic!("cut at {len}: {other}"),
        }
    }
    assert_eq!(most, trace().event_count());
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let bytes = trace().to_bytes();
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(Trace::from_bytes(&changed).is_err(), "byte {at}");
        }
    }
}

#[test]
fn foreign_files_and_other_versions_are_named() {
    assert!(matches!(Trace::from_bytes(b"\x7fELF\x02\x01"), Err(ReadError::NotATrace { .. })));
    assert!(matches!(Trace::from_bytes(b""), Err(ReadError::NotATrace { .. })));
    let mut bytes = trace().to_bytes();
    bytes[8] = 9;
    let crc = azekura_base::checksum::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(Trace::from_bytes(&bytes), Err(ReadError::Version { found: 9, .. })));
    bytes[8] = 1;
    let crc = azekura_base::checksum::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Trace::from_bytes(&bytes).expect("the first version is still read"), trace());
}

#[test]
fn blocks_with_right_checksums_and_wrong_content_are_malformed() {
    let head = |encoder: &mut Encoder| {
        encoder.session(&trace().session);
        encoder.clock(&trace().begin);
    };
    let malformed = |fill: &dyn Fn(&mut Encoder)| {
        let mut encoder = Encoder::new();
        head(&mut encoder);
        fill(&mut encoder);
        match Trace::from_bytes(encoder.as_bytes()) {
            Err(ReadError::Malformed { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(malformed(&|e| e.events(3, 0, &[])), "events of an unknown thread");
    assert_eq!(malformed(&|e| e.operations([(70_000, "op", "f", 1)])), "an operation's id beyond 16 bits");
    assert_eq!(malformed(&|e| e.end(5)), "the end counts other events than there are");
    let earlier = ClockSample { ticks: 1, monotonic_ns: 1, process_cpu_ns: 0 };
    assert_eq!(malformed(&|e| e.clock(&earlier)), "the clock ran backwards");
    let two = |e: &mut Encoder| (0..2).for_each(|_| e.thread(&thread_info()));
    assert_eq!(malformed(&two), "a second thread of the same number");
}

fn thread_info() -> azekura_trace::file::ThreadInfo {
    azekura_trace::file::ThreadInfo { tag: 1, os_id: 1, name: String::new(), cpu: CpuSource::None }
}

#[test]
fn random_bytes_behind_a_good_head_never_panic() {
    let seed: u64 = 0x5eed_ab1e;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let good = trace().to_bytes();
    for _ in 0..2_000 {
        let mut bytes = good.clone();
        let from = 16 + random() as usize % (bytes.len() - 16);
        bytes[from..].iter_mut().for_each(|b| *b = random() as u8);
        let _ = Trace::from_bytes(&bytes);
    }
}
