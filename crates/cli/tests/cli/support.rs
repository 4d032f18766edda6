//! Runs the command in a scratch directory.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory that is removed on drop.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().into()
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Run {
    arguments: Vec<String>,
    pub(crate) code: i32,
    pub(crate) raw_stdout: Vec<u8>,
    /// Standard output as text; bytes that are not UTF-8 are replaced.
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

    pub(crate) fn with_stdin(scratch: &Scratch, arguments: &[&str], stdin: &[u8]) -> Self {
        Self::start(scratch.0.path(), arguments, stdin, usize::MAX)
    }

    /// Reads `len` bytes of stdout and closes it.
    pub(crate) fn reading_only(scratch: &Scratch, arguments: &[&str], len: usize) -> Self {
        Self::start(scratch.0.path(), arguments, b"", len)
    }

    fn start(dir: &Path, arguments: &[&str], stdin: &[u8], stdout_len: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_azekura"))
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
            scope.spawn(move || drop(input.write_all(stdin))); // Fails if stdin is closed unread.
            scope.spawn(|| output.take(stdout_len as u64).read_to_end(&mut raw_stdout).unwrap());
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        });
        let code = child.wait().unwrap().code().expect("no signal");
        let stdout = String::from_utf8_lossy(&raw_stdout).into_owned();
        Self { arguments: arguments.iter().map(|&a| a.into()).collect(), code, raw_stdout, stdout, stderr }
    }

    /// Asserts success and an empty stderr; returns stdout.
    pub(crate) fn well(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{:?}: {}", self.arguments, self.stdout);
        self.stdout
    }

    /// Asserts exit code 1, an empty stdout, and one line on stderr; returns that line.
    pub(crate) fn refused(self) -> String {
        assert_eq!(self.code, 1, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("azekura: ") && self.stderr.lines().count() == 1, "{self:?}");
        self.stderr
    }
}

/// Returns `bytes` as `dump` writes them.
pub(crate) fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    azekura_cli::format::escape::escape(bytes, &mut out);
    out
}

/// Returns rows as `dump` writes them.
pub(crate) fn tsv(rows: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    rows.iter().flat_map(|(key, value)| [&escaped(key)[..], b"\t", &escaped(value), b"\n"].concat()).collect()
}
