//! `azekura cluster`, with processes, one of which is killed. Every acknowledged write is found again through
//! every node.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Run, Scratch};

/// Time limit for a request or a command that is repeated. A node that the machine does not run for some
/// seconds is down for the others meanwhile: they refuse requests for its keys, or report an unknown outcome.
const LIMIT: Duration = Duration::from_secs(120);

/// Repeats `attempt` until `is_done` accepts its result or [`LIMIT`] has passed. Returns the last result.
fn repeated<T>(mut attempt: impl FnMut() -> T, is_done: impl Fn(&T) -> bool) -> T {
    let began = Instant::now();
    loop {
        let result = attempt();
        if is_done(&result) || began.elapsed() > LIMIT {
            return result;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A cluster that stops when the test ends.
struct Started<'a> {
    scratch: &'a Scratch,
    /// The client addresses of the nodes.
    addresses: Vec<String>,
}

impl<'a> Started<'a> {
    fn start(scratch: &'a Scratch, arguments: &[&str]) -> Self {
        let mut started = Self { scratch, addresses: Vec::new() };
        started.addresses = addresses(&started.run("start", arguments));
        started
    }

    fn run(&self, action: &str, arguments: &[&str]) -> String {
        let run = self.attempt(action, arguments);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout
    }

    /// Repeats a command until it succeeds. Returns its output.
    fn run_until_done(&self, action: &str, arguments: &[&str]) -> String {
        let run = repeated(|| self.attempt(action, arguments), |run: &Run| run.code == 0);
        assert_eq!(run.code, 0, "{run:?}");
        run.stdout
    }

    fn attempt(&self, action: &str, arguments: &[&str]) -> Run {
        // A relative path, as in the documents.
        Run::in_dir(self.scratch, &[&["cluster", action, "--dir", "try"], arguments].concat())
    }

    /// Returns the lines of the map, without its heading, as words.
    fn map(&self) -> Vec<Vec<String>> {
        let map = self.run_until_done("map", &[]);
        map.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// Returns the owner of each leaf.
    fn owners(&self) -> Vec<String> {
        self.map().into_iter().filter_map(|line| line.into_iter().rev().nth(2)).collect()
    }

    fn client(&self, node: usize) -> Client {
        Client(BufReader::new(TcpStream::connect(&self.addresses[node]).unwrap()))
    }
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        let dir = self.scratch.path("try");
        let _ = Run::of(&["cluster", "stop", "--kill", "--dir", dir.to_str().unwrap()]);
    }
}

/// Returns the addresses that `start` and `join` have printed.
fn addresses(said: &str) -> Vec<String> {
    let address = |line: &str| {
        line.split_once("clients on ")?.1.split_once(": ").map(|(address, _)| address.to_owned())
    };
    said.lines().filter_map(address).collect()
}

struct Client(BufReader<TcpStream>);

impl Client {
    /// Sends a line and returns the reply, a value or the line itself; `None` once the node has ended.
    fn ask(&mut self, request: &str) -> Option<String> {
        self.0.get_mut().write_all(format!("{request}\r\n").as_bytes()).ok()?;
        let mut line = String::new();
        if self.0.read_line(&mut line).ok()? == 0 || !line.ends_with('\n') {
            return None;
        }
        match line.strip_prefix('$').and_then(|length| length.trim().parse::<usize>().ok()) {
            None => Some(line.trim_end().to_owned()),
            Some(length) => {
                let mut value = vec![0; length + 2];
                self.0.read_exact(&mut value).ok()?;
                Some(String::from_utf8_lossy(&value[..length]).into_owned())
            }
        }
    }

    /// Repeats a request until a node executes it, and returns the reply. A request that is executed twice
    /// must have the same effect.
    fn served(&mut self, request: &str) -> String {
        let is_served = |reply: &String| !reply.starts_with("-UNAVAIL") && !reply.starts_with("-UNKNOWN");
        repeated(|| self.ask(request).expect("the node runs"), is_served)
    }
}

/// Ends the writers of a test, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_node_that_is_killed_loses_nothing_that_was_answered() {
    let scratch = Scratch::new();
    let cluster = Started::start(&scratch, &["--nodes", "3", "--split-at", "h,p"]);
    assert_eq!(cluster.addresses.len(), 3);
    let (acked, answers, is_over) =
        (Mutex::new(BTreeMap::new()), AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for writer in 0..4 {
            // Two writers use the node that will be killed.
            let (mut client, acked, answers, is_over) =
                (cluster.client(writer % 2), &acked, &answers, &is_over);
            scope.spawn(move || {
                for number in 0_u32.. {
                    let letter = char::from(b'a' + (number * 7 % 26) as u8);
                    let key = format!("{letter}{writer}.{number}");
                    match client.ask(&format!("SET {key} {number}")).as_deref() {
                        Some("+OK") => drop(acked.lock().unwrap().insert(key, number.to_string())),
                        None => return,
                        Some(_) => {}
                    }
                    answers.fetch_add(1, SeqCst);
                    if is_over.load(SeqCst) {
                        return;
                    }
                }
            });
        }
        let wait_for = |more: usize| {
            let until = answers.load(SeqCst) + more;
            while answers.load(SeqCst) < until {
                thread::yield_now();
            }
        };
        wait_for(100);
        cluster.run("stop", &["--node", "1", "--kill"]);
        // Until then requests for the node's keys wait.
        cluster.run("start", &[]);
        wait_for(100);
    });
    let acked = acked.into_inner().unwrap();
    assert!(acked.len() > 100, "{}", acked.len());
    for node in 0..3 {
        let mut client = cluster.client(node);
        for (key, value) in &acked {
            assert_eq!(&client.served(&format!("GET {key}")), value, "{key} from node {node}");
        }
    }
}

