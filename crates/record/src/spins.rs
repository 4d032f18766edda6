//! Finds spin loops in samples of the program counter: locks made of atomic instructions, and other busy
//! waits. A spin loop makes no call that the preload library could record.
//!
//! A sample lies in a spin loop if one of these holds:
//!
//! - The instruction before it is a pause instruction, which has no other use than busy waiting.
//! - The smallest loop around it has a pause instruction.
//! - The smallest loop around it can be ended by another thread only. Such a loop reads shared memory, calls
//!   no function, and writes memory by atomic instructions only. It carries nothing from one iteration to the
//!   next in a register or a word of the stack, whereas a loop that computes carries a counter or a result.
//!
//! The code is read from the files that the program had mapped, so code that a virtual machine generated at
//! run time is not known. Only code for x86-64 is decoded.

use crate::frames;
use crate::name::Sites;
use crate::symbols::Symbols;
use azekura_trace::file::{CpuSample, Name, Trace};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};
use std::collections::{BTreeMap, HashMap};

/// Number of bytes before and after a sample that are searched for its loop.
const REACH: u64 = 96;

/// Assigns each sample to the site of its spin loop, and adds up the samples of each thread and site.
pub(crate) fn find(trace: &mut Trace, symbols: &Symbols, sites: &mut Sites) {
    let mut known: HashMap<u64, u32> = HashMap::new();
    let mut joined: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    // A loop is named by the line of its most frequent sample, so that sample is processed first.
    let mut order: Vec<CpuSample> = std::mem::take(&mut trace.samples);
    order.sort_by_key(|sample| (std::cmp::Reverse(sample.count), sample.address, sample.tag));
    let mut lines: HashMap<(String, String), u32> = HashMap::new();
    for sample in order {
        let site = *known.entry(sample.address).or_insert_with(|| {
            let is_spin = symbols
                .bytes(sample.address, REACH)
                .is_some_and(|(begin, bytes)| is_in_spin_loop(&bytes, begin, sample.address));
            if !is_spin {
                return 0;
            }
            let place = frames::own(&symbols.frames(sample.address));
            let line = *lines.entry((place.function.clone(), place.file.clone())).or_insert(place.line);
            sites.id(Name { name: format!("spin loop in {}", place.function), file: place.file, line })
        });
        *joined.entry((sample.tag, site)).or_default() += sample.count;
    }
    let sample = |((tag, site), count)| CpuSample { tag, address: 0, site, count };
    trace.samples = joined.into_iter().map(sample).collect();
}

/// Returns `true` if the instruction at address `at` is in a spin loop; `bytes` is the code from address
/// `begin` on.
fn is_in_spin_loop(bytes: &[u8], begin: u64, at: u64) -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let Some(offset) = at.checked_sub(begin).and_then(|offset| usize::try_from(offset).ok()) else {
        return false;
    };
    if bytes.get(..offset).is_some_and(|before| before.ends_with(&[0xf3, 0x90])) {
        return true;
    }
    loop_around(bytes, begin, at).is_some_and(|instructions| is_spin(&instructions))
}

/// Returns the smallest loop around the instruction at `at`. A loop ends with a branch back to `at` or to an
/// instruction before it.
fn loop_around(bytes: &[u8], begin: u64, at: u64) -> Option<Vec<Instruction>> {
    let rest = bytes.get(usize::try_from(at - begin).ok()?..)?;
    for branch in Decoder::with_ip(64, rest, at, DecoderOptions::NONE) {
        let is_branch = matches!(
            branch.flow_control(),
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        );
        let to = branch.near_branch_target();
        if is_branch && to != 0 && (begin..=at).contains(&to) {
            let code = bytes.get(usize::try_from(to - begin).ok()?..)?;
            let decoder = Decoder::with_ip(64, code, to, DecoderOptions::NONE);
            let all: Vec<Instruction> =
                decoder.into_iter().take_while(|instruction| instruction.ip() <= branch.ip()).collect();
            let is_whole = [at, branch.ip()].iter().all(|ip| all.iter().any(|i| i.ip() == *ip));
            if is_whole {
                return Some(all);
            }
        }
        if branch.is_invalid() || branch.flow_control() == FlowControl::Return {
            return None;
        }
    }
    None
}

/// Memory of one thread only: a register, or a word of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Private {
    Register(Register),
    Stack(Register, u64),
}

