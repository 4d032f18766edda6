//! Export of a trace as a Perfetto file: a track per thread, with operations and waits as nested slices. The
//! encoder is written by hand for Perfetto's published message numbers, with one packet per begin and end of
//! a slice. A flow connects the release of an object with the end of the wait that it ended. Names are
//! interned: the packet with the first event of a name defines its number, later packets contain the number.
//! A file takes about 30 bytes per event, so the format is for export only.

mod flows;

use super::ReportError;
use crate::WaitKind;
use crate::analyze::Names;
use crate::event::{DAMAGED, Event, EventKind};
use crate::file::{Calibration, Ending, Name, Outline, ThreadTrace, Trace};
use azekura_base::varint::{put_bytes, put_u64};
use flows::{FlowEnds, Flows};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Field numbers of the used messages.
mod field {
    pub(super) const TRACE_PACKET: u32 = 1;
    pub(super) const PACKET_TIMESTAMP: u32 = 8;
    pub(super) const PACKET_SEQUENCE: u32 = 10;
    pub(super) const PACKET_TRACK_EVENT: u32 = 11;
    pub(super) const PACKET_INTERNED: u32 = 12;
    pub(super) const PACKET_FLAGS: u32 = 13;
    pub(super) const PACKET_TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const TRACK_UUID: u32 = 1;
    pub(super) const TRACK_PROCESS: u32 = 3;
    pub(super) const TRACK_THREAD: u32 = 4;
    pub(super) const TRACK_PARENT: u32 = 5;
    pub(super) const PROCESS_ID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const THREAD_PROCESS: u32 = 1;
    pub(super) const THREAD_ID: u32 = 2;
    pub(super) const THREAD_NAME: u32 = 5;
    pub(super) const INTERNED_CATEGORY: u32 = 1;
    pub(super) const INTERNED_NAME: u32 = 2;
    pub(super) const INTERNED_ANNOTATION: u32 = 3;
    pub(super) const INTERNED_VALUE: u32 = 29;
    pub(super) const ENTRY_NUMBER: u32 = 1;
    pub(super) const ENTRY_TEXT: u32 = 2;
    pub(super) const EVENT_CATEGORY: u32 = 3;
    pub(super) const EVENT_ANNOTATION: u32 = 4;
    pub(super) const EVENT_TYPE: u32 = 9;
    pub(super) const EVENT_NAME: u32 = 10;
    pub(super) const EVENT_TRACK: u32 = 11;
    pub(super) const EVENT_FLOWS: u32 = 47;
    pub(super) const ANNOTATION_NAME: u32 = 1;
    pub(super) const ANNOTATION_UINT: u32 = 3;
    pub(super) const ANNOTATION_VALUE: u32 = 17;
}

/// Values of `TrackEvent.Type`.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;

/// Flags of a packet: `FIRST` for the first packet of the sequence, before which no text was interned;
/// `USES_INTERNED` for a packet with interned texts.
const FIRST: u64 = 1;
const USES_INTERNED: u64 = 2;

/// Number of the process's track; the threads' tracks have higher numbers.
const PROCESS_TRACK: u64 = 1;
/// Number of the only sequence of packets.
const SEQUENCE: u64 = 1;

/// Returns the file's bytes.
pub(super) fn encode(trace: &Trace) -> Vec<u8> {
    let mut export = Export::new(trace);
    let events: Vec<&[Event]> = trace.threads.iter().map(|thread| thread.events.as_slice()).collect();
    export.window(&events);
    export.out
}

/// Exports a trace file, window by window. (The packets of each track are written in order of time.)
pub(super) fn write_file(path: &Path, out: &mut dyn Write) -> Result<(), ReportError> {
    /// Number of events per window.
    const WINDOW: usize = 1 << 16;
    let outline = Outline::read(path)?;
    let mut export = Export::new(outline.trace());
    let mut windows = outline.windows(WINDOW)?;
    while windows.advance()?.is_some() {
        let events: Vec<&[Event]> = windows.events().iter().map(Vec::as_slice).collect();
        export.window(&events);
        out.write_all(&export.out)?;
        export.out.clear();
    }
    Ok(())
}

