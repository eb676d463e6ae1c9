//! Writes what a recorded program did, for the comparison with PyTorch's own allocator.
//!
//! ```text
//! write_trace FILE OUT.ops OUT.addresses
//! ```
//!
//! The first output is an op script; the second has a line `SIZE ADDRESS` for each address that the
//! recorded GPU gave.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

use larder_study::watch::Unwatched;
use larder_study::workload::Workload;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, script, addresses] = &words[..] else {
        return Err("usage: write_trace FILE OUT.ops OUT.addresses".into());
    };
    let workload = Workload::load(file.as_ref(), 0, &Unwatched)?;
    let mut lines = BufWriter::new(File::create(addresses)?);
    for span in &workload.segment_addresses {
        writeln!(lines, "{} {:x}", span.size_bytes, span.addr.0)?;
    }
    lines.flush()?;
    let mut lines = BufWriter::new(File::create(script)?);
    for op in &workload.ops {
        writeln!(lines, "{op}")?;
    }
    Ok(lines.flush()?)
}
