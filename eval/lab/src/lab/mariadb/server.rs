//! A private MariaDB server with a temporary data directory and a Unix socket, without network access.

use super::LabError;
use azekura_cli::shared::Scratch;
use azekura_record::Recorder;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const COMES_UP_WITHIN: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Paths of the programs of an installation.
#[derive(Debug, Clone)]
pub struct Programs {
    server: PathBuf,
    install: PathBuf,
    pub(super) client: PathBuf,
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct Server {
    programs: Programs,
    directory: Scratch,
    child: Child,
}

/// Finds the programs of MariaDB.
///
/// # Errors
///
/// [`LabError::NotInstalled`].
pub fn find_programs() -> Result<Programs, LabError> {
    let find = |program: &'static str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/libexec".into()]);
        let found = places.map(|place| place.join(program)).find(|path| path.is_file());
        found.ok_or(LabError::NotInstalled { program })
    };
    Ok(Programs { server: find("mariadbd")?, install: find("mariadb-install-db")?, client: find("mariadb")? })
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> LabError {
    move |source| LabError::Io { what, source }
}

impl Server {
    /// Starts a server for the recorder, with an empty database `lab`.
    pub(super) fn start(recorder: &mut Recorder) -> Result<Self, LabError> {
        let programs = find_programs()?;
        let directory = Scratch::new("azekura-mariadb-");
        let directory = directory.map_err(failed("make a directory for the server"))?;
        let data = directory.path().join("data");
        let installed = Command::new(&programs.install)
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(option("--datadir", &data))
            .args(user())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(failed("run mariadb-install-db"))?;
        if !installed.success() {
            return Err(LabError::Server { log: "mariadb-install-db failed".into() });
        }
        let mut command = Command::new(&programs.server);
        command
            .arg("--no-defaults")
            .arg(option("--datadir", &data))
            .arg(option("--socket", &directory.path().join("socket")))
            .arg(option("--log-error", &directory.path().join("log")))
            .args(user())
            .args([
                "--skip-networking",
                "--innodb-buffer-pool-size=512M",
                "--innodb-flush-log-at-trx-commit=2",
                "--performance-schema=ON",
                "--performance-schema-instrument=wait/synch/%=ON",
                "--performance-schema-consumer-events-waits-current=ON",
                "--performance-schema-consumer-global-instrumentation=ON",
                "--performance-schema-consumer-thread-instrumentation=ON",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        recorder.prepare(&mut command)?;
        let child = command.spawn().map_err(failed("start mariadbd"))?;
        let mut server = Self { programs, directory, child };
        server.wait_until_up()?;
        server.sql("CREATE DATABASE lab")?;
        Ok(server)
    }

    fn wait_until_up(&mut self) -> Result<(), LabError> {
        let until = Instant::now() + COMES_UP_WITHIN;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            if self.sql("SELECT 1").is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(5).collect();
        Err(LabError::Server { log: tail.into_iter().rev().collect::<Vec<_>>().join("; ") })
    }

    /// Returns the process number of the server.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns a command that starts a client program of this server.
    pub(super) fn client(&self) -> Command {
        let mut client = Command::new(&self.programs.client);
        client.arg("--no-defaults").arg(option("--socket", &self.directory.path().join("socket"))).args([
            "--user=root",
            "--batch",
            "--skip-column-names",
        ]);
        client
    }

    /// Runs one statement and returns its rows, each value as text.
    pub(super) fn sql(&self, statement: &str) -> Result<Vec<Vec<String>>, LabError> {
        let output = self.client().arg("--execute").arg(statement).output();
        let output = output.map_err(failed("run the mariadb client"))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(LabError::Sql { statement: statement.to_owned(), message });
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    /// Shuts the server down, so that its recording is complete.
    pub(super) fn stop(mut self) {
        let _ = self.sql("SHUTDOWN"); // if the server does not respond, it is killed below
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// Returns the option that allows the server to run as root, if needed.
fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=root")
}
