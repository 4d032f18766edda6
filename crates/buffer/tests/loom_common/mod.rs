//! Runs a model and counts its schedules: a model with few schedules proves nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Checks `run` in every schedule with up to `switches` forced switches (LOOM_MAX_PREEMPTIONS overrides the
/// number).
pub fn model(name: &str, switches: usize, at_least: usize, run: impl Fn() + Sync + Send + 'static) {
    let schedules = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(switches);
    builder.max_branches = 100_000;
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        run();
    });
    let schedules = schedules.load(SeqCst);
    println!("{name}: {schedules} schedules");
    assert!(schedules >= at_least, "{name}: only {schedules} schedules");
}
