//! F4: a memory server that dies, stalls or returns wrong data never makes the program read wrong bytes. With
//! a second copy the program continues. Without one it is ended with a message that states the reason. The
//! servers fail at a random request, and each trial prints its seed.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::server::fault_injector::{FaultInjector, InjectedAction};
use azekura_far::{FarMemory, FarMemoryBuilder, Mechanism, Server};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAGE: usize = 8 << 10;
const PAGES: usize = 48;
/// Longer than the delays of a slow machine: no server counts as stalled.
const STALL: Duration = Duration::from_secs(60);
const WRONGS: [InjectedAction; 7] = [
    InjectedAction::Die,
    InjectedAction::Stall,
    InjectedAction::Lie,
    InjectedAction::Damage,
    InjectedAction::Zeros,
    InjectedAction::Deny,
    InjectedAction::Babble,
];

/// Serves a number of requests correctly, then fails at every request.
#[derive(Debug)]
struct After {
    left: AtomicI64,
    act: InjectedAction,
}

impl FaultInjector for After {
    fn act(&self, _is_put: bool, _page: u64) -> InjectedAction {
        if self.left.fetch_sub(1, Relaxed) > 0 { InjectedAction::Serve } else { self.act }
    }
}

fn good() -> Server {
    good_at("127.0.0.1:0")
}

fn good_at(address: &str) -> Server {
    Server::builder().capacity(32 << 20).listen(address).unwrap()
}

fn bad(after: i64, act: InjectedAction) -> Server {
    let fault_injector = Arc::new(After { left: AtomicI64::new(after), act });
    Server::builder().capacity(32 << 20).fault_injector(fault_injector).listen("127.0.0.1:0").unwrap()
}

/// Returns the stall time. With a server that stalls, the test waits so long, and the other server must not
/// count as stalled on a slow machine.
fn stall_for(act: InjectedAction) -> Duration {
    if act == InjectedAction::Stall { Duration::from_secs(6) } else { STALL }
}

fn setting(servers: &[&Server]) -> FarMemoryBuilder {
    let names = servers.iter().map(|server| server.address().to_string());
    FarMemory::builder().bytes(PAGES * PAGE).local(12 * PAGE).page(PAGE).servers(names).stall(STALL)
}

/// Writes and reads, and compares with a plain array. Panics at the first wrong byte.
fn work(memory: &mut [u8], rng: &mut StdRng, rounds: usize) {
    let mut plain = vec![0_u8; memory.len()];
    for round in 0..rounds {
        let at = rng.random_range(0..PAGES) * PAGE;
        let span = at..at + PAGE;
        if rng.random() {
            let value = rng.random();
            memory[span.clone()].fill(value);
            plain[span].fill(value);
        } else {
            assert!(memory[span.clone()] == plain[span], "round {round}, page {}", at / PAGE);
        }
    }
    assert!(*memory == plain[..], "the whole at the end");
}

/// Runs trials in several threads: most of them wait for time limits.
fn in_threads(trials: u64, trial: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..14 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed); // Relaxed: only the number is shared
                    if number >= trials {
                        return;
                    }
                    trial(number);
                }
            });
        }
    });
}

/// Tests that wait for time limits most of the time.
const WAITING: [fn(); 4] = [two_copies, spill_file, one_copy, stopped_program];

/// Runs one of the tests that wait. The first call starts all of them, so that they wait at the same time,
/// whatever the number of test threads is.
fn wait_beside_others(which: fn()) {
    static BEGUN: Mutex<Option<Vec<(fn(), JoinHandle<()>)>>> = Mutex::new(None);
    let mut begun = BEGUN.lock().unwrap();
    let all = begun.get_or_insert_with(|| WAITING.map(|test| (test, thread::spawn(test))).into());
    let own = all.iter().position(|&(test, _)| std::ptr::fn_addr_eq(test, which)).unwrap();
    let (_, own) = all.swap_remove(own);
    drop(begun);
    own.join().unwrap_or_else(|panic| resume_unwind(panic));
}

#[test]
fn f4_with_two_copies_any_wrong_of_one_server_leaves_every_byte_right() {
    wait_beside_others(two_copies);
}

fn two_copies() {
    in_threads(28, |trial| {
        let mut rng = StdRng::seed_from_u64(trial);
        let act = WRONGS[trial as usize % WRONGS.len()];
        println!("seed {trial}: {act:?}");
        let (a, b) = (bad(rng.random_range(0..150), act), good());
        let servers = if rng.random() { [&a, &b] } else { [&b, &a] };
        let mut memory = setting(&servers).copies(2).stall(stall_for(act)).build().unwrap();
        work(&mut memory, &mut rng, 250);
    });
}

