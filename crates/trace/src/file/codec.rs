//! Encoding of events as differences to the previous event, in about ten bytes instead of 32.
//!
//! ```text
//! event = head u8: kind in bits 0-3, same operation as before 4, same site as before 5, object 0 6,
//! argument 0 7;
//!         flags; ticks since the event before (zigzag); then what the head does not spare:
//!         operation, site, object as a difference to the last object (zigzag), argument
//! ```

use crate::event::{Event, EventKind};
use azekura_base::varint::{put_u64, take_u8, take_u64};

const SAME_OPERATION: u8 = 1 << 4;
const SAME_SITE: u8 = 1 << 5;
const NO_OBJECT: u8 = 1 << 6;
const NO_ARGUMENT: u8 = 1 << 7;

/// Previous values, to which the next event is encoded as a difference.
#[derive(Debug, Default)]
struct Before {
    ticks: u64,
    operation: u16,
    site: u32,
    object: u64,
}

/// Appends `events` to `out`.
pub(super) fn encode(events: &[Event], out: &mut Vec<u8>) {
    /// Number of events for which memory is reserved at once.
    const TOGETHER: usize = 32;
    put_u64(out, events.len() as u64);
    let mut before = Before::default();
    for events in events.chunks(TOGETHER) {
        let mut at = out.len();
        out.resize(at + events.len() * ROOM, 0);
        for event in events {
            let room = out[at..].first_chunk_mut().expect("each event takes less than its room");
            at += encode_one(event, &mut before, room);
        }
        out.truncate(at);
    }
}

/// Bytes reserved for an event, which takes 41 at most. A power of two, so that masked indexes need no check.
const ROOM: usize = 64;

/// The bytes of one event that is being encoded.
struct Writer<'r> {
    room: &'r mut [u8; ROOM],
    len: usize,
}

impl Writer<'_> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.room[self.len % ROOM] = byte;
        self.len += 1;
    }

    /// Writes a number as `varint::put_u64` does.
    #[inline]
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }
}

/// Writes the event. Returns the number of bytes.
#[inline]
fn encode_one(event: &Event, before: &mut Before, room: &mut [u8; ROOM]) -> usize {
    let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
    let head = event.kind as u8
        | bit(event.operation == before.operation, SAME_OPERATION)
        | bit(event.site == before.site, SAME_SITE)
        | bit(event.object == 0, NO_OBJECT)
        | bit(event.argument == 0, NO_ARGUMENT);
    let mut out = Writer { room, len: 0 };
    out.byte(head);
    out.number(event.flags.into());
    out.number(zigzag(event.ticks.wrapping_sub(before.ticks)));
    if head & SAME_OPERATION == 0 {
        out.number(event.operation.into());
    }
    if head & SAME_SITE == 0 {
        out.number(event.site.into());
    }
    if head & NO_OBJECT == 0 {
        out.number(zigzag(event.object.wrapping_sub(before.object)));
        before.object = event.object;
    }
    if head & NO_ARGUMENT == 0 {
        out.number(event.argument);
    }
    (before.ticks, before.operation, before.site) = (event.ticks, event.operation, event.site);
    out.len
}

/// Decodes the bytes that [`encode`] appended; `Err` is a description of the error.
pub(super) fn decode(input: &mut &[u8], events: &mut Vec<Event>) -> Result<(), &'static str> {
    let count = take_u64(input).ok_or("the number of events is cut off")?;
    // An event takes at least three bytes, so a false count cannot cause a large allocation.
    if count > input.len() as u64 / 3 {
        return Err("more events than bytes for them");
    }
    events.reserve(count as usize);
    let mut before = Before::default();
    for _ in 0..count {
        events.push(decode_one(input, &mut before)?);
    }
    Ok(())
}

/// Returns, for the bytes that [`encode`] appended, the number of events and the ticks of the first one (0
/// without events).
pub(super) fn peek(input: &mut &[u8]) -> Result<(u64, u64), &'static str> {
    let count = take_u64(input).ok_or("the number of events is cut off")?;
    if count > input.len() as u64 / 3 {
        return Err("more events than bytes for them");
    }
    let first = if count > 0 { decode_one(input, &mut Before::default())?.ticks } else { 0 };
    Ok((count, first))
}

