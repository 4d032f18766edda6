//! A trace file in parts: first everything except the events, then the events window by window. So the memory
//! does not grow with the file.

use super::read::{HEAD, Parts, PassedOver, check_block_head, check_head, check_payload, number, small};
use super::{Trace, block, codec};
use crate::error::ReadError;
use crate::event::Event;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first version with events in rounds.
const IN_ROUNDS: u32 = 2;

/// The content of a trace file without its events: names, threads, clocks, and its ending.
#[derive(Debug)]
pub struct Outline {
    source: Source,
    version: u32,
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
        let (version, passed_over, trace) = read_all(&source, Parts::passing_over_events())?;
        Ok(Self { source, version, trace, passed_over })
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

    /// Returns `true` if events are in order of time, so that they can be read in windows.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.version >= IN_ROUNDS
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
            blocks: Blocks::open(&self.source)?,
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
    blocks: Blocks,
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
                None | Some((block::END, _)) => {
                    self.is_over = true;
                    return Ok(Some(true));
                }
                // A drain ends with a clock sample.
                Some((block::CLOCK, _)) => round.fill(false),
                Some((block::EVENTS, mut payload)) => {
                    let tag = small(&mut payload).map_err(malformed)?;
                    number(&mut payload).map_err(malformed)?;
                    let place =
                        *self.places.get(&tag).ok_or_else(|| malformed("events of an unknown thread"))?;
                    let begins_round = round[place] || !round.contains(&true);
                    if begins_round {
                        round.fill(false);
                    }
                    round[place] = true;
                    let mut events = Vec::new();
                    codec::decode(&mut payload, &mut events).map_err(malformed)?;
                    if !payload.is_empty() {
                        return Err(malformed("bytes behind the end of a block's content"));
                    }
                    if begins_round && count >= self.most {
                        self.next = Some((place, events));
                        return Ok(Some(false));
                    }
                    count += events.len();
                    self.events[place].append(&mut events);
                }
                Some(_) => {}
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
    let (_, _, trace) = read_all(source, Parts::default())?;
    Ok(trace)
}

/// Reads all blocks. Returns the version of the format, the counts of skipped events, and the trace.
fn read_all(source: &Source, mut parts: Parts) -> Result<(u32, PassedOver, Trace), ReadError> {
    let mut blocks = Blocks::open(source)?;
    while !parts.has_ended() {
        let offset = blocks.offset;
        let Some((kind, payload)) = blocks.next()? else { break };
        parts.take(kind, payload).map_err(|what| ReadError::Malformed { offset, what })?;
    }
    let (version, offset) = (blocks.version, blocks.offset);
    let passed_over = parts.passed_over.unwrap_or_default();
    Ok((version, passed_over, parts.finish(offset, source.len()?)?))
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

    fn open(&self) -> Result<Box<dyn Read>, ReadError> {
        match self {
            Self::File(path) => match File::open(path) {
                Ok(file) => Ok(Box::new(BufReader::with_capacity(1 << 18, file))),
                Err(error) => Err(self.failed(error)),
            },
            Self::Bytes(bytes) => Ok(Box::new(Cursor::new(Arc::clone(bytes)))),
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
            Self::Bytes(_) => PathBuf::from("(memory)"),
        };
        ReadError::Io { path, source }
    }
}

/// The blocks of a file, one at a time.
struct Blocks {
    source: Source,
    file: Box<dyn Read>,
    version: u32,
    /// Offset of the next block.
    offset: u64,
    payload: Vec<u8>,
}

impl Blocks {
    fn open(source: &Source) -> Result<Self, ReadError> {
        let mut file = source.open()?;
        let mut head = Vec::with_capacity(HEAD);
        let read = file.by_ref().take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| source.failed(error))?;
        let (offset, version) = check_head(&head)?;
        Ok(Self { source: source.clone(), file, version, offset: offset as u64, payload: Vec::new() })
    }

    /// Returns the next block; `None` if the file ends before the block does.
    fn next(&mut self) -> Result<Option<(u8, &[u8])>, ReadError> {
        let mut head = [0; block::HEAD];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let len = check_block_head(&head, self.offset)?;
        self.payload.clear();
        // Allocates memory only for existing bytes, because the length may be false.
        let read = self.file.by_ref().take(len as u64).read_to_end(&mut self.payload);
        read.map_err(|error| self.source.failed(error))?;
        if self.payload.len() < len {
            return Ok(None);
        }
        check_payload(&head, &self.payload, self.offset)?;
        self.offset += (block::HEAD + len) as u64;
        Ok(Some((head[0], &self.payload)))
    }

    /// Fills the buffer. Returns `false` if the file has fewer bytes left.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, ReadError> {
        match self.file.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.source.failed(error)),
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("source", &self.source)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}
