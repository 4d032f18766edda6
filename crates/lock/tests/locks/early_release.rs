//! W8, W9: the commit LSNs that a transaction gets for commits that are not durable yet.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic, too")]

use crate::common::{OTHER, TREE, key, table, until_waiting};
use azekura_base::{Lsn, TxnId};
use azekura_lock::{GapMode, KeyMode, KeyRef, RecordMode, TableMode};

#[test]
fn w8_a_reader_learns_the_commit_it_depends_on() {
    let table = table();
    let writing = [
        KeyMode::UPDATE,
        KeyMode::INSERT,
        KeyMode::DELETE,
        KeyMode::DELETE_NEXT,
        KeyMode::new(GapMode::I, RecordMode::None),
    ];
    for (lsn, mode) in (10..).zip(writing) {
        for place in [key("k"), KeyRef::End] {
            let mut writer = table.begin(TxnId(1));
            table.lock_key(&mut writer, TREE, place, mode).unwrap();
            table.release_all(writer, Some(Lsn(lsn)));
            let mut reader = table.begin(TxnId(2));
            assert_eq!(table.lock_key(&mut reader, TREE, place, KeyMode::SCAN), Ok(Lsn(lsn)), "{mode}");
            assert_eq!(
                table.lock_key(&mut reader, TREE, place, KeyMode::READ),
                Ok(Lsn(0)),
                "reported already"
            );
            table.release_all(reader, Some(Lsn(1000)));
        }
    }
}

#[test]
fn w8_a_reader_that_waited_learns_it_too() {
    let table = table();
    let mut writer = table.begin(TxnId(1));
    table.lock_key(&mut writer, TREE, key("k"), KeyMode::UPDATE).unwrap();
    std::thread::scope(|s| {
        for txn in [2, 3] {
            let table = &table;
            s.spawn(move || {
                let mut reader = table.begin(TxnId(txn));
                let lsn = if txn == 2 {
                    table.lock_key(&mut reader, TREE, key("k"), KeyMode::READ).unwrap()
                } else {
                    table.wait_test_key(&mut reader, TREE, key("k"), KeyMode::READ).unwrap()
                };
                assert_eq!(lsn, Lsn(7));
                table.release_all(reader, None);
            });
            until_waiting(table, TxnId(txn));
        }
        table.release_all(writer, Some(Lsn(7)));
    });
}

#[test]
fn readers_and_other_keys_leave_no_dependency() {
    let table = table();
    let mut writer = table.begin(TxnId(1));
    table.lock_key(&mut writer, TREE, key("read"), KeyMode::SCAN).unwrap();
    table.lock_key(&mut writer, TREE, key("written"), KeyMode::UPDATE).unwrap();
    table.release_all(writer, Some(Lsn(7)));
    let mut reader = table.begin(TxnId(2));
    assert_eq!(table.lock_key(&mut reader, TREE, key("read"), KeyMode::READ), Ok(Lsn(0)));
    assert_eq!(table.lock_key(&mut reader, TREE, key("elsewhere"), KeyMode::READ), Ok(Lsn(0)));
    table.release_all(reader, None);
}

#[test]
fn a_dependency_never_goes_back() {
    let table = table();
    for (lsn, seen) in [(20, 20), (10, 20), (30, 30)] {
        let mut writer = table.begin(TxnId(1));
        table.lock_key(&mut writer, TREE, key("k"), KeyMode::UPDATE).unwrap();
        table.release_all(writer, Some(Lsn(lsn)));
        let mut reader = table.begin(TxnId(2));
        assert_eq!(table.lock_key(&mut reader, TREE, key("k"), KeyMode::READ), Ok(Lsn(seen)));
        table.release_all(reader, None);
    }
}

#[test]
fn w9_an_aborted_transaction_leaves_no_dependency() {
    let table = table();
    let mut writer = table.begin(TxnId(1));
    table.lock_table(&mut writer, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut writer, TREE, key("k"), KeyMode::UPDATE).unwrap();
    table.release_all(writer, None);
    let mut reader = table.begin(TxnId(2));
    assert_eq!(table.lock_table(&mut reader, TREE, TableMode::S), Ok(Lsn(0)));
    assert_eq!(table.lock_key(&mut reader, TREE, key("k"), KeyMode::READ), Ok(Lsn(0)));
    table.release_all(reader, None);
}

#[test]
fn w8_a_table_lock_depends_on_every_writer_of_the_table() {
    let table = table();
    std::thread::scope(|s| {
        for lsn in 1..=8 {
            let table = &table;
            s.spawn(move || {
                let mut writer = table.begin(TxnId(lsn));
                table.lock_table(&mut writer, TREE, TableMode::IX).unwrap();
                table.release_all(writer, Some(Lsn(lsn)));
            });
        }
    });
    let mut reader = table.begin(TxnId(20));
    assert_eq!(table.lock_table(&mut reader, TREE, TableMode::IS), Ok(Lsn(0)), "its keys will tell");
    assert_eq!(table.lock_table(&mut reader, TREE, TableMode::S), Ok(Lsn(8)));
    assert_eq!(table.lock_table(&mut reader, OTHER, TableMode::S), Ok(Lsn(0)));
    table.release_all(reader, None);
}

#[test]
fn w8_a_key_read_after_a_table_lock_depends_on_that_lock() {
    // The X holder requested no locks on the keys that it wrote, so the keys' slots have no LSN.
    let table = table();
    let mut writer = table.begin(TxnId(1));
    table.lock_table(&mut writer, TREE, TableMode::X).unwrap();
    table.lock_key(&mut writer, TREE, key("k"), KeyMode::UPDATE).unwrap();
    table.release_all(writer, Some(Lsn(9)));
    for mode in [TableMode::IS, TableMode::IX, TableMode::S, TableMode::SIX, TableMode::X] {
        let mut reader = table.begin(TxnId(2));
        assert_eq!(table.lock_table(&mut reader, TREE, mode), Ok(Lsn(9)), "{mode}");
        table.release_all(reader, None);
    }
}
