//! Writes op scripts for the comparison with PyTorch's own allocator.
//!
//! ```text
//! write_ops seed SEED plain|capped|pooled|lending|graphs OUT.ops
//! write_ops trace FILE OUT.ops OUT.addresses
//! ```
//!
//! The first makes up the script that belongs to a seed: without pools, with many caps on the
//! memory, with private pools, with pools that lend, or with graph captures and checkpoints. The
//! second writes down what a recorded program did, and with a line `SIZE ADDRESS` each the
//! addresses that the recorded GPU gave. Both print the most bytes that are live at a time, which
//! says what a large and what a small device is for the script.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use larder_core::types::{GIB, KIB, MIB};
use larder_sim::random::Random;
use larder_sim::script::Op;
use larder_study::watch::Unwatched;
use larder_study::workload::Workload;
use larder_testkit::generate::{GenerateOptions, Generator};

const USAGE: &str = "usage: write_ops seed SEED plain|capped|pooled|lending|graphs [marked] \
                     OUT.ops\n       write_ops trace FILE OUT.ops OUT.addresses";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["seed", seed, flavour, out] => write_seed(seed, flavour, false, Path::new(out)),
        ["seed", seed, flavour, "marked", out] => write_seed(seed, flavour, true, Path::new(out)),
        ["trace", file, out, addresses] => {
            write_trace(Path::new(file), Path::new(out), Path::new(addresses))
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(peak_bytes) => {
            println!("{peak_bytes}");
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("write_ops: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// `marked` says that only a graph capture is one, and not any open scope.
fn write_seed(seed: &str, flavour: &str, marked: bool, out: &Path) -> Result<u64, String> {
    let seed: u64 = seed.parse().map_err(|_| format!("a seed is a number, not '{seed}'"))?;
    let apart = GenerateOptions { uses_stay_apart: true, ..shape(seed) };
    let mut options = GenerateOptions { captures_are_marked: marked, ..apart };
    let mut ops = Vec::new();
    match flavour {
        "plain" => {}
        "capped" => {
            options.fraction_probability = 0.01;
            ops.push(Op::Fraction { fraction: 0.5 });
        }
        "pooled" => options.pools = true,
        "lending" => {
            (options.pools, options.lending, options.pool_probability) = (true, true, 0.1);
            // A block is lent to requests on its own stream, so that there are few.
            options.streams = options.streams.min(2);
        }
        "graphs" => {
            (options.pools, options.graphs) = (true, true);
            // Uses on other streams are what captures and their reuse are about.
            options.streams = options.streams.max(2);
            options.record_probability = options.record_probability.max(0.1);
        }
        _ => return Err(format!("there is no flavour '{flavour}'")),
    }
    ops.extend(Generator::new(seed, options).generate());
    write_ops(&ops, out)
}

/// What kind of script a seed gives: long or short, with few or many streams, of small or large
/// blocks. One kind alone would leave most of the allocator's paths cold.
fn shape(seed: u64) -> GenerateOptions {
    // Numbers of its own, so that the shape says nothing about the operations.
    let mut random = Random::new(!seed);
    GenerateOptions {
        steps: random.between(100, 1500) as usize,
        streams: random.between(1, 4) as u32,
        live_target: random.between(5, 200) as usize,
        live_bytes_max: *random.pick(&[256 * MIB, 2 * GIB, 40 * GIB]),
        size_bytes_max: *random.pick(&[256 * KIB, 2 * MIB, 24 * MIB, 128 * MIB, 2 * GIB]),
        record_probability: *random.pick(&[0.0, 0.02, 0.05, 0.2]),
        sync_probability: *random.pick(&[0.01, 0.03, 0.1]),
        empty_probability: *random.pick(&[0.0, 0.002, 0.02]),
        ..GenerateOptions::default()
    }
}

fn write_trace(file: &Path, out: &Path, addresses: &Path) -> Result<u64, String> {
    let workload = Workload::load(file, 0, &Unwatched).map_err(|error| error.to_string())?;
    let write = || -> io::Result<()> {
        let mut lines = BufWriter::new(File::create(addresses)?);
        for span in &workload.segment_addresses {
            writeln!(lines, "{} {:x}", span.size_bytes, span.addr.0)?;
        }
        lines.flush()
    };
    write().map_err(|error| format!("{}: {error}", addresses.display()))?;
    write_ops(&workload.ops, out)
}

fn write_ops(ops: &[Op], out: &Path) -> Result<u64, String> {
    let write = || -> io::Result<()> {
        let mut lines = BufWriter::new(File::create(out)?);
        for op in ops {
            writeln!(lines, "{op}")?;
        }
        lines.flush()
    };
    write().map_err(|error| format!("{}: {error}", out.display()))?;
    Ok(peak_bytes(ops))
}

/// The most bytes that are live at a time, if every allocation is met.
fn peak_bytes(ops: &[Op]) -> u64 {
    let mut sizes = HashMap::new();
    let (mut live_bytes, mut peak_bytes) = (0_u64, 0);
    for &op in ops {
        match op {
            Op::Alloc { id, size_bytes, .. } => {
                sizes.insert(id, size_bytes);
                live_bytes += size_bytes;
                peak_bytes = peak_bytes.max(live_bytes);
            }
            Op::Free { id } => live_bytes -= sizes.remove(&id).unwrap_or(0),
            _ => {}
        }
    }
    peak_bytes
}