/// Other nodes treat a node that was stopped by SIGSTOP as down, although the kernel keeps its connections
/// open.
#[test]
fn a_stopped_process_is_down_for_other_nodes_until_it_runs_again() {
    let scratch = Scratch::new();
    let cluster = Started::start(&scratch, &["--nodes", "2", "--split-at", "m"]);
    let mut client = cluster.client(0);
    assert_eq!(client.served("SET zebra striped"), "+OK");
    let process = fs::read_to_string(scratch.path("try/node-1.pid")).unwrap();
    let pid = process.split_whitespace().next().unwrap().parse().unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // First requests are rejected after their time limit. Once heartbeats are missed, they are rejected
    // without a wait.
    loop {
        let refused = client.ask("GET zebra").unwrap();
        // The signal takes a moment to stop all threads.
        assert!(refused.starts_with("-UNAVAIL") || refused == "striped", "{refused}");
        if refused.contains("no sign of life") {
            break;
        }
    }
    assert_eq!(client.served("GET apple"), "$-1");
    kill_process(pid, Signal::CONT).unwrap();
    loop {
        match client.ask("GET zebra").as_deref() {
            Some("striped") => break,
            Some(refused) => assert!(refused.starts_with("-UNAVAIL"), "{refused}"),
            None => panic!("node 0 is gone"),
        }
    }
}

