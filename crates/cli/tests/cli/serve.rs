//! `azekura serve` as a process: acknowledged writes survive a kill.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::support::{Run, Scratch};

struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(scratch: &Scratch) -> Self {
        Self::of(Command::new(env!("CARGO_BIN_EXE_azekura")), scratch, &[])
    }

    /// Starts the server by a command that receives the server's arguments.
    fn of(mut command: Command, scratch: &Scratch, options: &[&str]) -> Self {
        let mut child = command
            .args(["serve", scratch.path("db").to_str().unwrap(), "--listen", "127.0.0.1:0"])
            .args(options)
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a line and returns the first line of the reply; `None` once the server has ended.
fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> Option<String> {
    stream.get_mut().write_all(format!("{request}\r\n").as_bytes()).ok()?;
    next_line(stream)
}

fn next_line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    (stream.read_line(&mut line).ok()? > 0 && line.ends_with('\n')).then(|| line.trim_end().to_owned())
}

/// Writes in pipelines of sixteen until the server has ended; `answered` counts the acknowledged writes.
fn write_until_killed(mut stream: BufReader<TcpStream>, client: u64, answered: &AtomicU64) {
    for batch in 0.. {
        let requests: String = (0..16).map(|i| format!("SET c{client}:{} x\r\n", batch * 16 + i)).collect();
        if stream.get_mut().write_all(requests.as_bytes()).is_err() {
            return;
        }
        for _ in 0..16 {
            match next_line(&mut stream) {
                Some(line) => assert_eq!(line, "+OK"),
                None => return,
            }
            answered.fetch_add(1, SeqCst);
        }
    }
}

#[test]
fn a_killed_server_has_lost_nothing_that_it_answered() {
    kill_and_count(&[]);
}

/// With relaxed durability the log is not synced before the reply, but the operating system has received it.
#[test]
fn a_killed_server_with_relaxed_durability_has_lost_nothing_that_it_answered() {
    kill_and_count(&["--durability", "relaxed"]);
}

fn kill_and_count(options: &[&str]) {
    const CLIENTS: u64 = 4;
    let scratch = Scratch::new();
    let start = || Served::of(Command::new(env!("CARGO_BIN_EXE_azekura")), &scratch, options);
    for round in 0..3 {
        let mut served = start();
        let answered: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(ask(&mut served.connect(), "FLUSHDB").as_deref(), Some("+OK"));
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (stream, answered) = (served.connect(), &answered[client as usize]);
                scope.spawn(move || write_until_killed(stream, client, answered));
            }
            while answered.iter().any(|count| count.load(SeqCst) < 400 + 100 * round) {
                thread::sleep(Duration::from_millis(1));
            }
            served.child.kill().unwrap(); // This sends SIGKILL.
        });
        drop(served);
        let again = start();
        let mut stream = again.connect();
        for (client, count) in answered.iter().enumerate() {
            let there = (0..count.load(SeqCst))
                .filter(|i| ask(&mut stream, &format!("EXISTS c{client}:{i}")).as_deref() == Some(":1"));
            assert_eq!(there.count() as u64, count.load(SeqCst), "client {client}");
        }
    }
}

#[test]
fn a_stop_signal_closes_the_store_and_exits_with_success() {
    let scratch = Scratch::new();
    let mut served = Served::start(&scratch);
    let mut stream = served.connect();
    assert_eq!(ask(&mut stream, "SET a 1").as_deref(), Some("+OK"));
    let id = served.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    assert_eq!(next_line(&mut stream), None);
    let check = Run::in_dir(&scratch, &["check", "db"]);
    assert_eq!(check.code, 0, "{}", check.stderr);
}

#[test]
fn a_public_address_without_a_password_makes_no_store() {
    let scratch = Scratch::new();
    let run = Run::in_dir(&scratch, &["serve", "db", "--listen", "0.0.0.0:0"]);
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("--auth"), "{}", run.stderr);
    assert!(!scratch.path("db").exists());
}

#[test]
fn an_idle_timeout_of_0_closes_no_connection_and_unusable_limits_are_refused() {
    let scratch = Scratch::new();
    for (limit, value) in
        [("--max-clients", "0"), ("--max-value", "3"), ("--max-request", "0"), ("--max-reply", "1023")]
    {
        let run = Run::in_dir(&scratch, &["serve", "db", "--listen", "127.0.0.1:0", limit, value]);
        assert_eq!(run.code, 2);
        assert!(run.stderr.contains(limit), "{}", run.stderr);
    }
    let command = Command::new(env!("CARGO_BIN_EXE_azekura"));
    let served = Served::of(command, &scratch, &["--idle-timeout", "0"]);
    let mut client = served.connect();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(100));
        assert_eq!(ask(&mut client, "PING").as_deref(), Some("+PONG"));
    }
}

/// 256 files are reserved for the store, and two for each reactor: idle connections that use all other files
/// do not stop the log.
#[test]
fn idle_connections_leave_the_store_the_files_that_its_log_needs() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_azekura")]);
    command.stderr(Stdio::piped());
    let mut served = Served::of(command, &scratch, &["--reactors", "20"]);
    let log = BufReader::new(served.child.stderr.take().unwrap()).lines();
    let warning = log.map(Result::unwrap).find(|line| line.contains("WARN")).unwrap();
    assert!(warning.contains("max_clients=104 wanted=1024"), "{warning}");
    let mut client = served.connect();
    assert_eq!(ask(&mut client, "PING").as_deref(), Some("+PONG"));
    let idle: Vec<_> = (0..400).map(|_| TcpStream::connect(&served.address).unwrap()).collect();
    // The values fill more than one segment of the log.
    let value = "x".repeat(1 << 20);
    for number in 0..40 {
        let request = format!("*3\r\n$3\r\nSET\r\n$2\r\n{:02}\r\n${}\r\n{value}\r\n", number, value.len());
        client.get_mut().write_all(request.as_bytes()).unwrap();
        assert_eq!(next_line(&mut client).as_deref(), Some("+OK"));
    }
    drop(idle);
}

#[test]
fn a_server_serves_without_its_stdout() {
    let scratch = Scratch::new();
    let socket = scratch.path("socket");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_azekura"))
        .args(["serve", scratch.path("db").to_str().unwrap()])
        .args(["--listen", &format!("unix:{}", socket.display()), "--log-format", "text"])
        .stdout(full)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut served = Served { child, address: String::new() };
    let answered = || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.write_all(b"PING\r\n").ok()?;
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).ok()?;
        Some(reply)
    };
    let reply = std::iter::repeat_with(|| {
        thread::sleep(Duration::from_millis(10));
        assert!(served.child.try_wait().unwrap().is_none(), "the server has ended");
        answered()
    });
    assert_eq!(reply.flatten().next().unwrap(), *b"+PONG\r\n");
}
