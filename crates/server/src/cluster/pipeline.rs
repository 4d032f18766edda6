//! Requests of one connection that wait for their replies together: the requests that go through the node,
//! and the replies to requests that ran meanwhile on the connection's thread (`local`). They run in *waves*:
//! a request joins the first wave after the waves of all earlier requests that it must not overtake. The
//! connection's thread waits for all waves.
//!
//! - **PIPELINE-1** Replies have the order of the requests.
//! - **PIPELINE-2** If two requests name the same key and one of them may change it, the later one begins
//!   after the reply to the earlier one. Other requests may take effect in any order, at several nodes at
//!   once.
//! - **PIPELINE-3** A pipeline has at most [`MOST_REQUESTS`] requests, with about [`MOST_BYTES`] of memory.

use std::collections::HashMap;
use std::rc::Rc;

use azekura_fatbtree::Error;
use azekura_fatbtree::tcp::NodeContext;

use super::Cluster;
use super::gateway::{perform, refusal};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::resp::{OwnedRequest, Protocol, Reply, Request};

/// Maximum of requests of a pipeline.
const MOST_REQUESTS: usize = 64;
/// Approximate limit of the memory of a pipeline's requests and replies, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// A request with keys, to be run at their owner.
#[derive(Debug)]
pub(crate) struct KeyRequest {
    /// Index of the command in the command table.
    at: usize,
    pub(super) spec: &'static Spec,
    pub(super) request: OwnedRequest,
}

impl KeyRequest {
    /// Creates the request of a command with keys.
    pub(crate) fn new(at: usize, spec: &'static Spec, request: Request<'_>) -> Self {
        Self { at, spec, request: request.to_owned() }
    }

    pub(super) fn keys(&self) -> Vec<&[u8]> {
        command::keys_of(self.spec, self.request.as_request())
    }
}

/// Requests that will run together, and replies to other requests that must be sent in the same order.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    entries: Vec<Entry>,
    /// The keys of the requests; `true` if a request may change the key.
    keys: HashMap<Vec<u8>, bool>,
    bytes: usize,
}

#[derive(Debug)]
enum Entry {
    Request(KeyRequest),
    Done(Result<Reply, CommandError>),
}

/// Reply to a request. If the request ran in the pipeline, with the index of its command in the command
/// table.
pub(crate) type Replied = (Option<usize>, Result<Reply, CommandError>);

impl Pipeline {
    pub(crate) fn add(&mut self, request: KeyRequest) {
        self.bytes += request.request.as_request().kept_bytes();
        for key in request.keys() {
            self.bytes += key.len() + size_of::<(Vec<u8>, bool)>();
            *self.keys.entry(key.to_vec()).or_default() |= request.spec.is_write;
        }
        self.entries.push(Entry::Request(request));
    }

    /// Adds the reply to a request that has already run (PIPELINE-1).
    pub(crate) fn add_reply(&mut self, reply: Result<Reply, CommandError>) {
        self.bytes += size_of::<Entry>() + reply.as_ref().map_or(0, Reply::value_bytes);
        self.entries.push(Entry::Done(reply));
    }

    /// Returns `true` if a request must not overtake a request of the pipeline (PIPELINE-2).
    pub(crate) fn must_come_before(&self, spec: &Spec, request: Request<'_>) -> bool {
        let must_wait_for = |key: &[u8]| self.keys.get(key).is_some_and(|writes| *writes || spec.is_write);
        !self.keys.is_empty()
            && command::key_places(spec, request.len()).any(|at| must_wait_for(request.arg(at)))
    }

