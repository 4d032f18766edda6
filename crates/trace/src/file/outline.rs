//! A trace file in parts: first everything except the events, then the events window by window. So the memory
//! does not grow with the file.

use super::blocks::{Blocks, Part};
use super::damage::Gaps;
use super::read::{HEAD, Parts, PassedOver, check_head, number, small};
use super::{Trace, block, codec};
use crate::error::ReadError;
use crate::event::Event;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The content of a trace file without its events: names, threads, clocks, and its ending.
#[derive(Debug)]
pub struct Outline {
    source: Source,
    trace: Trace,
    passed_over: PassedOver,
}

impl Outline {
    /// Reads a trace file once, and keeps everything except its events. Takes memory for the largest block
    /// and for the kept content.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::of(Source::file(path.as_ref())?)
    }

    /// Reads the bytes of a trace file, as [`Outline::read`] reads a file.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self, ReadError> {
        Self::of(Source::Bytes(bytes.into()))
    }

    fn of(source: Source) -> Result<Self, ReadError> {
        let (passed_over, trace) = read_all(source.blocks()?, source.len()?, Parts::passing_over_events())?;
        Ok(Self { source, trace, passed_over })
    }

    /// Reads the file again, with its events.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn read_trace(&self) -> Result<Trace, ReadError> {
        read_trace(&self.source)
    }

    /// Returns the trace without its events.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the number of events in the file.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.passed_over.events
    }

    /// Returns the ticks of the last clock sample, or of the first event of a later block in a truncated
    /// file.
    #[must_use]
    pub fn last_ticks(&self) -> u64 {
        self.trace.end.ticks.max(self.passed_over.latest_first)
    }

    /// Returns a reader of the events in windows of `events` events or a few more.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn windows(&self, events: usize) -> Result<Windows<'_>, ReadError> {
        let threads = &self.trace.threads;
        Ok(Windows {
            outline: self,
            blocks: self.source.blocks()?,
            gaps: Gaps::default(),
            places: threads.iter().enumerate().map(|(at, t)| (t.tag, at)).collect(),
            most: events.max(1),
            events: vec![Vec::new(); threads.len()],
            next: None,
            is_over: false,
        })
    }
}

/// The events of a trace file, window by window.
#[derive(Debug)]
pub struct Windows<'o> {
    outline: &'o Outline,
    blocks: Blocks<'static>,
    gaps: Gaps,
    /// Index of each thread by its tag.
    places: BTreeMap<u32, usize>,
    most: usize,
    events: Vec<Vec<Event>>,
    /// The first events of the next window.
    next: Option<(usize, Vec<Event>)>,
    is_over: bool,
}

impl Windows<'_> {
    /// Advances to the next window. Returns `true` if it is the last one, and `None` after the last one.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn advance(&mut self) -> Result<Option<bool>, ReadError> {
        if self.is_over {
            return Ok(None);
        }
        self.events.iter_mut().for_each(Vec::clear);
        let mut count = 0;
        let mut round = vec![false; self.events.len()];
        if let Some((place, events)) = self.next.take() {
            (count, round[place]) = (events.len(), true);
            self.events[place] = events;
        }
        loop {
            let offset = self.blocks.offset;
            let malformed = |what| ReadError::Malformed { offset, what };
            match self.blocks.next()? {
                None | Some(Part::Block(block::END, _)) => {
                    self.is_over = true;
                    return Ok(Some(true));
                }
                // A drain ends with a clock sample.
                Some(Part::Block(block::CLOCK, _)) => round.fill(false),
                Some(Part::Damaged { bytes, .. }) => self.gaps.damaged(offset, bytes, 0),
                Some(Part::Block(block::EVENTS, mut payload)) => {
                    let tag = small(&mut payload).map_err(malformed)?;
                    number(&mut payload).map_err(malformed)?;
                    let before = number(&mut payload).map_err(malformed)?;
                    let place =
                        *self.places.get(&tag).ok_or_else(|| malformed("events of an unknown thread"))?;
                    let begins_round = round[place] || !round.contains(&true);
                    if begins_round {
                        round.fill(false);
                    }
                    round[place] = true;
                    let is_of_next = begins_round && count >= self.most;
                    let mut of_next = Vec::new();
                    let events = if is_of_next { &mut of_next } else { &mut self.events[place] };
                    let at = events.len();
                    codec::decode(&mut payload, events).map_err(malformed)?;
                    let (some, first) = (events.len() - at, events.get(at).map_or(0, |e| e.ticks));
                    if let Some(lost) = self.gaps.block(tag, before, some as u64, first).map_err(malformed)? {
                        events.insert(at, lost);
                    }
                    if !payload.is_empty() {
                        return Err(malformed("bytes behind the end of a block's content"));
                    }
                    count += events.len() - at;
                    if is_of_next {
                        self.next = Some((place, of_next));
                        return Ok(Some(false));
                    }
                }
                Some(Part::Block(..)) => {}
            }
        }
    }

    /// Returns the window's events by thread, in the order of [`Outline::trace`].
    #[must_use]
    pub fn events(&self) -> &[Vec<Event>] {
        &self.events
    }

    /// Returns the file's other parts.
    #[must_use]
    pub fn outline(&self) -> &Outline {
        self.outline
    }
}

