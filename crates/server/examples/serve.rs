//! The door in a program of its own: `cargo run --release -p azekura-server --example serve -- my.db --listen 127.0.0.1:6379`.
//!
//! Takes what `azekura serve` takes for a first look, and nothing more; it ends when its input does.

use std::io::Read;

use azekura::Database;
use azekura_server::{Server, ServerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "serve");
    let path = arguments.next().ok_or("usage: serve PATH [--listen ADDRESS] [--reactors N]")?;
    let mut options = ServerOptions::default();
    while let (Some(option), Some(value)) = (arguments.next(), arguments.next()) {
        match option.as_str() {
            "--listen" => options.listen = value.parse()?,
            "--reactors" => options.reactors = value.parse()?,
            _ => return Err(format!("no option {option}").into()),
        }
    }
    let db = Database::builder().cache_bytes(256 << 20).open(path)?;
    let server = Server::start(db, options)?;
    println!("serving on {}", server.address());
    if std::io::stdin().read_to_end(&mut Vec::new())? == 0 {
        loop {
            std::thread::park(); // no input at all: until it is killed
        }
    }
    server.stop()?;
    Ok(())
}
