//! `INFO`, `CONFIG` and other descriptions of the server.

use std::fmt::Write;
use std::time::Instant;

use azekura::Durability;

use crate::command::{self, TABLE, is_word};
use crate::error::CommandError;
use crate::glob;
use crate::keyspace::KeyCounts;
use crate::listener::ListenAddress;
use crate::options::ServerOptions;
use crate::resp::{Reply, Request};
use crate::server::Shared;

/// Version of Redis that the commands follow. Clients select commands by this version.
pub(super) const REDIS_VERSION: &str = "7.2.0";

/// Runs `TIME`.
pub(super) fn time(now_us: u64) -> Reply {
    let parts = [now_us / 1_000_000, now_us % 1_000_000];
    Reply::Array(parts.map(|part| Reply::text(part.to_string())).to_vec())
}

/// Runs `CONFIG GET pattern…`, `CONFIG RESETSTAT`; settings cannot be changed at run time.
pub(super) fn config(shared: &Shared, request: Request<'_>) -> Result<Reply, CommandError> {
    if is_word(request.arg(1), "RESETSTAT") && request.len() == 2 {
        shared.counters.forget();
        return Ok(Reply::OK);
    }
    if is_word(request.arg(1), "SET") || is_word(request.arg(1), "REWRITE") {
        return Err(CommandError::Setting);
    }
    let is_wanted = |name: &str| {
        request.from(2).any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let found = settings(&shared.options).into_iter().filter(|(name, _)| is_wanted(name));
    Ok(Reply::Map(found.map(|(name, value)| (Reply::text(name), Reply::text(value))).collect()))
}

/// Runs `ACL WHOAMI | USERS`: there is one user.
pub(super) fn acl(request: Request<'_>) -> Reply {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"WHOAMI" => Reply::text("default"),
        _ => Reply::Array(vec![Reply::text("default")]),
    }
}

/// Runs `MODULE LIST`: there are no modules. Graphical clients send the command at each connection.
pub(super) const fn module() -> Reply {
    Reply::Array(Vec::new())
}

/// Runs `SLOWLOG GET [count] | LEN | RESET`: a slow log of length 0, because the log of events has the slow
/// requests. Monitoring agents require the command.
pub(super) fn slowlog(request: Request<'_>) -> Result<Reply, CommandError> {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"GET" if request.len() == 2 => Ok(Reply::Array(Vec::new())),
        b"GET" if request.len() == 3 => match command::integer(request.arg(2))? {
            -1.. => Ok(Reply::Array(Vec::new())),
            _ => Err(CommandError::Protocol("count should be greater than or equal to -1".into())),
        },
        b"LEN" => Ok(Reply::Integer(0)),
        b"RESET" => Ok(Reply::OK),
        _ => Err(CommandError::Syntax),
    }
}

/// Runs `LATENCY LATEST | HISTORY event | RESET [event…] | DOCTOR | GRAPH event | HISTOGRAM [command…]`: a
/// monitor without samples, as with `latency-monitor-threshold 0`. Monitoring agents require the command.
pub(super) fn latency(request: Request<'_>) -> Result<Reply, CommandError> {
    match request.arg(1).to_ascii_uppercase().as_slice() {
        b"LATEST" | b"HISTORY" => Ok(Reply::Array(Vec::new())),
        b"HISTOGRAM" => Ok(Reply::Map(Vec::new())),
        b"RESET" => Ok(Reply::Integer(0)),
        b"DOCTOR" => Ok(Reply::Verbatim(
            "Latency monitoring is disabled in this instance. Slow requests are in the log of events \
             (azekura serve --slow-request).\n"
                .into(),
        )),
        b"GRAPH" => {
            let event = command::short_text(request.arg(2));
            Err(CommandError::Protocol(format!("No samples available for event '{event}'")))
        }
        _ => Err(CommandError::Syntax),
    }
}