struct Export<'t> {
    trace: &'t Trace,
    calibration: Calibration,
    tracks: Vec<Track>,
    flows: Flows,
    /// Numbers of the interned texts.
    interned: HashMap<Interned, u64>,
    out: Vec<u8>,
}

/// The state of a thread's track.
#[derive(Debug, Default)]
struct Track {
    open: Vec<Open>,
    /// Time of the last event.
    now: u64,
    /// The stack of the next wait, or 0.
    stack: u32,
}

/// The key of an interned text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Interned {
    Operation(u16),
    Wait(u32),
    Mark(u32),
    Release(u32),
    Lost,
    Category(&'static str),
    Annotation(&'static str),
    Stack(u32),
}

/// An open slice, identified by the event that must end it.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    Operation(u16),
    Wait(u32, u64),
}

/// The value of an annotation.
#[derive(Debug, Clone, Copy)]
enum Value {
    Number(u64),
    Stack(u32),
}

/// The track and the time of an event.
#[derive(Debug, Clone, Copy)]
struct Place {
    track: u64,
    now: u64,
}

impl<'t> Export<'t> {
    /// Returns an export that describes all tracks.
    fn new(trace: &'t Trace) -> Self {
        let tracks = trace.threads.iter().map(|_| Track::default()).collect();
        let interned = HashMap::new();
        let flows = Flows::new(trace.threads.len(), trace.session.hold_sampling);
        let calibration = trace.calibration();
        let mut export = Self { trace, calibration, tracks, flows, interned, out: Vec::new() };
        export.describe_process();
        trace.threads.iter().for_each(|thread| export.describe_thread(thread));
        export
    }

    fn describe_process(&mut self) {
        let session = &self.trace.session;
        let mut name = if session.label.is_empty() { "azekura" } else { &session.label }.to_owned();
        if let Ending::CutShort { offset } = self.trace.ending {
            name += &format!(" (CUT SHORT: the recording ends at byte {offset})");
        }
        let track = message(|m| {
            put(m, field::TRACK_UUID, PROCESS_TRACK);
            let process = message(|m| {
                put(m, field::PROCESS_ID, session.process_id.into());
                put_text(m, field::PROCESS_NAME, &name);
            });
            put_message(m, field::TRACK_PROCESS, &process);
        });
        self.packet(0, field::PACKET_TRACK_DESCRIPTOR, &track, &[], FIRST);
    }

    fn describe_thread(&mut self, thread: &ThreadTrace) {
        let track = message(|m| {
            put(m, field::TRACK_UUID, track_of(thread));
            put(m, field::TRACK_PARENT, PROCESS_TRACK);
            let thread = message(|m| {
                put(m, field::THREAD_PROCESS, self.trace.session.process_id.into());
                put(m, field::THREAD_ID, thread.os_id.into());
                put_text(m, field::THREAD_NAME, &thread.name);
            });
            put_message(m, field::TRACK_THREAD, &thread);
        });
        self.packet(0, field::PACKET_TRACK_DESCRIPTOR, &track, &[], 0);
    }

    /// Exports the next events of all threads.
    fn window(&mut self, events: &[&[Event]]) {
        let ends = self.flows.window(events, &self.calibration);
        events.iter().enumerate().for_each(|(at, events)| self.thread(at, events, &ends));
    }

    /// Exports the next events of a thread.
    fn thread(&mut self, thread: usize, events: &[Event], ends: &FlowEnds) {
        let track = track_of(&self.trace.threads[thread]);
        let mut state = std::mem::take(&mut self.tracks[thread]);
        for (at, event) in events.iter().enumerate() {
            // Slices must nest, so time never decreases inside a track.
            state.now = self.calibration.ns(event.ticks).max(state.now);
            let flows = ends.get(&(thread, at)).map_or(&[][..], Vec::as_slice);
            self.event(event, Place { track, now: state.now }, &mut state, flows);
        }
        self.tracks[thread] = state;
    }