/// A stopped process does not execute the writes that arrived meanwhile, after their clients got the error
/// that the outcome is unknown and have written again.
#[test]
fn a_stopped_process_does_not_execute_old_writes_when_it_runs_again() {
    let scratch = Scratch::new();
    let cluster = Started::start(&scratch, &["--nodes", "2", "--split-at", "m"]);
    let (mut client, mut owner) = (cluster.client(0), cluster.client(1));
    let process = fs::read_to_string(scratch.path("try/node-1.pid")).unwrap();
    let pid = Pid::from_raw(process.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
    for round in 0..3 {
        assert_eq!(client.served("SET zebra first"), "+OK", "node 1 does not come back");
        kill_process(pid, Signal::STOP).unwrap();
        let unknown = client.ask(&format!("SET zebra old-{round}")).unwrap();
        // A node that was down before the write is not asked. The signal takes a moment to stop all threads.
        let replies = ["-UNKNOWN", "-UNAVAIL", "+OK"];
        assert!(replies.iter().any(|reply| unknown.starts_with(reply)), "{unknown}");
        let counted = client.ask("DBSIZE").unwrap();
        let is_refused = counted.starts_with("-UNAVAIL") && !counted.contains("may or may not");
        assert!(is_refused || unknown == "+OK", "{counted}");
        owner.0.get_mut().write_all(b"SET zebra new\r\n").unwrap();
        kill_process(pid, Signal::CONT).unwrap();
        let set = owner.ask("PING").unwrap();
        let mut line = String::new();
        owner.0.read_line(&mut line).unwrap();
        // The outcome is unknown if the machine does not run the node for the time limit of the request.
        let is_late = set.starts_with("-UNKNOWN") || set.starts_with("-UNAVAIL");
        assert!(set == "+OK" || is_late && owner.served("SET zebra new") == "+OK", "{set}");
        for _ in 0..50 {
            assert_eq!(owner.served("GET zebra"), "new");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_cluster_is_started_looked_at_changed_and_stopped_by_commands() {
    let scratch = Scratch::new();
    let cluster = Started::start(&scratch, &["--nodes", "2"]);
    assert_eq!(cluster.client(0).served("SET zebra striped"), "+OK");
    assert!(cluster.run("start", &[]).contains("node 1 runs already"));
    let joined = cluster.run("join", &[]);
    let address = addresses(&joined).pop().unwrap();
    let begins_at_zebra = |line: &Vec<String>| line[0] == "zebra";
    // A split without an answer in time may have happened, and cannot be repeated then.
    let split = repeated(
        || cluster.attempt("split", &["zebra"]),
        |run: &Run| run.code == 0 || cluster.map().iter().any(begins_at_zebra),
    );
    assert!(cluster.map().iter().any(begins_at_zebra), "{split:?}");
    // On a busy machine the receiver may take longer than writers of a leaf are blocked: then the move fails,
    // and is requested again.
    let dir = scratch.path("try");
    cluster.run_until_done("move", &["--escaped", r"\x7aebra", "2"]);
    let map = cluster.map();
    assert_eq!(map.last().unwrap()[..2], ["zebra", "2"], "{map:?}");
    let mut third = Client(BufReader::new(TcpStream::connect(&address).unwrap()));
    assert_eq!(third.served("GET zebra"), "striped");
    let status = repeated(|| cluster.run("status", &[]), |status: &String| status.contains("2 of 2"));
    assert!(status.contains("2 of 2"), "{status}");
    // There are three leaves now; node 2 gives its leaf away, and gets one again.
    let first = cluster.attempt("balance", &["--without", "2"]);
    assert!(first.code != 0 || first.stdout.contains("leaves moved: 1\n"), "{first:?}");
    if first.code != 0 {
        cluster.run_until_done("balance", &["--without", "2"]);
    }
    let owners = cluster.owners();
    assert!(owners.len() == 3 && owners.iter().all(|owner| owner != "2"), "{owners:?}");
    assert!(cluster.run_until_done("balance", &[]).contains("node 2: 1 of 3 leaves"));
    assert_eq!(cluster.client(1).served("GET zebra"), "striped");

    let again = Run::of(&["cluster", "start", "--nodes", "5", "--dir", dir.to_str().unwrap()]);
    assert!(again.code == 1 && again.stderr.contains("already has a cluster of 3 nodes"), "{again:?}");
    // A removed store is not treated as an empty one.
    assert_eq!(cluster.client(0).served("SET 0 here"), "+OK");
    assert!(cluster.run("stop", &[]).contains("node 2 has stopped"));
    assert!(cluster.run("stop", &[]).contains("no node runs"));
    std::fs::remove_dir_all(dir.join("node-0.db")).unwrap();
    let start = ["cluster", "start", "--dir", dir.to_str().unwrap()];
    let refused = Run::of(&start);
    assert!(refused.code == 1 && refused.stdout.contains("node 0 refuses requests"), "{refused:?}");
    assert!(refused.stdout.contains("--accept-loss"), "{refused:?}");
    assert!(cluster.client(0).ask("GET 0").unwrap().starts_with('-'));
    cluster.run("stop", &["--node", "0"]);
    cluster.run("start", &["--accept-loss", "0"]);
    assert_eq!(cluster.client(0).served("EXISTS 0"), ":0");
    let before = fs::read_to_string(dir.join("node-0.log.old")).unwrap();
    assert!(!before.is_empty(), "the log of the run before is kept");
    assert!(cluster.run("stop", &[]).contains("node 0 has stopped"));
    // A lost list of members is not replaced by that of a new cluster.
    let list = dir.join("cluster.toml");
    fs::rename(&list, dir.join("elsewhere")).unwrap();
    let refused = Run::of(&start);
    assert!(
        refused.code == 1 && refused.stderr.contains("restore the file") && !list.exists(),
        "{refused:?}"
    );
    fs::rename(dir.join("elsewhere"), &list).unwrap();
    let away = Run::of(&["cluster", "map", "--dir", dir.to_str().unwrap()]);
    assert!(away.code == 1 && away.stderr.contains("cluster start --dir"), "{away:?}");
    let none = Run::of(&["cluster", "status", "--dir", scratch.path("nothing").to_str().unwrap()]);
    assert!(none.code == 1 && none.stderr.contains("no cluster in"), "{none:?}");
}

#[test]
fn a_decommission_moves_all_keys_to_the_other_nodes() {
    let scratch = Scratch::new();
    let cluster = Started::start(&scratch, &["--nodes", "3", "--split-at", "h,p"]);
    for letter in 'a'..='z' {
        assert_eq!(cluster.client(0).served(&format!("SET {letter} {letter}1")), "+OK");
    }
    let dir = scratch.path("try");
    let leave = |node: &str| Run::of(&["cluster", "leave", "--dir", dir.to_str().unwrap(), node]);
    let nobody = leave("7");
    assert!(nobody.code == 1 && nobody.stderr.contains("there is no node 7"), "{nobody:?}");
    let nobody = Run::of(&["cluster", "stop", "--dir", dir.to_str().unwrap(), "--node", "7"]).refused();
    assert!(nobody.contains("there is no node 7"), "{nobody}");
    // All other nodes must be reachable; the node stays a member with its keys until they are.
    cluster.run("stop", &["--node", "2", "--kill"]);
    let refused = leave("1");
    assert!(refused.code == 1 && refused.stderr.contains("not"), "{refused:?}");
    cluster.run("start", &[]);
    // On a busy machine the receiver may take longer than writers of a leaf are blocked.
    let left = repeated(|| leave("1"), |run: &Run| run.code == 0);
    assert!(
        left.stdout.contains("node 1 has left") && left.stdout.contains("node 1 has stopped"),
        "{left:?}"
    );
    let has_all = || {
        for node in [0, 2] {
            let mut client = cluster.client(node);
            for letter in 'a'..='z' {
                let value = client.served(&format!("GET {letter}"));
                assert_eq!(value, format!("{letter}1"), "{letter} from node {node}");
            }
        }
    };
    has_all();
    let status = repeated(|| cluster.run("status", &[]), |status: &String| status.contains("1 of 1"));
    assert!(
        status.contains(" 2 nodes") && status.contains("1 of 1") && !status.contains("takes no"),
        "{status}"
    );
    let owners = cluster.owners();
    assert!(owners.len() >= 3 && owners.iter().all(|owner| owner != "1"), "{owners:?}");
    let again = leave("1");
    assert!(again.code == 1 && again.stderr.contains("node 1 has left already"), "{again:?}");
    // The process of a node that has left may still run, if an earlier command was interrupted.
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let start_time = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
    fs::write(dir.join("node-1.pid"), format!("{} {start_time}\n", process.id())).unwrap();
    let again = leave("1");
    let _ = process.kill();
    assert!(again.code == 0 && again.stdout.contains("node 1 has stopped"), "{again:?}");
    assert_eq!(process.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
    // The node is not started with the others; a node that joins has the next number.
    cluster.run("stop", &[]);
    let started = cluster.run("start", &[]);
    assert_eq!(addresses(&started).len(), 2, "{started}");
    has_all();
    assert!(cluster.run("join", &[]).contains("node 3 serves clients"));
    has_all();
    for node in ["3", "0"] {
        let left = repeated(|| leave(node), |run: &Run| run.code == 0);
        assert_eq!(left.code, 0, "{left:?}");
    }
    let last = leave("2");
    assert!(last.code == 1 && last.stderr.contains("the last node cannot leave"), "{last:?}");
    assert_eq!(cluster.client(2).served("GET a"), "a1");
}
