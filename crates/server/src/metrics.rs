//! `/metrics` in Prometheus' text format, `/healthz` and `/livez`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text::encode};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::cluster::Cluster;
use crate::command::TABLE;
use crate::http::Page;
use crate::server::Shared;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the response for `path`.
pub(crate) fn page(shared: &Arc<Shared>, path: &str) -> Option<Page> {
    match path {
        "/healthz" => Some(health_page(health(shared))),
        "/livez" => Some(health_page(shared.engine.failure().map_or(Ok(()), Err))),
        "/metrics" => {
            let mut registry = Registry::with_prefix("azekura");
            registry.register_collector(Box::new(Snapshot(Arc::clone(shared))));
            let mut body = String::new();
            let Ok(()) = encode(&mut body, &registry) else {
                return Some(Page::plain("500 Internal Server Error", "cannot encode\n"));
            };
            Some(Page { status: "200 OK", content_type: TEXT, body })
        }
        _ => None,
    }
}

/// Returns the reason that requests cannot be served. There are three: the store accepts no changes, for
/// instance because the disk is full; this node of a cluster has not received its keys; this node cannot
/// reach another node and so cannot serve the keys there.
fn health(shared: &Shared) -> Result<(), String> {
    if let Some(error) = shared.engine.failure().or_else(|| shared.engine.disk_full()) {
        return Err(error);
    }
    shared.cluster.get().map_or(Ok(()), Cluster::health)
}

fn health_page(health: Result<(), String>) -> Page {
    match health {
        Ok(()) => Page::plain("200 OK", "ok\n"),
        Err(why) => Page::plain("503 Service Unavailable", format!("{why}\n")),
    }
}

/// Collector of the values that are computed on request.
struct Snapshot(Arc<Shared>);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Snapshot")
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.server(&mut encoder)?;
        self.commands(&mut encoder)?;
        self.store(&mut encoder)
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

impl Snapshot {
    fn server(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counters = &self.0.counters;
        gauge(out, "clients", "Connections", self.0.clients.len() as u64)?;
        let unfinished = self.0.unfinished.held() as u64;
        gauge(out, "unfinished_request_bytes", "Memory of unfinished large requests", unfinished)?;
        gauge(out, "uptime_seconds", "Time since the start", self.0.began.elapsed().as_secs())?;
        counter(out, "connections", "Connections accepted", counters.connections.get())?;
        counter(out, "connections_rejected", "Connections beyond the limit", counters.rejected.get())?;
        counter(out, "received_bytes", "Bytes from clients", counters.bytes_in.get())?;
        counter(out, "sent_bytes", "Bytes to clients", counters.bytes_out.get())?;
        counter(out, "requests_refused", "Requests with an unknown command", counters.refused.get())?;
        counter(
            out,
            "protocol_errors",
            "Connections closed for malformed input",
            counters.protocol_errors.get(),
        )?;
        counter(out, "logins_failed", "Wrong passwords", counters.failed_logins.get())?;
        counter(
            out,
            "transaction_timeouts",
            "Interactive transactions open too long",
            counters.transaction_timeouts.get(),
        )?;
        counter(
            out,
            "write_groups",
            "Transactions for the small writes of several requests",
            counters.groups.get(),
        )?;
        counter(out, "grouped_writes", "Writes in such transactions", counters.grouped.get())?;
        counter(out, "keys_expired", "Keys removed because they had expired", counters.expired.get())
    }

    fn commands(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counters = &self.0.counters;
        for (name, help, counts) in [
            ("commands", "Commands run", &counters.calls),
            ("commands_failed", "Commands answered with an error", &counters.failed_calls),
        ] {
            let mut family =
                out.encode_descriptor(name, help, None, ConstCounter::new(0_u64).metric_type())?;
            let counts = TABLE.iter().enumerate().map(|(at, spec)| (spec, counts.get(at)));
            for (spec, count) in counts.filter(|(_, count)| *count > 0) {
                ConstCounter::new(count).encode(family.encode_family(&[("command", spec.name)])?)?;
            }
        }
        Ok(())
    }

    fn store(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.0.engine.db.stats();
        counter(out, "log_flushes", "Flushes of the log", stats.log.flushes)?;
        counter(out, "log_written_bytes", "Bytes of log written", stats.log.written_bytes)?;
        gauge(out, "log_retained_bytes", "Bytes of log files kept", stats.log.retained_bytes)?;
        gauge(out, "log_durable_lsn", "Newest durable LSN", stats.log.durable_lsn)?;
        let degraded = u64::from(stats.degraded.is_some() || self.0.engine.disk_full().is_some());
        gauge(out, "degraded", "1 if the store refuses some or all changes", degraded)?;
        counter(out, "cache_misses", "Pages read in", stats.cache.misses)?;
        counter(out, "cache_evictions", "Pages evicted", stats.cache.evictions)?;
        gauge(out, "cache_dirty_pages", "Pages changed and not written", stats.cache.dirty_pages)?;
        counter(out, "pages_written", "Page images written", stats.cache.pages_written)?;
        counter(out, "lock_waits", "Lock requests that waited", stats.locks.waits)?;
        counter(out, "deadlocks", "Transactions aborted to end a deadlock", stats.locks.deadlocks)?;
        gauge(
            out,
            "active_writers",
            "Transactions that have written and not ended",
            stats.active_writers as u64,
        )
    }
}