/// Returns `true` if only another thread can end the loop.
fn is_spin(instructions: &[Instruction]) -> bool {
    if instructions.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Pause) {
        return true;
    }
    // A failed compare-and-swap leaves the word's value in RAX, for the next attempt.
    let swaps = instructions.iter().any(|instruction| instruction.mnemonic() == Mnemonic::Cmpxchg);
    let carried_by_swap = |place: &Private| swaps && *place == Private::Register(Register::RAX);
    let mut factory = InstructionInfoFactory::new();
    let (mut read_first, mut written) = (Vec::new(), Vec::new());
    let mut reads_shared = false;
    for instruction in instructions {
        let flow = instruction.flow_control();
        if !matches!(
            flow,
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        ) || instruction.code() == Code::INVALID
        {
            return false;
        }
        let info = factory.info(instruction);
        let mut places: Vec<(Private, OpAccess)> = Vec::new();
        for used in info.used_registers() {
            let register = used.register().full_register();
            if register != Register::RSP && register != Register::RIP {
                places.push((Private::Register(register), used.access()));
            }
        }
        for used in info.used_memory() {
            let is_stack = [Register::RSP, Register::RBP].contains(&used.base().full_register())
                && used.index() == Register::None;
            if is_stack {
                places.push((Private::Stack(used.base(), used.displacement()), used.access()));
            } else if is_write(used.access()) && !is_atomic(instruction) {
                return false;
            } else {
                reads_shared |= is_read(used.access());
            }
        }
        let first = |place: &Private| !written.contains(place);
        read_first.extend(places.iter().filter(|(p, access)| is_read(*access) && first(p)).map(|(p, _)| *p));
        written.extend(places.iter().filter(|(_, access)| is_write(*access)).map(|(place, _)| *place));
    }
    let is_carried = |place: &Private| written.contains(place) && !carried_by_swap(place);
    reads_shared && !read_first.iter().any(is_carried)
}

fn is_atomic(instruction: &Instruction) -> bool {
    instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg
}

fn is_read(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Tests a sample at each instruction of the code, in order.
    fn spins(code: &[&[u8]]) -> Vec<bool> {
        let bytes = code.concat();
        let at = |n: usize| 0x1000 + code[..n].iter().map(|i| i.len() as u64).sum::<u64>();
        (0..code.len()).map(|n| is_in_spin_loop(&bytes, 0x1000, at(n))).collect()
    }

    #[test]
    fn loops_that_another_thread_ends_are_spin_loops() {
        // mov eax, edx; xchg [rdi], eax; test eax, eax; jne; ret
        let exchange: [&[u8]; 5] = [&[0x89, 0xd0], &[0x87, 0x07], &[0x85, 0xc0], &[0x75, 0xf8], &[0xc3]];
        assert_eq!(spins(&exchange), [true, true, true, true, false]);
        // mov eax, [rdi + 4]; cmp eax, edx; jne
        assert_eq!(spins(&[&[0x8b, 0x47, 0x04], &[0x39, 0xd0], &[0x75, 0xf9]]), [true; 3]);
        // lea edx, [rax + 1]; lock cmpxchg [rdi], edx; jne
        assert_eq!(spins(&[&[0x8d, 0x50, 0x01], &[0xf0, 0x0f, 0xb1, 0x17], &[0x75, 0xf7]]), [true; 3]);
        // pause; dec ecx; jne: a pause with a count
        assert_eq!(spins(&[&[0xf3, 0x90], &[0xff, 0xc9], &[0x75, 0xfa]]), [true; 3]);
        // pause; ret: a function without a loop
        assert_eq!(spins(&[&[0xf3, 0x90], &[0xc3]]), [false, true]);
        // Not optimized: mov rax, [rbp-8]; mov eax, [rax]; mov [rbp-12], eax; cmp dword [rbp-12], 0; jne
        let slow: [&[u8]; 5] = [
            &[0x48, 0x8b, 0x45, 0xf8],
            &[0x8b, 0x00],
            &[0x89, 0x45, 0xf4],
            &[0x83, 0x7d, 0xf4, 0x00],
            &[0x75, 0xf1],
        ];
        assert_eq!(spins(&slow), [true; 5]);
    }

    #[test]
    fn loops_that_compute_are_none() {
        // imul rax, rax, 3; dec ecx; jne
        assert_eq!(spins(&[&[0x48, 0x6b, 0xc0, 0x03], &[0xff, 0xc9], &[0x75, 0xf8]]), [false; 3]);
        // lock xadd [rdi], rax; dec ecx; jne: a counter
        assert_eq!(spins(&[&[0xf0, 0x48, 0x0f, 0xc1, 0x07], &[0xff, 0xc9], &[0x75, 0xf7]]), [false; 3]);
        // mov rax, [rax]; test rax, rax; jne: walks a list
        assert_eq!(spins(&[&[0x48, 0x8b, 0x00], &[0x48, 0x85, 0xc0], &[0x75, 0xf8]]), [false; 3]);
        // mov [rdi], eax; mov eax, [rsi]; test eax, eax; jne: writes memory
        let writes: [&[u8]; 4] = [&[0x89, 0x07], &[0x8b, 0x06], &[0x85, 0xc0], &[0x75, 0xf8]];
        assert_eq!(spins(&writes), [false; 4]);
        // add dword [rbp-4], 1; cmp dword [rbp-4], 9; jle: a counter on the stack
        let counts: [&[u8]; 3] = [&[0x83, 0x45, 0xfc, 0x01], &[0x83, 0x7d, 0xfc, 0x09], &[0x7e, 0xf6]];
        assert_eq!(spins(&counts), [false; 3]);
        // mov eax, [rdi]; call; jne
        assert_eq!(spins(&[&[0x8b, 0x07], &[0xe8, 0, 0, 0, 0], &[0x75, 0xf7]]), [false; 3]);
        // rdtsc; cmp eax, edx; jne: waits for a time
        assert_eq!(spins(&[&[0x0f, 0x31], &[0x39, 0xd0], &[0x75, 0xfa]]), [false; 3]);
        // Truncated code, or no code.
        assert_eq!(spins(&[&[0x0f], &[]]), [false; 2]);
    }
}