    fn event(&mut self, event: &Event, place: Place, state: &mut Track, flows: &[u64]) {
        let open = &mut state.open;
        match event.kind {
            EventKind::Enter => {
                open.push(Open::Operation(event.operation));
                self.slice(place, BEGIN, "operation", Interned::Operation(event.operation), &[], &[]);
            }
            EventKind::WaitBegin => {
                open.push(Open::Wait(event.site, event.object));
                let kind = WaitKind::from_number(event.argument as u8).unwrap_or(WaitKind::Other);
                let stack = std::mem::take(&mut state.stack);
                let notes = [Some(("object", Value::Number(event.object))), self.stack(stack)];
                self.slice(place, BEGIN, kind.name(), Interned::Wait(event.site), &notes, &[]);
            }
            EventKind::Stack => state.stack = event.argument as u32,
            EventKind::Exit => self.close(&Open::Operation(event.operation), place, open, flows),
            EventKind::WaitEnd => self.close(&Open::Wait(event.site, event.object), place, open, flows),
            EventKind::Mark => {
                let notes = [Some(("value", Value::Number(event.object)))];
                self.slice(place, INSTANT, "mark", Interned::Mark(event.site), &notes, &[]);
            }
            EventKind::Lost => {
                // An operation around a damaged part of the file continues after it.
                let is_damaged = event.flags & DAMAGED != 0;
                let kept = match open.first() {
                    Some(Open::Operation(id)) if is_damaged => Some(*id),
                    _ => None,
                };
                for _ in open.drain(..) {
                    self.end(place, &[]);
                }
                if let Some(operation) = kept {
                    open.push(Open::Operation(operation));
                    self.slice(place, BEGIN, "operation", Interned::Operation(operation), &[], &[]);
                }
                let notes = [Some(("events", Value::Number(event.object)))];
                self.slice(place, INSTANT, "lost", Interned::Lost, &notes, &[]);
            }
            // This event of the lock's holder ended a wait of another thread.
            EventKind::Hold | EventKind::Release if !flows.is_empty() => {
                let notes = [Some(("object", Value::Number(event.object)))];
                self.slice(place, INSTANT, "release", Interned::Release(event.site), &notes, flows);
            }
            EventKind::Hold | EventKind::Release | EventKind::Anchor | EventKind::Ran => {}
        }
    }

    /// Ends a slice and the slices inside it. The flows are those of the slice.
    fn close(&mut self, which: &Open, place: Place, open: &mut Vec<Open>, flows: &[u64]) {
        let Some(depth) = open.iter().rposition(|o| o == which) else { return };
        for _ in open.drain(depth + 1..) {
            self.end(place, &[]);
        }
        open.pop();
        self.end(place, flows);
    }

    fn end(&mut self, place: Place, flows: &[u64]) {
        let event = message(|m| {
            put(m, field::EVENT_TYPE, END);
            put(m, field::EVENT_TRACK, place.track);
            flows.iter().for_each(|flow| put_fixed(m, field::EVENT_FLOWS, *flow));
        });
        self.packet(place.now, field::PACKET_TRACK_EVENT, &event, &[], 0);
    }

