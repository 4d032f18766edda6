//! Fuzz target: random bytes as a trace file. The file can be read and reported, or the error is typed.

#[path = "sample.rs"]
mod sample;

use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::event::Event;
use azekura_trace::file::{Encoder, Ending, Outline, ThreadInfo, Trace};
use azekura_trace::report::{ReportOptions, report};
use sample::trace;

const HEAD_BYTES: usize = 16;
const BLOCK_HEAD_BYTES: usize = 12;

/// Runs one input. The lowest bit of the first byte selects whether checksums are corrected. The rest is the
/// file.
pub(crate) fn trace_file(data: &[u8]) {
    let (&mode, file) = data.split_first().unwrap_or((&0, &[]));
    let mut file = file.to_vec();
    if mode & 1 != 0 {
        reseal(&mut file);
    }
    let read = Trace::from_bytes(&file);
    in_windows(&file, read.as_ref().ok());
    let Ok(trace) = read else { return };
    if trace.ending == Ending::Complete && trace.damage.is_none() {
        assert_eq!(Trace::from_bytes(&trace.to_bytes()).as_ref().ok(), Some(&trace));
    }
    let calibration = trace.calibration();
    trace.threads.iter().flat_map(|t| &t.events).for_each(|e| _ = calibration.ns(e.ticks));
    let _ = report(&trace, &ReportOptions::default(), &mut std::io::sink());
}

/// Checks that a read in windows gives the same trace, or is refused too.
fn in_windows(file: &[u8], whole: Option<&Trace>) {
    let events = Outline::from_bytes(file).and_then(|outline| {
        let mut windows = outline.windows(5)?;
        let mut all: Vec<Vec<Event>> = vec![Vec::new(); outline.trace().threads.len()];
        while windows.advance()?.is_some() {
            all.iter_mut().zip(windows.events()).for_each(|(all, events)| all.extend(events));
        }
        let _ = Analysis::of_windows(&outline, 5, &AnalyzeOptions::default())?;
        Ok(all)
    });
    let whole = whole.map(|t| t.threads.iter().map(|t| t.events.clone()).collect());
    assert_eq!(events.ok(), whole);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let whole = trace(12).to_bytes();
    let cut = whole[..whole.len() / 2].to_vec();
    let rounds = in_rounds(&trace(12));
    (0..2).flat_map(|mode| [&whole, &cut, &rounds].map(|file| [&[mode], file.as_slice()].concat())).collect()
}

/// Returns the same trace as a recorder writes it: some events of each thread in turn.
fn in_rounds(trace: &Trace) -> Vec<u8> {
    let mut encoder = Encoder::new();
    encoder.session(&trace.session);
    encoder.clock(&trace.begin);
    for t in &trace.threads {
        encoder.thread(&ThreadInfo { tag: t.tag, os_id: t.os_id, cpu: t.cpu, name: t.name.clone() });
    }
    for round in 0..9 {
        for t in &trace.threads {
            let from = (round * 4).min(t.events.len());
            encoder.events(t.tag, t.lost, &t.events[from..(from + 4).min(t.events.len())]);
        }
        encoder.clock(&trace.end);
    }
    encoder.end(trace.lost());
    encoder.into_bytes()
}

/// Corrects the checksums of the head and of each block, as far as the lengths allow.
fn reseal(file: &mut [u8]) {
    let Some(head) = file.get_mut(..HEAD_BYTES) else { return };
    let crc = crc32c(&head[..12]).to_le_bytes();
    head[12..].copy_from_slice(&crc);
    let mut rest = &mut file[HEAD_BYTES..];
    while rest.len() >= BLOCK_HEAD_BYTES {
        let mut plain = [rest[0], 0, 0, 0, rest[4], rest[5], rest[6], rest[7]];
        let crc = crc32c(&plain).to_le_bytes();
        plain[1..4].copy_from_slice(&crc[..3]);
        rest[..8].copy_from_slice(&plain);
        let len = plain.last_chunk().map_or(0, |len| u32::from_le_bytes(*len) as usize);
        let Some(payload) = rest[BLOCK_HEAD_BYTES..].get(..len) else { return };
        let crc = crc32c_append(crc32c(&plain), payload).to_le_bytes();
        rest[8..12].copy_from_slice(&crc);
        rest = &mut rest[BLOCK_HEAD_BYTES + len..];
    }
}
