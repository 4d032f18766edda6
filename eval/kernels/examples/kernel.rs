//! Runs one program of the far-memory evaluation on the heap, in its own process, and prints its verdict:
//! `kernel is.w`.

use azekura_kernels::{Arena, Kernel};
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let kernel: Kernel = match name.parse() {
        Ok(kernel) => kernel,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut bytes = vec![0_u8; kernel.bytes()];
    match kernel.run(&mut Arena::of_zeroed(&mut bytes)) {
        Ok(verdict) => {
            println!("{kernel}: {verdict}");
            ExitCode::from(u8::from(!verdict.verified()))
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
