//! Writes the valid inputs from which the fuzz targets start to `corpus/TARGET` in the current directory.
#![allow(dead_code, reason = "this program only uses the seeds")]

#[path = "../../crates/azekura/tests/fuzz/control_file.rs"]
mod control_file;
#[path = "../../crates/buffer/tests/fuzz/double_write.rs"]
mod double_write;
#[path = "../../crates/far/tests/fuzz/far_wire.rs"]
mod far_wire;
#[path = "../../crates/cli/tests/fuzz/load_formats.rs"]
mod load_formats;
#[path = "../../crates/wal/tests/fuzz/log_scan.rs"]
mod log_scan;
#[path = "../../crates/fatbtree/tests/fuzz/node_wire.rs"]
mod node_wire;
#[path = "../../crates/btree/tests/fuzz/page_decode.rs"]
mod page_decode;
#[path = "../../crates/btree/tests/fuzz/record_decode.rs"]
mod record_decode;
#[path = "../../crates/server/tests/fuzz/requests.rs"]
mod requests;
#[path = "../../crates/trace/tests/fuzz/trace_file.rs"]
mod trace_file;

fn main() -> std::io::Result<()> {
    let targets = [
        ("page_decode", page_decode::seeds()),
        ("record_decode", record_decode::seeds()),
        ("log_scan", log_scan::seeds()),
        ("control_file", control_file::seeds()),
        ("double_write", double_write::seeds()),
        ("load_formats", load_formats::seeds()),
        ("requests", requests::seeds()),
        ("far_wire", far_wire::seeds()),
        ("node_wire", node_wire::seeds()),
        ("trace_file", trace_file::seeds()),
    ];
    for (target, seeds) in targets {
        let dir = std::path::Path::new("corpus").join(target);
        std::fs::create_dir_all(&dir)?;
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{number:04}")), seed)?;
        }
        println!("{}: {} inputs", dir.display(), seeds.len());
    }
    Ok(())
}
