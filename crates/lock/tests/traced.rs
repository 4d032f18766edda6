//! Invariant 8: every wait for a lock is in the trace, under a stable name, with the blocking thread.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic, too")]

mod common;

use azekura_base::TxnId;
use azekura_lock::{KeyMode, TableMode};
use azekura_trace::event::EventKind;
use azekura_trace::{CpuTime, Options, WaitKind};
use common::{TREE, key, table, until_waiting};

#[test]
fn waits_for_keys_and_tables_are_recorded_with_their_holder() {
    azekura_trace::start(Options { cpu: CpuTime::Off, ..Options::default() }).unwrap();
    let table = table();
    for strong in [false, true] {
        let mut holder = table.begin(TxnId(1));
        table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
        table.lock_key(&mut holder, TREE, key("k"), KeyMode::UPDATE).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut t = table.begin(TxnId(2));
                if strong {
                    table.lock_table(&mut t, TREE, TableMode::S).unwrap();
                } else {
                    table.lock_key(&mut t, TREE, key("k"), KeyMode::READ).unwrap();
                }
                table.release_all(t, None);
            });
            until_waiting(&table, TxnId(2));
            // The request is in the queue. In the trace the wait begins before the thread sleeps, and ends
            // after this:
            table.release_all(holder, None);
        });
    }
    let holder = azekura_trace::thread_tag();
    let trace = azekura_trace::stop().unwrap().trace().unwrap();
    for name in ["key lock", "table lock"] {
        let waits: Vec<_> = trace
            .threads
            .iter()
            .flat_map(|t| &t.events)
            .filter(|e| e.kind == EventKind::WaitBegin && trace.sites[&e.site].name == name)
            .collect();
        assert_eq!(waits.len(), 1, "{name}");
        assert_eq!(waits[0].argument as u8, WaitKind::Lock as u8);
        assert_eq!((waits[0].argument >> 32) as u32, holder.0, "who held the {name}");
    }
}
