//! Trace files that are truncated, changed, or of another type give typed errors, never a panic or a wrong
//! result.

#[path = "fuzz/sample.rs"]
mod sample;

use azekura_trace::ReadError;
use azekura_trace::event::{Event, EventKind};
use azekura_trace::file::{ClockSample, CpuSource, Encoder, Ending, OffCpu, Outline, ThreadInfo, Trace};

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
            let noticed = Trace::from_bytes(&changed).map_or(true, |trace| trace.damage.is_some());
            assert!(noticed, "byte {at}");
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
    bytes[8] = 2;
    let crc = azekura_base::checksum::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = Trace::from_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("trace file of version 2; this program reads 3"), "{error}");
}

/// Returns a file with ten rounds of 20 events of two threads, and the offset and the number of the thread's
/// earlier events of each block of events. The events of a round are 1,000 ticks after those of the one
/// before.
fn rounds() -> (Vec<u8>, Vec<(usize, u32, u64)>) {
    let mut encoder = Encoder::new();
    encoder.session(&trace().session);
    encoder.clock(&trace().begin);
    for tag in [1, 2] {
        encoder.thread(&ThreadInfo { tag, ..thread_info() });
    }
    let mut blocks = Vec::new();
    for round in 0..10 {
        for tag in [1, 2] {
            let at = |i: u64| Event::new(1_000 * (round + 2) + i * 10, EventKind::Mark);
            blocks.push((encoder.as_bytes().len(), tag, round * 20));
            encoder.events(tag, 0, &(0..20).map(at).collect::<Vec<_>>());
        }
    }
    encoder.events(1, 0, &[]);
    encoder.events(2, 0, &[]);
    encoder.clock(&trace().end);
    encoder.end(0);
    (encoder.into_bytes(), blocks)
}

#[test]
fn a_damaged_block_is_skipped_and_its_events_are_counted() {
    let (good, blocks) = rounds();
    for (n, &(offset, tag, before)) in blocks.iter().enumerate() {
        let end = blocks.get(n + 1).map_or(offset + 60, |next| next.0);
        // The head with its length, the head's checksum, and the payload.
        for damaged in [offset + 5, offset + 9, offset + 20] {
            let mut bytes = good.clone();
            bytes[damaged] ^= 0x40;
            let trace = Trace::from_bytes(&bytes).expect("the other blocks are read");
            let damage = trace.damage.expect("one block");
            assert_eq!((damage.offset, damage.parts, damage.events), (offset as u64, 1, 20), "{damaged}");
            assert!(damage.is_exact && damage.bytes <= (end - offset).max(200) as u64);
            let lost = 1_000 * (before / 20 + 2);
            assert!(damage.between.0 <= lost && lost + 190 <= damage.between.1, "{damage:?}");
            assert!(damage.between.1 - damage.between.0 <= 2_000 || before == 180, "{damage:?}");
            let inserted: Vec<_> = trace.threads.iter().map(|t| t.events.len()).collect();
            let expected = [1, 2].map(|of| if of == tag { 180 + usize::from(before < 180) } else { 200 });
            assert_eq!(inserted, expected);
            assert_eq!(Outline::from_bytes(bytes).expect("read").events(), 380);
        }
    }
}

#[test]
fn a_damaged_area_across_blocks_ends_at_the_next_whole_block() {
    let (good, blocks) = rounds();
    for (from, to) in [(3, 5), (0, 12), (8, 9), (1, 19)] {
        let mut bytes = good.clone();
        bytes[blocks[from].0 + 3..blocks[to].0 + 2].fill(0xa5);
        let trace = Trace::from_bytes(&bytes).expect("the other blocks are read");
        let damage = trace.damage.expect("several blocks");
        assert_eq!((damage.events, damage.parts), (20 * (to - from + 1) as u64, 1), "{from} to {to}");
        assert!(damage.is_exact);
    }
    // Without its end, the file shows a lower bound.
    let mut bytes = good;
    bytes[blocks[4].0 + 30] ^= 1;
    bytes.truncate(blocks[9].0);
    let trace = Trace::from_bytes(&bytes).expect("read");
    let damage = trace.damage.expect("one block");
    assert_eq!((damage.events, damage.is_exact), (20, false));
    assert!(matches!(trace.ending, Ending::CutShort { .. }));
}

#[test]
fn a_thread_of_which_only_the_switches_are_undamaged_is_read() {
    let mut encoder = Encoder::new();
    encoder.session(&trace().session);
    encoder.clock(&trace().begin);
    let begin = encoder.as_bytes().len();
    encoder.thread(&thread_info());
    let tag = thread_info().tag;
    encoder.events(tag, 0, &[Event::new(2_000, EventKind::Mark)]);
    let end = encoder.as_bytes().len();
    encoder.off(tag, &[OffCpu { begin_ns: 5, end_ns: 9, preempted: false }]);
    encoder.clock(&trace().end);
    encoder.end(1);
    let mut bytes = encoder.into_bytes();
    bytes[begin..end].fill(0);
    let trace = Trace::from_bytes(&bytes).expect("the other blocks are read");
    assert_eq!(trace.threads.iter().map(|t| (t.tag, t.off.len())).collect::<Vec<_>>(), [(tag, 1)]);
    assert!(trace.damage.is_some());
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
    assert_eq!(malformed(&|e| e.off(3, &[])), "switches of an unknown thread");
    assert_eq!(malformed(&|e| e.stacks([(1, &[0; 1_025][..])])), "a stack with too many frames");
    assert_eq!(malformed(&|e| e.operations([(70_000, "op", "f", 1)])), "an operation's id beyond 16 bits");
    assert_eq!(malformed(&|e| e.end(5)), "the end counts other events than there are");
    let earlier = ClockSample { ticks: 1, monotonic_ns: 1, process_cpu_ns: 0 };
    assert_eq!(malformed(&|e| e.clock(&earlier)), "the clock ran backwards");
    let two = |e: &mut Encoder| (0..2).for_each(|_| e.thread(&thread_info()));
    assert_eq!(malformed(&two), "a second thread of the same number");
}

fn thread_info() -> ThreadInfo {
    ThreadInfo { tag: 1, os_id: 1, name: String::new(), cpu: CpuSource::None }
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