    /// Returns `true` if the pipeline accepts no more requests (PIPELINE-3).
    pub(crate) const fn is_full(&self) -> bool {
        self.entries.len() >= MOST_REQUESTS || self.bytes >= MOST_BYTES
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Returns the wave of each request, counted from 0 (PIPELINE-2).
fn waves(requests: &[KeyRequest]) -> Vec<usize> {
    /// First wave in which a key may be read, and first wave in which it may be changed.
    #[derive(Default)]
    struct Free {
        to_read: usize,
        to_change: usize,
    }
    let mut free: HashMap<&[u8], Free> = HashMap::new();
    let mut waves = Vec::with_capacity(requests.len());
    for request in requests {
        let keys = request.keys();
        let after = |key: &&[u8]| {
            let free = free.get(key)?;
            Some(if request.spec.is_write { free.to_change } else { free.to_read })
        };
        let wave = keys.iter().filter_map(after).max().unwrap_or(0);
        for key in keys {
            let free = free.entry(key).or_default();
            free.to_change = free.to_change.max(wave + 1);
            if request.spec.is_write {
                free.to_read = wave + 1;
            }
        }
        waves.push(wave);
    }
    waves
}

impl Cluster {
    /// Runs all requests of a pipeline, and returns all replies in request order. Blocks.
    pub(crate) fn run_pipeline(&self, pipeline: &mut Pipeline, protocol: Protocol) -> Vec<Replied> {
        let Pipeline { entries, .. } = std::mem::take(pipeline);
        let mut requests = Vec::with_capacity(entries.len());
        let mut replies: Vec<Replied> = Vec::with_capacity(entries.len());
        for entry in entries {
            replies.push(match entry {
                Entry::Done(reply) => (None, reply),
                Entry::Request(request) => {
                    let at = request.at;
                    requests.push(request);
                    (Some(at), Err(refusal(Error::Interrupted))) // replaced when the request has run
                }
            });
        }
        let (waves, most_bytes) = (waves(&requests), self.max_reply_bytes);
        self.waits.add(waves.iter().max().map_or(0, |last| *last as u64 + 1));
        let done = self.at_node(move |here| {
            Box::pin(async move { go(&here, requests, &waves, protocol, most_bytes).await })
        });
        match done {
            Ok(done) => {
                let ran = replies.iter_mut().filter(|(at, _)| at.is_some());
                ran.zip(done).for_each(|((_, reply), done)| *reply = done);
            }
            Err(error) => {
                let ran = replies.iter_mut().filter(|(at, _)| at.is_some());
                ran.for_each(|(_, reply)| *reply = Err(error.clone()));
            }
        }
        replies
    }
}

async fn go(
    here: &Rc<NodeContext>,
    requests: Vec<KeyRequest>,
    waves: &[usize],
    protocol: Protocol,
    most_bytes: usize,
) -> Vec<Result<Reply, CommandError>> {
    let mut left: Vec<_> = requests.into_iter().map(Some).collect();
    let mut replies: Vec<_> = left.iter().map(|_| Err(refusal(Error::Interrupted))).collect();
    for wave in 0..=waves.iter().copied().max().unwrap_or(0) {
        let mut tasks = Vec::new();
        for (place, request) in left.iter_mut().enumerate().filter(|(place, _)| waves[*place] == wave) {
            if let Some(request) = request.take() {
                let task = here.beside(|here| {
                    Box::pin(async move { perform(&here, &request, protocol, most_bytes).await })
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

    fn requests(lines: &[&str]) -> Vec<KeyRequest> {
        let request = |line: &&str| {
            let request = OwnedRequest::from_arguments(line.split(' ').map(str::as_bytes));
            let (at, spec) = command::find(request.as_request().arg(0)).expect("a command");
            KeyRequest::new(at, spec, request.as_request())
        };
        lines.iter().map(request).collect()
    }

    fn waves_of(lines: &[&str]) -> Vec<usize> {
        waves(&requests(lines))
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
    fn a_request_waits_for_the_pipeline_if_it_shares_a_key_that_one_of_both_may_change() {
        let mut pipeline = Pipeline::default();
        for request in requests(&["GET a", "MSET b 1 c 1", "MGET c d"]) {
            pipeline.add(request);
        }
        let waits = |line: &str| {
            let later = requests(&[line]).remove(0);
            pipeline.must_come_before(later.spec, later.request.as_request())
        };
        for (line, expected) in [
            ("GET a", false),
            ("SET a 1", true),
            ("GET b", true),
            ("MGET d a", false),
            ("MGET e c", true),
            ("DEL e d", true),
            ("SET e 1", false),
            ("MSET 1 a", false),
        ] {
            assert_eq!(waits(line), expected, "{line}");
        }
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
            let requests = requests(&lines.iter().map(String::as_str).collect::<Vec<_>>());
            let waves = waves(&requests);
            for late in 0..requests.len() {
                for early in 0..late {
                    let is_shared =
                        requests[early].keys().iter().any(|key| requests[late].keys().contains(key));
                    let is_write = requests[early].spec.is_write || requests[late].spec.is_write;
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