/// Reads a trace with its events.
pub(super) fn read_trace(source: &Source) -> Result<Trace, ReadError> {
    let (_, trace) = read_all(source.blocks()?, source.len()?, Parts::default())?;
    Ok(trace)
}

/// Reads the bytes of a trace file with its events.
pub(super) fn read_bytes(bytes: &[u8]) -> Result<Trace, ReadError> {
    let blocks = Blocks::open(in_memory(), Cursor::new(bytes))?;
    let (_, trace) = read_all(blocks, bytes.len() as u64, Parts::default())?;
    Ok(trace)
}

/// Reads all blocks of a file of `len` bytes. Returns the counts of skipped events, and the trace.
fn read_all(mut blocks: Blocks<'_>, len: u64, mut parts: Parts) -> Result<(PassedOver, Trace), ReadError> {
    while !parts.has_ended() {
        let offset = blocks.offset;
        match blocks.next()? {
            None => break,
            Some(Part::Block(kind, payload)) => {
                parts.take(kind, payload).map_err(|what| ReadError::Malformed { offset, what })?;
            }
            Some(Part::Damaged { bytes, error }) => parts.take_damaged(offset, bytes).map_err(|()| error)?,
        }
    }
    let passed_over = parts.passed_over.unwrap_or_default();
    Ok((passed_over, parts.finish(blocks.offset, len)?))
}

/// Source of a trace's bytes.
#[derive(Debug, Clone)]
pub(super) enum Source {
    File(PathBuf),
    Bytes(Arc<[u8]>),
}

impl Source {
    /// Returns the file as a source. A pipe is read now, because sources are read more than once.
    pub(super) fn file(path: &Path) -> Result<Self, ReadError> {
        let source = Self::File(path.to_owned());
        let failed = |error| source.failed(error);
        let mut file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.is_file() {
            return Ok(source);
        }
        let mut bytes = Vec::new();
        file.by_ref().take(HEAD as u64).read_to_end(&mut bytes).map_err(failed)?;
        check_head(&bytes)?; // before the rest, which may be endless in another file than a trace
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(Self::Bytes(bytes.into()))
    }

    fn blocks(&self) -> Result<Blocks<'static>, ReadError> {
        match self {
            Self::File(path) => {
                let file = File::open(path).map_err(|error| self.failed(error))?;
                Blocks::open(path.clone(), BufReader::with_capacity(1 << 18, file))
            }
            Self::Bytes(bytes) => Blocks::open(in_memory(), Cursor::new(Arc::clone(bytes))),
        }
    }

    /// Returns the current length.
    fn len(&self) -> Result<u64, ReadError> {
        match self {
            Self::File(path) => Ok(std::fs::metadata(path).map_err(|error| self.failed(error))?.len()),
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn failed(&self, source: io::Error) -> ReadError {
        let path = match self {
            Self::File(path) => path.clone(),
            Self::Bytes(_) => in_memory(),
        };
        ReadError::Io { path, source }
    }
}

/// Returns the name of a file in memory, for errors.
fn in_memory() -> PathBuf {
    PathBuf::from("(memory)")
}
