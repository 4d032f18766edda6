//! Each program passes its own verification, on the heap and with the recorder.

use azekura_kernels::himeno::Grid;
use azekura_kernels::npb::Class;
use azekura_kernels::{Arena, Kernel, OutOfMemory, Recorder};

fn run_on_heap(kernel: Kernel) {
    let mut bytes = vec![0_u8; kernel.bytes()];
    let verdict = kernel.run(&mut Arena::of_zeroed(&mut bytes)).expect("it asked for these bytes");
    assert!(verdict.verified(), "{kernel}: {verdict}");
}

#[test]
fn the_small_sizes_verify_on_the_heap_in_just_the_bytes_they_ask_for() {
    Kernel::all(Class::S).into_iter().for_each(run_on_heap);
}

#[test]
#[ignore = "half a minute with optimisation"]
fn the_larger_sizes_verify_too() {
    for class in [Class::W, Class::A] {
        Kernel::all(class).into_iter().for_each(run_on_heap);
    }
    run_on_heap(Kernel::Himeno(Grid::L));
}

#[test]
fn a_memory_that_is_too_small_is_refused() {
    for kernel in Kernel::all(Class::S) {
        let mut bytes = vec![0_u8; kernel.bytes() / 2];
        let refused: Result<_, OutOfMemory> = kernel.run(&mut Arena::of_zeroed(&mut bytes));
        assert!(refused.is_err(), "{kernel}");
    }
}

#[test]
fn a_recorded_run_verifies_and_is_the_same_each_time() {
    for kernel in ["is.s", "mg.s", "cluster.100"].map(|name| name.parse::<Kernel>().unwrap()) {
        let record = || {
            let mut memory = Recorder::new(4096, 1024);
            assert!(kernel.run(&mut memory).unwrap().verified(), "{kernel}");
            memory.finish()
        };
        let recording = record();
        assert_eq!(recording, record(), "{kernel}");
        let pages = recording.touches.iter().map(|touch| touch.0).max().unwrap() as usize + 1;
        assert!(pages * 4096 <= kernel.bytes() + 4096, "{kernel}: {pages} pages");
        assert!(pages * 4096 >= kernel.bytes() * 9 / 10, "{kernel}: {pages} pages");
    }
}
