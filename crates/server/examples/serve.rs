//! The server as a program: `cargo run --release -p azekura-server --example serve -- my.db --listen
//! 127.0.0.1:6379`.
//!
//! Accepts only a few options of `azekura serve`. Ends when its standard input ends. With `--flush-us N` the
//! store uses a modeled device on which each write takes N microseconds. So the costs of requests can be
//! compared on a file system in memory, even if the machine's own device is busy.

use std::io::Read;
use std::sync::Arc;

use azekura::Database;
use azekura_io::OsFs;
use azekura_io::device::{DeviceFs, DeviceModel};
use azekura_server::{Server, ServerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "serve");
    let path = arguments
        .next()
        .ok_or("usage: serve PATH [--listen ADDRESS] [--reactors N] [--flush-us N] [--groups true|false]")?;
    let mut options = ServerOptions::default();
    let mut builder = Database::builder().cache_bytes(256 << 20);
    while let (Some(option), Some(value)) = (arguments.next(), arguments.next()) {
        match option.as_str() {
            "--listen" => options.listen = value.parse()?,
            "--reactors" => {
                options.reactors = value.parse()?;
                options.adapts_reactors = false;
            }
            "--groups" => options.groups_writes = value.parse()?,
            "--flush-us" => {
                let model = DeviceModel { write_ns: 1000 * value.parse::<u64>()?, ..DeviceModel::plp() };
                builder = builder
                    .file_system(Arc::new(DeviceFs::new(Arc::new(OsFs::new()), model.without_jitter())));
            }
            _ => return Err(format!("no option {option}").into()),
        }
    }
    let server = Server::start(builder.open(path)?, options)?;
    println!("serving on {}", server.address());
    if std::io::stdin().read_to_end(&mut Vec::new())? == 0 {
        loop {
            std::thread::park(); // the input was empty: runs until it is killed
        }
    }
    server.stop()?;
    Ok(())
}