fn settings(options: &ServerOptions) -> [(&'static str, String); 19] {
    let tcp = options.listen.tcp();
    let unix = match &options.listen {
        ListenAddress::Unix(path) => path.display().to_string(),
        ListenAddress::Tcp(_) => String::new(),
    };
    let fsync = if options.durability == Durability::Immediate { "always" } else { "everysec" };
    [
        ("appendfsync", fsync.into()),
        ("appendonly", "yes".into()),
        ("bind", tcp.map_or_else(String::new, |address| address.ip().to_string())),
        ("databases", "1".into()),
        ("latency-monitor-threshold", "0".into()),
        ("latency-tracking", "no".into()),
        ("maxclients", options.max_clients.to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("port", tcp.map_or(0, |address| address.port()).to_string()),
        ("proto-max-bulk-len", options.wire.max_bulk_bytes.to_string()),
        ("client-query-buffer-limit", options.wire.max_request_bytes.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".into()),
        ("slowlog-max-len", "0".into()),
        ("tcp-keepalive", options.tcp_keepalive.map_or(0, |t| t.as_secs()).to_string()),
        ("unixsocket", unix),
        ("timeout", options.idle_timeout.map_or(0, |t| t.as_secs()).to_string()),
    ]
}

/// Runs `INFO [section…]`.
pub(super) fn info(shared: &Shared, request: Request<'_>) -> Reply {
    let is_wanted = |name: &str| {
        let all = ["all", "default", "everything"];
        let names = |section: &[u8]| is_word(section, name) || all.iter().any(|a| is_word(section, a));
        // Counts of each command are shown only on request.
        if request.len() == 1 { name != "commandstats" } else { request.from(1).any(names) }
    };
    let sections: [(&str, fn(&Shared, &mut String)); 10] = [
        ("Server", server),
        ("Clients", clients),
        ("Memory", memory),
        ("Persistence", persistence),
        ("Stats", stats),
        ("Replication", replication),
        ("CPU", cpu),
        ("Cluster", cluster),
        ("Commandstats", command_stats),
        ("Keyspace", keyspace),
    ];
    let mut text = String::new();
    for (name, write) in sections {
        if is_wanted(&name.to_ascii_lowercase()) {
            let _ = write!(text, "{}# {name}\r\n", if text.is_empty() { "" } else { "\r\n" });
            write(shared, &mut text);
        }
    }
    Reply::Verbatim(text)
}

fn put(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(shared: &Shared, text: &mut String) {
    put(text, "redis_version", REDIS_VERSION);
    put(text, "azekura_version", env!("CARGO_PKG_VERSION"));
    put(text, "redis_mode", "standalone");
    put(text, "os", std::env::consts::OS);
    put(text, "arch_bits", usize::BITS);
    put(text, "process_id", std::process::id());
    put(text, "tcp_port", shared.options.listen.tcp().map_or(0, |address| address.port()));
    let uptime_s = Instant::now().duration_since(shared.began).as_secs();
    put(text, "uptime_in_seconds", uptime_s);
    put(text, "uptime_in_days", uptime_s / (24 * 60 * 60));
}

fn clients(shared: &Shared, text: &mut String) {
    put(text, "connected_clients", shared.clients.len());
    put(text, "blocked_clients", 0);
    put(text, "maxclients", shared.options.max_clients);
    put(text, "reactors", shared.options.reactors);
    put(text, "unsent_reply_bytes", shared.unsent.held());
    put(text, "watching_keys", shared.engine.context.watches.len());
}

fn memory(shared: &Shared, text: &mut String) {
    let cache = shared.engine.db.stats().cache;
    if let Some(bytes) = resident_bytes() {
        put(text, "used_memory", bytes);
        put(text, "used_memory_human", human(bytes));
        put(text, "used_memory_rss", bytes);
        put(text, "used_memory_rss_human", human(bytes));
    }
    put(text, "page_cache_bytes", cache.frames * cache.page_size);
    put(text, "maxmemory", 0);
    put(text, "maxmemory_policy", "noeviction");
}

/// Returns a number of bytes as Redis writes it for people.
fn human(bytes: usize) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1024.0 => format!("{bytes}B"),
        ..1_048_576.0 => format!("{:.2}K", bytes / 1024.0),
        ..1_073_741_824.0 => format!("{:.2}M", bytes / 1_048_576.0),
        _ => format!("{:.2}G", bytes / 1_073_741_824.0),
    }
}

/// Writes the processor time of the process.
fn cpu(_: &Shared, text: &mut String) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process, in parentheses, may contain spaces. Fields 12 and 13 follow it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|field| field.parse::<u64>().ok());
    let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    if let (Some(user), Some(system)) = (ticks(11), ticks(12)) {
        put(text, "used_cpu_sys", format_args!("{:.6}", seconds(system)));
        put(text, "used_cpu_user", format_args!("{:.6}", seconds(user)));
    }
}

