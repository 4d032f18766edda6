//! Messages of the child to the parent through its stdout, one per line.
//!
//! | line | meaning |
//! |---|---|
//! | `ready` | the store is open (and recovered) |
//! | `durable RUN WORKER SEQUENCE FROM TO AMOUNT LATENCY_US WAY ATTEMPTS` | this transfer is durable |
//!
//! A line without its newline was truncated by the kill and is ignored. Whole lines are never interleaved
//! (the child writes them under one lock), so any other line is an error.

use std::io::{self, BufRead, Write};

use super::bank::{Transfer, TransferId, exactly, number};

/// The child's method of waiting for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The thread blocked until the transfer was durable.
    Blocking,
    /// The thread continued with other transfers and polled the ticket later.
    Pipelined,
}

/// A transfer that the store acknowledged as durable to the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) transfer: Transfer,
    /// Time from the start of the transfer until its worker learned that it is durable, in microseconds.
    pub(super) latency_us: u64,
    pub(super) way: Way,
    /// Number of attempts: 1, and 1 more for each conflict.
    pub(super) attempts: u32,
}

/// A line of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Ready,
    Acknowledged(Acknowledged),
}

impl Message {
    /// Appends the line, newline included, to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let written = match self {
            Self::Ready => writeln!(out, "ready"),
            Self::Acknowledged(Acknowledged {
                transfer: Transfer { id, from, to, amount },
                latency_us,
                way,
                attempts,
            }) => {
                let TransferId { run, worker, sequence } = id;
                let way = match way {
                    Way::Blocking => 'b',
                    Way::Pipelined => 'p',
                };
                writeln!(
                    out,
                    "durable {run} {worker} {sequence} {from} {to} {amount} {latency_us} {way} {attempts}"
                )
            }
        };
        written.expect("a Vec takes any write");
    }

    /// Parses a line without its newline.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        if line == "ready" {
            return Some(Self::Ready);
        }
        let [run, worker, sequence, from, to, amount, latency, way, attempts] =
            exactly(line.strip_prefix("durable ")?.split(' '))?;
        let way = match way {
            "b" => Way::Blocking,
            "p" => Way::Pipelined,
            _ => return None,
        };
        let id = TransferId { run: number(run)?, worker: number(worker)?, sequence: number(sequence)? };
        let transfer = Transfer { id, from: number(from)?, to: number(to)?, amount: number(amount)? };
        Some(Self::Acknowledged(Acknowledged {
            transfer,
            latency_us: number(latency)?,
            way,
            attempts: number(attempts)?,
        }))
    }
}

/// Passes every whole line of `source` to `each`. A partial last line is dropped.
pub(super) fn read_all(mut source: impl BufRead, mut each: impl FnMut(Message)) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        source.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(());
        }
        let message = Message::parse(&line).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("unexpected line from the child: {:?}", String::from_utf8_lossy(&line)),
            )
        })?;
        each(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn acknowledged() -> impl Strategy<Value = Message> {
        let numbers = any::<((u16, u16, u32), (u32, u32, u32), u64, bool, u32)>();
        numbers.prop_map(|((run, worker, sequence), (from, to, amount), latency_us, blocking, attempts)| {
            let transfer = Transfer { id: TransferId { run, worker, sequence }, from, to, amount };
            let way = if blocking { Way::Blocking } else { Way::Pipelined };
            Message::Acknowledged(Acknowledged { transfer, latency_us, way, attempts })
        })
    }

    fn heard(bytes: &[u8]) -> io::Result<Vec<Message>> {
        let mut messages = Vec::new();
        read_all(bytes, |message| messages.push(message)).map(|()| messages)
    }

    proptest! {
        #[test]
        fn every_cut_gives_just_the_messages_that_were_whole(
            messages in proptest::collection::vec(prop_oneof![Just(Message::Ready), acknowledged()], 1..4),
            at: prop::sample::Index,
        ) {
            let mut bytes = Vec::new();
            let ends: Vec<usize> = messages.iter().map(|m| { m.write(&mut bytes); bytes.len() }).collect();
            let cut = at.index(bytes.len() + 1);
            let whole = ends.iter().filter(|&&end| end <= cut).count();
            prop_assert_eq!(heard(&bytes[..cut]).unwrap(), &messages[..whole]);
        }

        #[test]
        fn reading_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = heard(&bytes);
        }
    }

    #[test]
    fn a_whole_line_that_is_no_message_is_an_error() {
        assert!(heard(b"ready\nreadytold\n").unwrap_err().to_string().contains("readytold"));
        assert!(heard(b"durable 1 2 3 4 5 6 7 b\n").is_err());
        assert!(heard(b"durable 1 2 3 4 5 6 7 b +1\n").is_err());
    }
}