    fn slice(
        &mut self,
        place: Place,
        kind: u64,
        category: &'static str,
        name: Interned,
        notes: &[Option<(&'static str, Value)>],
        flows: &[u64],
    ) {
        let mut new = Vec::new();
        let name = self.intern(name, &mut new);
        let category = self.intern(Interned::Category(category), &mut new);
        let mut interned = Vec::new();
        for (name, value) in notes.iter().flatten() {
            let (field, value) = match value {
                Value::Number(value) => (field::ANNOTATION_UINT, *value),
                Value::Stack(id) => (field::ANNOTATION_VALUE, self.intern(Interned::Stack(*id), &mut new)),
            };
            interned.push((self.intern(Interned::Annotation(name), &mut new), field, value));
        }
        let event = message(|m| {
            put(m, field::EVENT_CATEGORY, category);
            for (name, field, value) in interned {
                let note = message(|m| {
                    put(m, field::ANNOTATION_NAME, name);
                    put(m, field, value);
                });
                put_message(m, field::EVENT_ANNOTATION, &note);
            }
            put(m, field::EVENT_TYPE, kind);
            put(m, field::EVENT_NAME, name);
            put(m, field::EVENT_TRACK, place.track);
            flows.iter().for_each(|flow| put_fixed(m, field::EVENT_FLOWS, *flow));
        });
        self.packet(place.now, field::PACKET_TRACK_EVENT, &event, &new, USES_INTERNED);
    }

    /// Returns the number of a text. A new text is also defined in `new`, for the packet that uses it first.
    fn intern(&mut self, what: Interned, new: &mut Vec<u8>) -> u64 {
        if let Some(number) = self.interned.get(&what) {
            return *number;
        }
        let (table, text) = match what {
            Interned::Operation(id) => (field::INTERNED_NAME, self.operation(id)),
            Interned::Wait(id) => (field::INTERNED_NAME, format!("wait: {}", self.site(id))),
            Interned::Mark(id) => (field::INTERNED_NAME, self.site(id)),
            Interned::Release(id) => (field::INTERNED_NAME, format!("release: {}", self.site(id))),
            Interned::Lost => (field::INTERNED_NAME, "events lost".into()),
            Interned::Category(text) => (field::INTERNED_CATEGORY, text.into()),
            Interned::Annotation(text) => (field::INTERNED_ANNOTATION, text.into()),
            Interned::Stack(id) => (field::INTERNED_VALUE, self.frames(id)),
        };
        let number = self.interned.len() as u64 + 1;
        self.interned.insert(what, number);
        let entry = message(|m| {
            put(m, field::ENTRY_NUMBER, number);
            put_text(m, field::ENTRY_TEXT, &text);
        });
        put_message(new, table, &entry);
        number
    }

    fn packet(&mut self, now: u64, kind: u32, content: &[u8], interned: &[u8], flags: u64) {
        let packet = message(|m| {
            put(m, field::PACKET_TIMESTAMP, self.trace.begin.monotonic_ns + now);
            put(m, field::PACKET_SEQUENCE, SEQUENCE);
            put_message(m, kind, content);
            if !interned.is_empty() {
                put_message(m, field::PACKET_INTERNED, interned);
            }
            if flags != 0 {
                put(m, field::PACKET_FLAGS, flags);
            }
        });
        put_message(&mut self.out, field::TRACE_PACKET, &packet);
    }

    fn operation(&self, id: u16) -> String {
        self.trace.operations.get(&id).map_or_else(|| format!("operation {id}"), |n| n.name.clone())
    }

    /// Returns the note with a wait's stack.
    fn stack(&self, id: u32) -> Option<(&'static str, Value)> {
        self.trace.stacks.contains_key(&id).then_some(("stack", Value::Stack(id)))
    }

    /// Returns the frames of a stack, the innermost first.
    fn frames(&self, id: u32) -> String {
        let frames = self.trace.stacks.get(&id).into_iter().flatten();
        let label = |id: &u32| self.trace.frames.get(id).map_or_else(|| format!("frame {id}"), Names::frame);
        frames.map(label).collect::<Vec<_>>().join(" < ")
    }

    fn site(&self, id: u32) -> String {
        let label = |n: &Name| format!("{} ({}:{})", n.name, n.file, n.line);
        self.trace.sites.get(&id).map_or_else(|| format!("site {id}"), label)
    }
}

fn track_of(thread: &ThreadTrace) -> u64 {
    PROCESS_TRACK + 1 + u64::from(thread.tag)
}

fn message(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out
}

fn put(out: &mut Vec<u8>, field: u32, value: u64) {
    put_u64(out, u64::from(field) << 3);
    put_u64(out, value);
}

/// Adds a number of eight bytes.
fn put_fixed(out: &mut Vec<u8>, field: u32, value: u64) {
    put_u64(out, u64::from(field) << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_message(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_u64(out, u64::from(field) << 3 | 2);
    put_bytes(out, bytes);
}

fn put_text(out: &mut Vec<u8>, field: u32, text: &str) {
    put_message(out, field, text.as_bytes());
}
