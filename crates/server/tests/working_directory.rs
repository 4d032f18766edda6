//! A server with relative paths continues after the process has changed its working directory.
//!
//! The working directory belongs to the process, so this file has one test.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::env::set_current_dir;
use std::fs;
use std::path::Path;

use azekura::Database;
use azekura_server::{ListenAddress, Server, ServerOptions};

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_server_with_relative_paths_does_not_depend_on_the_working_directory() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    set_current_dir(dir.path()).unwrap();
    let store = Database::builder().cache_bytes(1 << 20).wal_segment_bytes(2 << 20).open("store").unwrap();
    let mut options = ServerOptions::default();
    options.listen = ListenAddress::Unix("socket".into());
    let server = Server::start(store.clone(), options).unwrap();
    set_current_dir(other.path()).unwrap();

    let url = format!("redis+unix://{}", dir.path().join("socket").display());
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    for round in 0..40 {
        let mut pipe = redis::pipe();
        for key in 0..500 {
            pipe.cmd("SET").arg(format!("{round}:{key}")).arg(vec![7_u8; 400]).ignore();
        }
        pipe.exec(&mut connection).unwrap();
        if round == 20 {
            store.checkpoint().unwrap();
        }
    }
    drop(connection);
    server.stop().unwrap();
    store.close().unwrap();
    assert_eq!(names(dir.path()), ["store"], "the socket is removed");
    assert!(names(other.path()).is_empty());
    let store =
        Database::builder().cache_bytes(1 << 20).create(false).open(dir.path().join("store")).unwrap();
    assert!(store.check(&mut |_, _| ()).unwrap().is_clean());
    set_current_dir("/").unwrap();
}
