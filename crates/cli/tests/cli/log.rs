//! The log of `azekura serve --log-format json`: each line parses, and the events that an operator needs are
//! logged.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::Scratch;

/// A part of keys, values and passwords, none of which may appear in a log.
const SECRET: &str = "hunter2";

struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(scratch: &Scratch, options: &[&str], filter: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_azekura"));
        command.args(["serve", scratch.path("db").to_str().unwrap(), "--listen", "127.0.0.1:0"]);
        Self::of(command.args(options).env("RUST_LOG", filter))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        BufReader::new(TcpStream::connect(&self.address).unwrap())
    }

    /// Sends a signal; returns the exit code and the whole log of the process.
    fn stop(mut self, signal: &str) -> (Option<i32>, Vec<Value>) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        self.end()
    }

    fn end(&mut self) -> (Option<i32>, Vec<Value>) {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let code = self.child.wait().unwrap().code();
        assert!(!text.contains(SECRET), "{text}");
        (code, text.lines().map(event).collect())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses a line of the log and checks everything that a collector relies on.
fn event(line: &str) -> Value {
    let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let level = event["level"].as_str().unwrap();
    assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&level), "{line}");
    assert!(event["target"].as_str().unwrap().starts_with("azekura"), "{line}");
    assert!(!event["fields"]["message"].as_str().unwrap().is_empty(), "{line}");
    assert!(event["timestamp"].is_string(), "{line}");
    event
}

fn of<'e>(events: &'e [Value], message: &str) -> Vec<&'e Value> {
    let is_it = |event: &&Value| event["fields"]["message"].as_str().unwrap().contains(message);
    events.iter().filter(is_it).collect()
}

fn one<'e>(events: &'e [Value], message: &str) -> &'e Value {
    let found = of(events, message);
    assert_eq!(found.len(), 1, "{message}: {events:#?}");
    found[0]
}

fn ask(stream: &mut BufReader<TcpStream>, request: &str) -> String {
    stream.get_mut().write_all(format!("{request}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn start_refusals_slow_requests_recovery_and_shutdown_are_logged_as_json() {
    let scratch = Scratch::new();
    let password = scratch.file("password", &format!("{SECRET}-password"));
    let options = ["--log-format", "json", "--slow-request", "0", "--max-clients", "1", "--auth", &password];
    let options = [&options[..], &["--login-timeout", "300"]].concat();
    let served = Served::start(&scratch, &options, "");
    let mut client = served.connect();
    assert!(ask(&mut client, &format!("AUTH {SECRET}-wrong")).starts_with("-WRONGPASS"));
    assert_eq!(ask(&mut client, &format!("AUTH {SECRET}-password")), "+OK");
    assert_eq!(ask(&mut client, &format!("SET {SECRET}-key {SECRET}-value")), "+OK");
    assert!(ask(&mut served.connect(), "PING").contains("max number of clients"));
    assert!(ask(&mut client, &format!("*1\r\n{SECRET}")).starts_with("-ERR Protocol"));
    let (code, events) = served.stop("-KILL");
    assert_eq!(code, None);

    let opened = one(&events, "store opened");
    assert_eq!(opened["level"], "INFO");
    assert!(opened["fields"]["path"].as_str().unwrap().ends_with("db"), "{opened}");
    assert!(opened["fields"]["cache_bytes"].as_u64().unwrap() > 0, "{opened}");
    let started = one(&events, "server started");
    assert_eq!(started["fields"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(started["fields"]["max_clients"], 1);
    assert_eq!(started["fields"]["has_password"], true);
    let reasons: Vec<_> =
        of(&events, "connection refused").iter().map(|event| event["fields"]["reason"].clone()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    for (reason, part) in reasons.iter().zip(["wrong password", "too many clients", "not a request"]) {
        assert!(reason.as_str().unwrap().contains(part), "{reasons:?}");
    }
    let slow = of(&events, "slow request");
    let commands: Vec<_> = slow.iter().map(|event| event["fields"]["command"].as_str().unwrap()).collect();
    assert_eq!(commands, ["auth", "auth", "set"]);
    assert!(slow[2]["fields"]["total_ms"].as_f64() >= slow[2]["fields"]["command_ms"].as_f64());
    assert_eq!(of(&events, "recovery").len(), 0);

    let (code, events) = Served::start(&scratch, &["--log-format", "json"], "").stop("-TERM");
    assert_eq!(code, Some(0));
    assert!(one(&events, "recovery ended")["fields"]["records"].as_u64().unwrap() > 0);
    let order = [
        "recovery begins",
        "store opened",
        "server started",
        "signal",
        "server stopping",
        "server stopped",
        "store closed",
    ];
    let at = |message: &str| events.iter().position(|event| event == one(&events, message)).unwrap();
    assert!(order.map(at).is_sorted(), "{events:#?}");
}

/// A store that cannot write logs that it is degraded. A limit of the file size simulates a failing device.
#[test]
fn a_store_at_the_limit_of_file_sizes_logs_that_it_refuses_writes() {
    let scratch = Scratch::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 4096; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_azekura")]);
    command.args(["serve", scratch.path("db").to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let served = Served::of(command.args(["--log-format", "json"]).env_remove("RUST_LOG"));
    let mut client = served.connect();
    let value = SECRET.repeat(8_000);
    let refused = (0..1_000)
        .map(|n| ask(&mut client, &format!("SET {SECRET}{n} {value}")))
        .find(|reply| reply != "+OK");
    assert!(refused.is_some());
    let (_, events) = served.stop("-TERM");
    let failed = of(&events, "request failed in the store");
    assert!(
        !failed.is_empty() && failed.iter().all(|event| event["fields"]["error"].is_string()),
        "{events:#?}"
    );
    assert_eq!(one(&events, "file refused")["level"], "ERROR");
}

#[test]
fn the_filter_is_obeyed_and_a_wrong_one_is_wrong_usage() {
    let scratch = Scratch::new();
    let (_, events) =
        Served::start(&scratch, &["--log-format", "json"], "warn,azekura_server=info").stop("-TERM");
    assert!(
        !events.is_empty()
            && events.iter().all(|event| event["target"].as_str().unwrap().starts_with("azekura_server")),
        "{events:#?}"
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_azekura"));
    command.args(["serve", scratch.path("none").to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let output = command.env("RUST_LOG", "azekura=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RUST_LOG"));
    assert!(!scratch.path("none").exists());
}

/// An error that ends the command is logged as a JSON line like all others.
#[test]
fn a_failed_server_start_is_logged_as_json() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_azekura"));
    command.args(["serve", scratch.path("db").to_str().unwrap(), "--listen", &address]);
    let output = command.args(["--log-format", "json"]).env_remove("RUST_LOG").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let events: Vec<_> = String::from_utf8(output.stderr).unwrap().lines().map(event).collect();
    let failed = one(&events, "azekura serve failed");
    assert!(failed["fields"]["error"].as_str().unwrap().contains(&address), "{failed}");
}