/// Returns the memory of the process that is in RAM, in bytes.
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

fn persistence(shared: &Shared, text: &mut String) {
    let stats = shared.engine.db.stats();
    put(text, "loading", 0);
    put(text, "aof_enabled", 1);
    put(text, "answers_when_durable", u8::from(shared.engine.durability == Durability::Immediate));
    put(text, "durable_lsn", stats.log.durable_lsn);
    put(text, "log_flushes", stats.log.flushes);
    put(text, "log_written_bytes", stats.log.written_bytes);
    put(text, "log_retained_bytes", stats.log.retained_bytes);
    put(text, "dirty_pages", stats.cache.dirty_pages);
    let degraded = stats.degraded.or_else(|| shared.engine.disk_full());
    put(text, "degraded", degraded.unwrap_or_default());
    put(text, "background_error", stats.background_error.unwrap_or_default());
}

fn stats(shared: &Shared, text: &mut String) {
    let counters = &shared.counters;
    let locks = shared.engine.db.stats().locks;
    put(text, "total_connections_received", counters.connections.recent());
    put(text, "rejected_connections", counters.rejected.recent());
    put(text, "total_commands_processed", counters.calls.recent_of_all());
    put(text, "total_error_replies", counters.refused.recent() + counters.failed_calls.recent_of_all());
    put(text, "total_net_input_bytes", counters.bytes_in.recent());
    put(text, "total_net_output_bytes", counters.bytes_out.recent());
    put(text, "protocol_errors", counters.protocol_errors.recent());
    put(text, "acl_access_denied_auth", counters.failed_logins.recent());
    put(text, "expired_keys", counters.expired.recent());
    put(text, "evicted_keys", 0);
    put(text, "write_groups", counters.groups.recent());
    put(text, "grouped_writes", counters.grouped.recent());
    put(text, "lock_waits", locks.waits);
    put(text, "deadlocks", locks.deadlocks);
    put(text, "transaction_timeouts", counters.transaction_timeouts.recent());
}

fn replication(_: &Shared, text: &mut String) {
    put(text, "role", "master");
    put(text, "connected_slaves", 0);
}

fn cluster(shared: &Shared, text: &mut String) {
    // Clients read this field to detect hash slots, which do not exist here.
    put(text, "cluster_enabled", 0);
    if let Some(cluster) = shared.cluster.get() {
        cluster.tell(text);
    }
}

/// Writes the numbers of keys that have not expired; in a cluster, those of this node.
fn keyspace(shared: &Shared, text: &mut String) {
    // A store that cannot be read reports its error in the other sections.
    if let Ok(KeyCounts { records: keys, expiring }) = shared.engine.key_counts()
        && keys > 0
    {
        put(text, "db0", format_args!("keys={keys},expires={expiring},avg_ttl=0"));
    }
}

/// Writes the counts of each command. Monitoring agents require the five fields of Redis, in this order.
fn command_stats(shared: &Shared, text: &mut String) {
    let counters = &shared.counters;
    for (at, spec) in TABLE.iter().enumerate() {
        let (calls, failed) = (counters.calls.recent(at), counters.failed_calls.recent(at));
        let rejected = counters.rejected_calls.recent(at);
        if calls + rejected > 0 {
            let time_us = counters.call_time_ns.recent(at) as f64 / 1e3;
            let mean_us = time_us / calls.max(1) as f64;
            put(
                text,
                &format!("cmdstat_{}", spec.name),
                format_args!(
                    "calls={calls},usec={time_us:.0},usec_per_call={mean_us:.2},rejected_calls={rejected},\
                     failed_calls={failed}"
                ),
            );
        }
    }
}