#[test]
fn f4_with_a_spill_file_any_wrong_of_the_only_server_leaves_every_byte_right() {
    wait_beside_others(spill_file);
}

fn spill_file() {
    let directory = tempfile::tempdir().unwrap();
    in_threads(14, |trial| {
        let mut rng = StdRng::seed_from_u64(100 + trial);
        let act = WRONGS[trial as usize % WRONGS.len()];
        println!("seed {}: {act:?}", 100 + trial);
        let server = bad(rng.random_range(0..150), act);
        let spill = directory.path().join(format!("spill-{trial}"));
        let mut memory = setting(&[&server])
            .mechanism(Mechanism::Sigsegv)
            .spill(spill)
            .stall(stall_for(act))
            .build()
            .unwrap();
        work(&mut memory, &mut rng, 250);
    });
}

#[test]
fn a_program_begins_without_a_server_that_does_not_answer_if_others_have_its_copies() {
    let (other, mut lost) = (good(), good());
    let setting = setting(&[&lost, &other]);
    lost.shutdown();
    let spill = tempfile::tempdir().unwrap();
    for setting in [setting.clone().copies(2), setting.clone().spill(spill.path().join("pages"))] {
        let mut memory = setting.build().unwrap();
        work(&mut memory, &mut StdRng::seed_from_u64(8), 300);
    }
    // The pages of the lost server would have no place.
    assert!(setting.clone().build().unwrap_err().to_string().starts_with("cannot connect"));
    drop(other);
    assert!(setting.copies(2).build().unwrap_err().to_string().starts_with("cannot connect"));
}

#[test]
fn f4_a_restarted_server_is_used_again_and_copies_are_restored() {
    // A separate loopback address, so that no other process gets the port before it is used again.
    let (mut a, b) = (good_at("127.0.0.77:0"), good());
    let address = a.address().to_string();
    let mut memory = setting(&[&a, &b]).copies(2).build().unwrap();
    memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 241) as u8);
    a.shutdown();
    assert!(memory.iter().enumerate().all(|(i, &byte)| byte == (i % 241) as u8));
    let a = good_at(&address);
    wait_for("second copies of all pages", || {
        memory.stats().replicas_regained == 1 && memory.stats().thin_pages == 0
    });
    assert!(a.stats().pages > 20);
    drop(b); // only the first server is left, so its repeated copies must suffice
    assert!(memory.iter().enumerate().all(|(i, &byte)| byte == (i % 241) as u8));
    // The loss is detected by a separate thread, also without a request.
    wait_for("the second loss", || memory.stats().replicas_lost == 2);
    assert_eq!(memory.stats().replicas_regained, 1);
}

#[test]
fn a_server_without_room_is_passed_by() {
    let (small, large) = (Server::builder().capacity(8 * PAGE as u64).listen("127.0.0.1:0").unwrap(), good());
    let mut memory = setting(&[&small, &large]).reserve(0).build().unwrap();
    work(&mut memory, &mut StdRng::seed_from_u64(7), 300);
    assert!((1..=8).contains(&small.stats().pages));
    assert!(small.stats().refused > 0 && memory.stats().replicas_lost == 0);
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Child process of the next test: works until its server fails, which must end the process.
#[test]
#[ignore = "run by f4_without_a_second_copy_the_program_is_stopped_with_the_reason"]
fn child_without_a_second_copy() {
    let Ok(trial) = std::env::var("FAR_TRIAL") else { return };
    let trial: u64 = trial.parse().unwrap();
    let mut rng = StdRng::seed_from_u64(trial);
    let act = WRONGS[trial as usize % WRONGS.len()];
    let server = bad(rng.random_range(20..100), act);
    let mut memory = setting(&[&server]).stall(stall_for(act)).build().unwrap();
    work(&mut memory, &mut rng, 4000);
    println!("went to the end");
}

#[test]
fn f4_without_a_second_copy_the_program_is_stopped_with_the_reason() {
    wait_beside_others(one_copy);
}

fn one_copy() {
    in_threads(WRONGS.len() as u64, |trial| {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "child_without_a_second_copy", "--nocapture"])
            .env("FAR_TRIAL", trial.to_string())
            .output()
            .unwrap();
        let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!out.status.success() && !said.contains("went to the end"), "seed {trial}: {said}{error}");
        assert!(
            !error.contains("panicked") && !said.contains("panicked"),
            "seed {trial}: a wrong byte was seen: {said}{error}"
        );
        assert!(
            error.contains("azekura far memory: ") && error.contains("run with --copies 2")
                || error.contains("no server stored page"),
            "seed {trial}: {error}"
        );
    });
}

