//! Helpers that run the command in a temporary directory.

#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A temporary directory, removed when dropped.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Run {
    arguments: Vec<String>,
    pub(crate) code: i32,
    /// Standard output, with invalid UTF-8 replaced.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    pub(crate) fn of(arguments: &[&str]) -> Self {
        Self::start(Path::new("."), arguments, b"", usize::MAX)
    }

    pub(crate) fn in_dir(scratch: &Scratch, arguments: &[&str]) -> Self {
        Self::start(scratch.0.path(), arguments, b"", usize::MAX)
    }

    fn start(dir: &Path, arguments: &[&str], stdin: &[u8], stdout_len: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_azekura-lab"))
            .current_dir(dir)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (mut raw_stdout, mut stderr) = (Vec::new(), String::new());
        std::thread::scope(|scope| {
            scope.spawn(move || drop(input.write_all(stdin))); // fails if the command does not read its input
            scope.spawn(|| output.take(stdout_len as u64).read_to_end(&mut raw_stdout).unwrap());
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        });
        let code = child.wait().unwrap().code().expect("no signal");
        let stdout = String::from_utf8_lossy(&raw_stdout).into_owned();
        Self { arguments: arguments.iter().map(|&a| a.into()).collect(), code, stdout, stderr }
    }

    /// Asserts exit code 0 and an empty stderr. Returns stdout.
    pub(crate) fn well(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{:?}: {}", self.arguments, self.stdout);
        self.stdout
    }

    /// Asserts exit code 1, an empty stdout, and one line on stderr. Returns that line.
    pub(crate) fn refused(self) -> String {
        assert_eq!(self.code, 1, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("azekura-lab: ") && self.stderr.lines().count() == 1, "{self:?}");
        self.stderr
    }
}
