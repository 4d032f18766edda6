//! Requests of one connection that are under way together.
//!
//! - **FLIGHT-1** Answers come in the order of the requests.
//! - **FLIGHT-2** Of two requests that name the same key, one of which may change something, the later begins
//!   when the earlier is answered. Others may take effect in any order, at several nodes at once.
//! - **FLIGHT-3** A flight is bounded: [`MOST_REQUESTS`] requests and about [`MOST_BYTES`] of them.
//!
//! So a flight goes in *waves*: a request is in the first that comes after those of all earlier ones that it
//! must not overtake. The thread of the connection waits for all of them at once.

use std::collections::HashMap;
use std::rc::Rc;

use azekura_fatbtree::Error;
use azekura_fatbtree::tcp::NodeContext;

use super::Cluster;
use super::gateway::{perform, refusal};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::resp::{OwnedRequest, Protocol, Reply, Request};

/// Requests that are under way at once, at most.
const MOST_REQUESTS: usize = 64;
/// Bytes of these, about.
const MOST_BYTES: usize = 1 << 20;

/// A request for keys, on its way to their owner.
#[derive(Debug)]
pub(crate) struct Errand {
    /// Its place in the table of commands.
    pub(crate) at: usize,
    pub(super) spec: &'static Spec,
    pub(super) request: OwnedRequest,
}

impl Errand {
    /// The request as an errand, if it names the keys that it is about.
    pub(crate) fn of(at: usize, spec: &'static Spec, request: Request<'_>) -> Option<Self> {
        let has_keys = command::key_places(spec, request.len()).next().is_some();
        (matches!(spec.run, command::Run::Data(_)) && has_keys).then(|| Self {
            at,
            spec,
            request: request.to_owned(),
        })
    }

    pub(super) fn keys(&self) -> Vec<&[u8]> {
        command::keys_of(self.spec, self.request.as_request())
    }
}

/// Requests that wait to be sent together.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    errands: Vec<Errand>,
    bytes: usize,
}

impl Flight {
    pub(crate) fn add(&mut self, errand: Errand) {
        self.bytes += errand.request.as_request().kept_bytes();
        self.errands.push(errand);
    }

    /// FLIGHT-3.
    pub(crate) const fn is_full(&self) -> bool {
        self.errands.len() >= MOST_REQUESTS || self.bytes >= MOST_BYTES
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.errands.is_empty()
    }
}

/// For each request the wave that it goes in, from 0 on (FLIGHT-2).
fn waves(errands: &[Errand]) -> Vec<usize> {
    /// In which waves a key is next free to be read, and to be changed.
    #[derive(Default)]
    struct Free {
        to_read: usize,
        to_change: usize,
    }
    let mut free: HashMap<&[u8], Free> = HashMap::new();
    let mut waves = Vec::with_capacity(errands.len());
    for errand in errands {
        let keys = errand.keys();
        let after = |key: &&[u8]| {
            let free = free.get(key)?;
            Some(if errand.spec.is_write { free.to_change } else { free.to_read })
        };
        let wave = keys.iter().filter_map(after).max().unwrap_or(0);
        for key in keys {
            let free = free.entry(key).or_default();
            free.to_change = free.to_change.max(wave + 1);
            if errand.spec.is_write {
                free.to_read = wave + 1;
            }
        }
        waves.push(wave);
    }
    waves
}

impl Cluster {
    /// Has all requests of a flight done; each one's place in the table of commands, and its reply, in their
    /// order. Blocks the thread.
    pub(crate) fn fly(
        &self,
        flight: &mut Flight,
        protocol: Protocol,
    ) -> Vec<(usize, Result<Reply, CommandError>)> {
        let Flight { errands, .. } = std::mem::take(flight);
        let places: Vec<_> = errands.iter().map(|errand| errand.at).collect();
        let (waves, most_bytes) = (waves(&errands), self.max_reply_bytes);
        self.waits.add(waves.iter().max().map_or(0, |last| *last as u64 + 1));
        let done = self.at_node(move |here| {
            Box::pin(async move { go(&here, errands, &waves, protocol, most_bytes).await })
        });
        match done {
            Ok(replies) => places.into_iter().zip(replies).collect(),
            Err(error) => places.into_iter().map(|at| (at, Err(error.clone()))).collect(),
        }
    }
}

async fn go(
    here: &Rc<NodeContext>,
    errands: Vec<Errand>,
    waves: &[usize],
    protocol: Protocol,
    most_bytes: usize,
) -> Vec<Result<Reply, CommandError>> {
    let mut left: Vec<_> = errands.into_iter().map(Some).collect();
    let mut replies: Vec<_> = left.iter().map(|_| Err(refusal(Error::Interrupted))).collect();
    for wave in 0..=waves.iter().copied().max().unwrap_or(0) {
        let mut tasks = Vec::new();
        for (place, errand) in left.iter_mut().enumerate().filter(|(place, _)| waves[*place] == wave) {
            if let Some(errand) = errand.take() {
                let task = here.beside(|here| {
                    Box::pin(async move { perform(&here, &errand, protocol, most_bytes).await })
                });
                tasks.push((place, task));
            }
        }
        for (place, task) in tasks {
            if let Some(reply) = task.await {
                replies[place] = reply;
            }
        }
    }
    replies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errands(lines: &[&str]) -> Vec<Errand> {
        let errand = |line: &&str| {
            let request = OwnedRequest::from_arguments(line.split(' ').map(str::as_bytes));
            let (at, spec) = command::find(request.as_request().arg(0)).expect("a command");
            Errand::of(at, spec, request.as_request()).expect("it has keys")
        };
        lines.iter().map(errand).collect()
    }

    fn waves_of(lines: &[&str]) -> Vec<usize> {
        waves(&errands(lines))
    }

    #[test]
    fn requests_for_different_keys_go_together_and_those_for_one_key_one_after_the_other() {
        assert_eq!(waves_of(&["SET a 1", "SET b 1", "GET c"]), [0, 0, 0]);
        assert_eq!(waves_of(&["INCR a", "INCR a", "INCR b", "INCR a"]), [0, 1, 0, 2]);
        assert_eq!(waves_of(&["GET a", "GET a", "SET a 1", "GET a", "GET a"]), [0, 0, 1, 2, 2]);
        assert_eq!(waves_of(&["SET a 1", "MSET a 2 b 2", "GET b", "SET c 1", "DEL b c"]), [0, 1, 2, 0, 3]);
        assert_eq!(waves_of(&["GET a", "SET b 1", "RENAME a b", "GET b", "GET a"]), [0, 0, 1, 2, 2]);
    }

    #[test]
    fn no_request_overtakes_one_that_it_must_see() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        for seed in 0..300 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let lines: Vec<_> = (0..30)
                .map(|_| {
                    let (one, two) = (rng.random_range(0..4), rng.random_range(0..4));
                    match rng.random_range(0..4) {
                        0 => format!("GET {one}"),
                        1 => format!("SET {one} x"),
                        2 => format!("MGET {one} {two}"),
                        _ => format!("MSET {one} x {two} x"),
                    }
                })
                .collect();
            let errands = errands(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let waves = waves(&errands);
            for late in 0..errands.len() {
                for early in 0..late {
                    let is_shared =
                        errands[early].keys().iter().any(|key| errands[late].keys().contains(key));
                    let is_write = errands[early].spec.is_write || errands[late].spec.is_write;
                    let is_before = waves[early] < waves[late];
                    assert!(
                        is_before || !is_shared || !is_write,
                        "seed {seed}: {early} and {late} of {lines:?}"
                    );
                }
            }
        }
    }
}
