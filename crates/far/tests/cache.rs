//! The far cache returns the image that was offered last, or nothing.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::server::fault_injector::{FaultInjector, InjectedAction};
use azekura_far::{AuthKey, FarCache, FarCacheStats, Server};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Longer than the delays of a slow machine: no server counts as stalled.
const STALL: Duration = Duration::from_secs(60);

fn cache(server: &Server) -> FarCache {
    let setting = FarCache::builder().servers([server.address().to_string()]).stall(STALL);
    setting.bytes(64 << 10).page(PAGE).build().unwrap()
}

fn wait_for(cache: &FarCache, what: &str, done: impl Fn(&FarCacheStats) -> bool) {
    let since = Instant::now();
    while !done(&cache.stats()) {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "{what}: not within a minute: {:?}",
            cache.stats()
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Offers an image, repeatedly until the cache returns it.
fn offer(cache: &FarCache, page: u64, value: u8) {
    let since = Instant::now();
    loop {
        cache.offer(page, cache.stamp(page), &[value; PAGE]);
        if read(cache, page) == Some(value) {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "not within a minute: {:?}", cache.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn read(cache: &FarCache, page: u64) -> Option<u8> {
    let mut out = [0; PAGE];
    cache.get(page, &mut out).then(|| {
        assert!(out.iter().all(|byte| *byte == out[0]));
        out[0]
    })
}

#[test]
fn an_offered_image_is_returned_until_its_page_is_written() {
    let server = Server::builder().capacity(1 << 20).listen("127.0.0.1:0").unwrap();
    let cache = cache(&server);
    assert_eq!(read(&cache, 7), None);
    offer(&cache, 7, 1);
    cache.forget([7]);
    assert_eq!(read(&cache, 7), None);
    offer(&cache, 7, 2);
}

#[test]
fn an_image_that_is_offered_late_is_refused_if_its_page_was_written_meanwhile() {
    let server = Server::builder().capacity(1 << 20).listen("127.0.0.1:0").unwrap();
    let cache = cache(&server);
    let evicting = cache.stamp(7);
    cache.forget([7]); // another thread has read the page from disk and writes it
    offer(&cache, 7, 2); // and evicts it
    cache.offer(7, evicting, &[1; PAGE]);
    assert_eq!(read(&cache, 7), Some(2));
    cache.forget([7]);
    cache.offer(7, evicting, &[1; PAGE]);
    assert_eq!((read(&cache, 7), cache.stats().images), (None, 0));
}

#[test]
fn of_more_images_than_there_is_room_for_the_newest_are_there() {
    let server = Server::builder().capacity(1 << 20).listen("127.0.0.1:0").unwrap();
    let cache = cache(&server);
    (0..100).for_each(|page| offer(&cache, page, page as u8));
    assert_eq!((cache.stats().images, cache.stats().capacity), (16, 16));
    assert!((0..99).filter(|&page| read(&cache, page).is_some()).count() == 15);
}

/// A fault injector that ends the session at each request while it is enabled.
#[derive(Debug)]
struct Dies(AtomicBool);

impl FaultInjector for Dies {
    fn act(&self, _is_put: bool, _page: u64) -> InjectedAction {
        if self.0.load(Relaxed) { InjectedAction::Die } else { InjectedAction::Serve }
    }
}

#[test]
fn a_lost_server_causes_misses_and_is_used_again_after_its_return() {
    let dies = Arc::new(Dies(AtomicBool::new(false)));
    let server =
        Server::builder().capacity(1 << 20).fault_injector(dies.clone()).listen("127.0.0.1:0").unwrap();
    let cache = cache(&server);
    offer(&cache, 7, 1);
    dies.0.store(true, Relaxed);
    assert_eq!(read(&cache, 7), None);
    wait_for(&cache, "a loss", |stats| stats.losses == 1);
    dies.0.store(false, Relaxed);
    wait_for(&cache, "the server again", |stats| stats.servers_up == 1);
    assert_eq!(read(&cache, 7), None, "it has come back empty");
    offer(&cache, 7, 3);
}

#[test]
fn a_wrong_key_is_a_reported_miss() {
    let key = |text: &[u8]| AuthKey::new(text).unwrap();
    let server = Server::builder().auth_key(key(b"0123456789abcdef")).listen("127.0.0.1:0").unwrap();
    let address = server.address().to_string();
    let cache = FarCache::builder().servers([address]).bytes(1 << 20).page(PAGE);
    let cache = cache.auth_key(key(b"another key of it")).stall(STALL).build().unwrap();
    cache.offer(7, cache.stamp(7), &[1; PAGE]);
    assert_eq!((read(&cache, 7), cache.stats().servers_up), (None, 0));
    let why = cache.stats().last_loss.unwrap();
    assert!(why.contains("the keys of client and server differ"), "{why}");
}
