//! Tables and transactions like those of sysbench's `oltp_read_write`, sent by the server's own client
//! program.

use super::server::Server;
use super::{LabError, Settings};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::fmt::Write as _;
use std::io::Write;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

const TABLES: u32 = 4;
const RANGE: u32 = 100;

/// Creates and fills the tables.
pub(super) fn fill(server: &Server, rows: u32) -> Result<(), LabError> {
    for table in 1..=TABLES {
        server.sql(&format!(
            "CREATE TABLE lab.sbtest{table} (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 0, c CHAR(120) NOT \
             NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT '', KEY k_{table} (k)) ENGINE=InnoDB"
        ))?;
        server.sql(&format!(
            "USE lab; INSERT INTO sbtest{table} SELECT seq, (seq * 7919) % {rows}, REPEAT(MD5(seq), 3), \
             MD5(seq + 1) FROM seq_1_to_{rows}"
        ))?;
    }
    Ok(())
}

/// Connections that send transactions until they are stopped.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    connections: Vec<(Child, JoinHandle<()>)>,
}

impl Load {
    pub(super) fn start(server: &Server, settings: &Settings) -> Result<Self, LabError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut connections = Vec::new();
        for number in 0..settings.connections as u64 {
            let client =
                server.client().args(["--force", "lab"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
            let mut client =
                client.map_err(|source| LabError::Io { what: "start a mariadb client", source })?;
            let mut input = client.stdin.take().expect("stdin is piped");
            let (stop, rows) = (Arc::clone(&stop), settings.rows);
            let sender = std::thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(number);
                let mut statements = String::new();
                // Relaxed: the flag publishes no other data. A full pipe blocks this thread; a broken pipe
                // means that the server has ended.
                while !stop.load(Relaxed) {
                    transaction(&mut statements, rows, &mut random);
                    if input.write_all(statements.as_bytes()).is_err() {
                        break;
                    }
                }
            });
            connections.push((client, sender));
        }
        Ok(Self { stop, connections })
    }

    /// Stops the connections; unanswered requests are dropped.
    pub(super) fn stop(self) {
        self.stop.store(true, Relaxed);
        for (mut client, sender) in self.connections {
            let _ = client.kill();
            let _ = client.wait();
            let _ = sender.join();
        }
    }
}

/// Writes the statements of one transaction into `out`.
fn transaction(out: &mut String, rows: u32, random: &mut StdRng) {
    out.clear();
    let table = random.random_range(1..=TABLES);
    let mut id = || random.random_range(1..=rows);
    out.push_str("BEGIN;\n");
    for _ in 0..10 {
        let _ = writeln!(out, "SELECT c FROM sbtest{table} WHERE id={};", id());
    }
    for what in ["c", "SUM(k)", "c", "DISTINCT c"] {
        let (from, order) = (id(), if what.ends_with('c') { " ORDER BY c" } else { "" });
        let to = from.saturating_add(RANGE - 1);
        let _ = writeln!(out, "SELECT {what} FROM sbtest{table} WHERE id BETWEEN {from} AND {to}{order};");
    }
    let _ = writeln!(out, "UPDATE sbtest{table} SET k=k+1 WHERE id={};", id());
    let _ = writeln!(out, "UPDATE sbtest{table} SET c=REPEAT(MD5({}), 3) WHERE id={};", id(), id());
    let (gone, k) = (id(), id());
    let _ = writeln!(out, "DELETE FROM sbtest{table} WHERE id={gone};");
    let _ = writeln!(
        out,
        "INSERT IGNORE INTO sbtest{table} (id, k, c, pad) VALUES ({gone}, {k}, MD5({k}), MD5({gone}));"
    );
    out.push_str("COMMIT;\n");
}
