//! RESUME-1 to RESUME-4: a session with a broken stream, a client that reconnects, and another that needs the
//! session's memory, in every interleaving.
//!
//! The model has no clock: a timeout of zero ends at once, any other one never. So a missing wake-up leaves a
//! thread blocked, which loom reports.
#![cfg(loom)]

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use azekura_base::sync::{Arc, thread};
use azekura_far::model::{ModelResumeTable, ModelStream};
use std::time::Duration;

const NAME: u128 = 77;
/// Connection numbers: the session's first connection, and that of the client that reconnects.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
const FOR_EVER: Duration = Duration::from_secs(3600);
const NOT_AT_ALL: Duration = Duration::ZERO;

#[derive(Default)]
struct House {
    resume_table: ModelResumeTable,
    closed: Arc<AtomicU32>,
    served: AtomicU32,
    /// Set when the session has ended and serves no more connections.
    over: AtomicU32,
}

impl House {
    /// Starts a session with a broken first stream. The session waits for `linger` for each further stream.
    fn with_session(linger: Duration) -> (Arc<Self>, thread::JoinHandle<()>) {
        let house = Arc::new(Self::default());
        let inside = Arc::clone(&house);
        // The resume point exists before a client reconnects, because the client got the session's name in
        // the handshake.
        let opened = Arc::new(AtomicU32::new(0));
        let resume_point_is_open = Arc::clone(&opened);
        let session = thread::spawn(move || {
            let resume_point = inside.resume_table.open(NAME, FIRST);
            resume_point_is_open.store(1, SeqCst);
            while let Some(stream) = resume_point.wait(linger) {
                assert_eq!(stream.number, SECOND);
                assert_eq!(inside.closed.load(SeqCst), 0, "a stream that is served is not closed");
                inside.served.fetch_add(1, SeqCst);
            }
            inside.over.store(1, SeqCst);
            drop(resume_point);
        });
        while opened.load(SeqCst) == 0 {
            thread::yield_now();
        }
        (house, session)
    }

    fn newcomer(&self) -> ModelStream {
        ModelStream { number: SECOND, closed: Arc::clone(&self.closed) }
    }

    /// Reconnects a client. Returns `true` if the session accepted it.
    fn come_back(&self) -> bool {
        let is_over = self.over.load(SeqCst) == 1;
        match self.resume_table.leave(NAME, self.newcomer()) {
            Ok(ended) => {
                assert!(!is_over, "nobody is taken at a resume_point behind which nobody serves any more");
                assert!(ended.is_none_or(|connection| connection == FIRST));
                true
            }
            Err(stream) => {
                assert_eq!(stream.number, SECOND);
                false
            }
        }
    }
}

fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn a_client_that_reconnects_to_a_waiting_session_is_served() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        assert!(house.come_back(), "it waits for ever");
        while house.served.load(SeqCst) == 0 {
            thread::yield_now();
        }
        house.resume_table.close();
        session.join().expect("no panic");
        assert_eq!((house.served.load(SeqCst), house.closed.load(SeqCst)), (1, 1));
        assert_eq!(house.resume_table.count(), 0);
    });
}

#[test]
fn a_reconnect_at_the_time_limit_is_served_or_refused() {
    model(|| {
        let (house, session) = House::with_session(NOT_AT_ALL);
        let was_taken = house.come_back();
        session.join().expect("no panic");
        let served = house.served.load(SeqCst);
        assert!(served <= u32::from(was_taken));
        assert_eq!(house.closed.load(SeqCst), 1, "no stream is left open");
    });
}

#[test]
fn a_shutdown_wakes_waiting_sessions_and_sessions_about_to_wait() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        house.resume_table.close();
        session.join().expect("no panic");
        assert!(!house.come_back(), "the server has ended");
        assert_eq!(house.resume_table.count(), 0);
    });
}

#[test]
fn an_evicted_session_serves_or_refuses_a_concurrent_reconnect() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        let back = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.come_back())
        };
        let made_way = house.resume_table.make_way();
        let was_taken = back.join().expect("no panic");
        // A session that still exists ends now.
        house.resume_table.close();
        session.join().expect("no panic");
        assert!(made_way || was_taken || house.served.load(SeqCst) == 0);
        assert!(house.served.load(SeqCst) <= u32::from(was_taken));
        assert_eq!(house.closed.load(SeqCst), 1, "no stream is left open");
        assert!(!house.resume_table.make_way(), "nobody waits");
    });
}

#[test]
fn a_request_for_space_gets_the_space_of_an_ended_session() {
    model(|| {
        let (house, session) = House::with_session(FOR_EVER);
        while !house.resume_table.make_way() {
            thread::yield_now();
        }
        // Relaxed: the mutex of the resume point provides the ordering.
        assert_eq!((house.over.load(Relaxed), house.resume_table.count()), (1, 0));
        session.join().expect("no panic");
    });
}

#[test]
fn a_reconnect_to_an_ending_session_finds_its_stream_closed() {
    model(|| {
        let house = Arc::new(House::default());
        let resume_point = house.resume_table.open(NAME, FIRST);
        let back = {
            let house = Arc::clone(&house);
            thread::spawn(move || house.come_back())
        };
        drop(resume_point);
        back.join().expect("no panic");
        assert_eq!((house.closed.load(SeqCst), house.resume_table.count()), (1, 0), "no stream is left open");
    });
}