/// Child process of the next test: its page is lost, and the function that should end the process panics in a
/// thread of the layer.
#[test]
#[ignore = "run by a_thread_of_ours_that_panics_ends_the_process_that_would_wait_for_it"]
fn child_whose_pager_panics() {
    if std::env::var_os("FAR_PANICS").is_none() {
        return;
    }
    let mut server = good();
    let mut memory = setting(&[&server]).on_loss(|why| panic!("on purpose: {why}")).build().unwrap();
    memory.fill(7);
    server.shutdown();
    let _ = memory.iter().filter(|byte| **byte != 7).count();
    println!("went to the end");
}

#[test]
fn a_thread_of_ours_that_panics_ends_the_process_that_would_wait_for_it() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_whose_pager_panics", "--nocapture"])
        .env("FAR_PANICS", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while child.try_wait().unwrap().is_none() && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let hangs = child.try_wait().unwrap().is_none();
    let _ = child.kill();
    let out = child.wait_with_output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(!hangs && !out.status.success() && !said.contains("went to the end"), "{said}{error}");
    assert!(error.contains("on purpose") && error.contains("would wait for ever"), "{said}{error}");
}

/// A fault injector that blocks all requests while it is held, as if the machine were paused.
#[derive(Debug, Default)]
struct Held(AtomicBool);

impl FaultInjector for Held {
    fn act(&self, _is_put: bool, _page: u64) -> InjectedAction {
        while self.0.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        InjectedAction::Serve
    }
}

/// Child process of the next test: works until it gets the signal to end.
#[test]
#[ignore = "run by a_program_that_was_stopped_does_not_blame_its_servers"]
fn child_that_is_stopped() {
    let Ok(servers) = std::env::var("FAR_SERVERS") else { return };
    let setting =
        FarMemory::builder().bytes(PAGES * PAGE).local(12 * PAGE).page(PAGE).servers(servers.split(','));
    let mut memory = setting.copies(2).stall(Duration::from_secs(2)).build().unwrap();
    let wanted = std::thread::spawn(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    let mut rng = StdRng::seed_from_u64(5);
    while !wanted.is_finished() {
        memory.fill(0);
        work(&mut memory, &mut rng, 250);
    }
    println!("went to the end, {} servers lost", memory.stats().replicas_lost);
}

/// A server is also lost if the machine stops a thread of this process for as long as the child's limit, 2 s.
/// So one right trial of five is enough.
#[test]
fn a_program_that_was_stopped_does_not_blame_its_servers() {
    wait_beside_others(stopped_program);
}

fn stopped_program() {
    let wrong: Vec<String> = (0..5).map_while(|_| stop_child().err()).collect();
    assert!(wrong.len() < 5, "{wrong:?}");
}

/// Stops a child while it waits for a reply. Returns the output of a child that lost a server.
fn stop_child() -> Result<(), String> {
    let held = Arc::new(Held::default());
    let server = || {
        let fault_injector: Arc<dyn FaultInjector> = held.clone();
        Server::builder().capacity(32 << 20).fault_injector(fault_injector).listen("127.0.0.1:0").unwrap()
    };
    let (server, other) = (server(), server());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_that_is_stopped", "--nocapture"])
        .env("FAR_SERVERS", format!("{},{}", server.address(), other.address()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    let mut has_ended = false;
    while server.stats().pages <= 20 && !has_ended {
        assert!(since.elapsed() < Duration::from_secs(60), "no pages of the child within a minute");
        std::thread::sleep(Duration::from_millis(10));
        has_ended = child.try_wait().unwrap().is_some();
    }
    if !has_ended {
        stop_for_longer_than_the_limit(&child, &held);
    }
    drop(child.stdin.take());
    let out = child.wait_with_output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let is_wrong_byte = error.contains("round ") || error.contains("the whole at the end");
    assert!(!is_wrong_byte, "{said}{error}");
    let is_right = out.status.success() && said.contains("went to the end, 0 servers lost");
    if is_right { Ok(()) } else { Err(format!("{said}{error}")) }
}

/// Stops a child that was not waited for while its servers send no replies.
fn stop_for_longer_than_the_limit(child: &Child, held: &Held) {
    let signal = |which| {
        // SAFETY: the call accesses no memory. The child has not been waited for, so its process number is
        // still valid.
        assert_eq!(unsafe { libc::kill(child.id() as i32, which) }, 0);
    };
    // The child is stopped while it waits for a reply, for longer than the limit of an unanswered request.
    // The reply does not arrive at once when it continues.
    held.0.store(true, Relaxed);
    std::thread::sleep(Duration::from_millis(100));
    signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(8500));
    signal(libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(100));
    held.0.store(false, Relaxed);
    std::thread::sleep(Duration::from_millis(100));
}
