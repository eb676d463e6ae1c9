//! The parts of the proof, each of which runs alone, in a process of its own.

use std::process::Command;

use larder_core::types::MIB;

use crate::rig::{Explain, Rig};
use crate::{
    conformance, driver_pool, full, graphs, nccl, nvshmem, ordering, pairs, patterns, sharing,
    training, views,
};

/// By how much the free memory may shrink before it counts as a leak: one unit of the driver's.
const LEAK_BYTES: u64 = 2 * MIB;

/// One part.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// It is ended when it takes longer.
    pub(crate) limit_s: u64,
    pub(crate) about: &'static str,
    work: Work,
}

enum Work {
    /// On the card; whether it shall be short.
    Card(fn(&Rig, bool) -> Result<String, String>),
    /// A run with a library that takes memory for itself whenever it likes, so that what is free
    /// afterwards says nothing.
    Library(fn(&Rig, bool) -> Result<String, String>),
    /// A program of its own.
    Other(fn(bool) -> Result<String, String>),
}

pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "conformance",
        limit_s: 60,
        about: "what any device must do",
        work: Work::Card(conformance::run),
    },
    Part {
        name: "patterns",
        limit_s: 120,
        about: "random scripts, every block with a pattern of its own",
        work: Work::Card(patterns::run),
    },
    Part {
        name: "views",
        limit_s: 300,
        about: "millions of blocks under tight, beside graphs that replay",
        work: Work::Card(views::run),
    },
    Part {
        name: "late-reader",
        limit_s: 30,
        about: "a kernel reads a block long after it was freed",
        work: Work::Card(ordering::late_reader),
    },
    Part {
        name: "reuse",
        limit_s: 30,
        about: "blocks are handed out again exactly when they may be",
        work: Work::Card(ordering::reuse),
    },
    Part {
        name: "buffers",
        limit_s: 30,
        about: "buffers in launches on streams of others",
        work: Work::Card(ordering::buffers),
    },
    Part {
        name: "graphs",
        limit_s: 120,
        about: "captures of several threads, and replays beside eager work and streams that go",
        work: Work::Card(graphs::run),
    },
    Part {
        name: "share",
        limit_s: 60,
        about: "two processes share blocks both ways",
        work: Work::Card(sharing::run),
    },
    Part {
        name: "full",
        limit_s: 60,
        about: "out of memory on a full card, then recovery",
        work: Work::Card(full::run),
    },
    Part {
        name: "driver-pool",
        limit_s: 30,
        about: "backend:cudaMallocAsync behind the same interface",
        work: Work::Card(driver_pool::run),
    },
    Part {
        name: "nccl",
        limit_s: 60,
        about: "a symmetric pool of NCCL's memory, registered while it is there",
        work: Work::Library(nccl::run),
    },
    Part {
        name: "nvshmem",
        limit_s: 120,
        about: "a symmetric pool on NVSHMEM's heap, put and got by one and two processes",
        work: Work::Other(nvshmem::run),
    },
    Part {
        name: "sanitizer",
        limit_s: 150,
        about: "compute-sanitizer on a short run of patterns",
        work: Work::Other(sanitizer),
    },
    Part {
        name: "pairs",
        limit_s: 90,
        about: "what a malloc and a free cost, side by side",
        work: Work::Card(pairs::run),
    },
    Part {
        name: "training",
        limit_s: 90,
        about: "a training loop with cudarc's allocation and with ours",
        work: Work::Library(training::run),
    },
];

impl Part {
    pub(crate) fn named(name: &str) -> Option<&'static Part> {
        PARTS.iter().find(|part| part.name == name)
    }

    /// Whether all kernels shall be loaded at once, so that none takes memory while we count it.
    pub(crate) fn loads_eagerly(&self) -> bool {
        matches!(self.work, Work::Card(_))
    }

    /// Runs the part in this process, and says in a few words what came of it. Under a tool that
    /// takes memory of its own, the memory is not counted.
    /// It is run so many times, with nothing set up in between.
    pub(crate) fn run(&self, short: bool, counted: bool, times: u32) -> Result<String, String> {
        let (run, counted) = match self.work {
            Work::Other(run) => return run(short),
            Work::Library(run) => (run, false),
            Work::Card(run) => (run, counted),
        };
        let rig = Rig::new()?;
        // Once in short, so that what the driver keeps for itself is there before we count.
        run(&rig, true).or_say("warming up")?;
        rig.dismiss_streams();
        let before_bytes = rig.free_bytes()?;
        let mut said = String::new();
        for time in 1..=times {
            said = run(&rig, short).map_err(|error| format!("time {time} of {times}: {error}"))?;
            rig.dismiss_streams();
        }
        if times > 1 {
            said = format!("{times} times: {said}");
        }
        let after_bytes = rig.free_bytes()?;
        let held = rig.device.held();
        // What the driver's own pool let go of meanwhile is no leak.
        let leaks = counted && before_bytes.saturating_sub(after_bytes) > LEAK_BYTES;
        if leaks || held != larder_cuda::Held::default() {
            return Err(format!(
                "{said}; but {before_bytes} bytes were free before and {after_bytes} after, and \
                 {held:?} is still out"
            ));
        }
        let left = after_bytes as i64 - before_bytes as i64;
        Ok(if counted { format!("{said}; free memory afterwards {left:+} bytes") } else { said })
    }
}

/// Short runs of the patterns, plain and through views, under the memory checker.
fn sanitizer(_short: bool) -> Result<String, String> {
    for part in ["patterns", "views"] {
        sanitize(part).or_say(part)?;
    }
    Ok(String::from("patterns and views: 0 errors"))
}

fn sanitize(part: &str) -> Result<(), String> {
    let program = std::env::current_exe().or_say("this program")?;
    let output = Command::new("compute-sanitizer")
        // A driver call that is refused is answered by the program, not an error of its memory.
        .args(["--tool", "memcheck", "--report-api-errors", "no"])
        .args(["--error-exitcode", "97", "--print-limit", "20"])
        .arg(program)
        .args(["part", part, "--short", "--uncounted"])
        .output()
        .or_say("compute-sanitizer")?;
    let said = String::from_utf8_lossy(&output.stdout);
    eprintln!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let summary = said.lines().rev().find(|line| line.contains("ERROR SUMMARY"));
    let summary = summary.map_or("no summary", |line| line.trim_start_matches('=').trim());
    if output.status.success() && summary == "ERROR SUMMARY: 0 errors" {
        Ok(())
    } else {
        Err(format!("{}: {summary}", output.status))
    }
}