#[inline]
fn decode_one(input: &mut &[u8], before: &mut Before) -> Result<Event, &'static str> {
    const CUT: &str = "an event is cut off";
    let head = take_u8(input).ok_or(CUT)?;
    let kind = EventKind::from_number(head & 0x0f).filter(|kind| *kind != EventKind::Ran);
    let kind = kind.ok_or("an event of unknown kind")?;
    let flags = u8::try_from(take_u64(input).ok_or(CUT)?).map_err(|_| "flags beyond a byte")?;
    before.ticks = before.ticks.wrapping_add(unzigzag(take_u64(input).ok_or(CUT)?));
    if head & SAME_OPERATION == 0 {
        let id = take_u64(input).ok_or(CUT)?;
        before.operation = u16::try_from(id).map_err(|_| "an operation's number beyond 16 bits")?;
    }
    if head & SAME_SITE == 0 {
        before.site =
            u32::try_from(take_u64(input).ok_or(CUT)?).map_err(|_| "a site's number beyond 32 bits")?;
    }
    let mut object = 0;
    if head & NO_OBJECT == 0 {
        before.object = before.object.wrapping_add(unzigzag(take_u64(input).ok_or(CUT)?));
        object = before.object;
    }
    let argument = if head & NO_ARGUMENT == 0 { take_u64(input).ok_or(CUT)? } else { 0 };
    Ok(Event {
        ticks: before.ticks,
        kind,
        flags,
        operation: before.operation,
        site: before.site,
        object,
        argument,
    })
}

/// Converts small differences of either sign to small numbers.
const fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

const fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<Event> {
        let mut events = Vec::new();
        for (i, n) in [0, 1, 5, 63, 64, 1 << 32, u64::MAX - 7, u64::MAX, 3].into_iter().enumerate() {
            let kind = EventKind::from_number(i as u8 + 1).unwrap();
            events.push(Event {
                ticks: n.wrapping_mul(3),
                kind,
                flags: i as u8,
                operation: n as u16,
                site: n as u32,
                object: n,
                argument: n ^ 1,
            });
        }
        events
    }

    #[test]
    fn events_round_trip() {
        let (mut bytes, mut back) = (Vec::new(), Vec::new());
        encode(&events(), &mut bytes);
        let mut rest = bytes.as_slice();
        decode(&mut rest, &mut back).unwrap();
        assert_eq!(back, events());
        assert!(rest.is_empty());
    }

    #[test]
    fn the_longest_events_round_trip_and_have_the_stated_length() {
        let event = |i: u64| {
            let (operation, site) = (u16::MAX - (i % 2) as u16, u32::MAX - (i % 2) as u32);
            let (flags, object) = (u8::MAX, 1 | i << 63); // each farthest from the previous one
            Event {
                flags,
                operation,
                site,
                object,
                argument: u64::MAX,
                ..Event::new(object, EventKind::Mark)
            }
        };
        let events: Vec<_> = (1..100).map(event).collect();
        let (mut bytes, mut back) = (Vec::new(), Vec::new());
        encode(&events, &mut bytes);
        assert_eq!(bytes.len(), 1 + 99 * 41, "and so less than the room that each has");
        decode(&mut bytes.as_slice(), &mut back).unwrap();
        assert_eq!(back, events);
    }

    #[test]
    fn every_cut_is_an_error_and_not_a_panic() {
        let mut bytes = Vec::new();
        encode(&events(), &mut bytes);
        for len in 0..bytes.len() {
            assert!(decode(&mut &bytes[..len], &mut Vec::new()).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn a_false_count_allocates_nothing() {
        let mut bytes = Vec::new();
        put_u64(&mut bytes, u64::MAX);
        let mut back = Vec::new();
        assert_eq!(decode(&mut bytes.as_slice(), &mut back), Err("more events than bytes for them"));
        assert_eq!(back.capacity(), 0);
    }

    #[test]
    fn a_typical_pair_of_operation_events_takes_few_bytes() {
        let enter = Event { operation: 3, ..Event::new(1_000_000, EventKind::Enter) };
        let exit = Event { operation: 3, ..Event::new(1_002_600, EventKind::Exit) };
        let mut bytes = Vec::new();
        encode(&[enter, exit].repeat(100), &mut bytes);
        assert!(bytes.len() < 100 * 12, "{}", bytes.len());
    }

    #[test]
    fn random_bytes_are_events_or_an_error() {
        let seed: u64 = 0x0dd_ba11;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..random() % 60).map(|_| random() as u8).collect();
            if let Some(count) = bytes.first_mut() {
                *count %= 8;
            }
            let mut events = Vec::new();
            let mut rest = bytes.as_slice();
            if decode(&mut rest, &mut events).is_ok() {
                assert!(events.len() < 8);
            }
        }
    }
}
