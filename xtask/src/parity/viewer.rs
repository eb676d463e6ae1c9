//! The viewer: PyTorch's own `torch.cuda._memory_viz` shows our snapshots, and Python's own pickle
//! finds a recording equal to what comes of it after it went through our hands.
//!
//! Of the PyTorch wheel only that one file is needed: it imports nothing of the package but for
//! profiles, which are no snapshots. Its flame graphs are drawn by a Perl script that it fetches
//! from elsewhere; a stand-in that repeats its input takes the script's place, so that nothing is
//! fetched and what the script would get is checked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peer::Peer;
use crate::programs::{Programs, recordings};
use crate::{command, file};

/// What the viewer is asked for, and whether it writes a file or prints.
const VIEWS: [(&[&str], bool); 8] = [
    (&["stats"], false),
    (&["trace"], false),
    (&["segments"], true),
    (&["memory"], true),
    (&["trace_plot"], true),
    (&["trace_plot", "--segments"], true),
    (&["trace_plot", "--filter_freed"], true),
    (&["segment_plot"], true),
];

/// Compares two pickles as Python reads them, and says where they part.
const COMPARE: &str = "torch/same_pickles.py";

/// Recordings in files below this size are short.
const SHORT_BYTES: u64 = 64 << 10;

/// Settings of the histories that are shown: segments that come whole, and ones that grow.
const SHOWN: [(&str, &str); 4] = [
    ("plain", ""),
    ("plain", "expandable_segments:True"),
    ("pooled", ""),
    ("pooled", "expandable_segments:True"),
];

/// Shows histories and compares recordings; a sentence says how many.
pub(super) fn check(programs: &Programs, peer: &Peer, root: &Path) -> Result<String, String> {
    let scratch = peer.folder().join("viewer");
    let home = scratch.join("home");
    file::create(&home.join(".cache"))?;
    stand_in(&home.join(".cache/flamegraph.pl"))?;
    let viewer = Viewer { programs, program: peer.viewer(), home, scratch };
    for (number, (flavour, conf)) in SHOWN.into_iter().enumerate() {
        let (script, pickle) = (viewer.file("script.ops"), viewer.file("shown.pickle"));
        programs.write_seed(number as u64 + 1, flavour, &script)?;
        viewer.convert(&script, &pickle, conf)?;
        viewer.show(&pickle, conf)?;
    }
    let (mut shown, mut compared) = (SHOWN.len(), 0);
    for recording in recordings(root) {
        if recording.extension().is_some_and(|ending| ending == "ops") {
            continue;
        }
        let (json, pickle) = (viewer.file("middle.json"), viewer.file("after.pickle"));
        viewer.convert(&recording, &pickle, "")?;
        compare(&recording, &pickle)?;
        viewer.convert(&recording, &json, "")?;
        viewer.convert(&json, &pickle, "")?;
        compare(&recording, &pickle)?;
        compared += 1;
        // A viewer in Python takes its time; a short recording shows what a long one would.
        if fs::metadata(&recording).is_ok_and(|facts| facts.len() < SHORT_BYTES) {
            viewer.show(&pickle, "")?;
            shown += 1;
        }
    }
    Ok(format!("{shown} snapshots shown by the viewer, {compared} recordings equal round the trip"))
}

/// A program that repeats what it is told.
fn stand_in(path: &Path) -> Result<(), String> {
    let said = |error| format!("{}: {error}", path.display());
    fs::write(path, "#!/bin/sh\nexec cat\n").map_err(said)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(said)
}

struct Viewer<'a> {
    programs: &'a Programs,
    program: PathBuf,
    home: PathBuf,
    scratch: PathBuf,
}

impl Viewer<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    fn convert(&self, from: &Path, to: &Path, conf: &str) -> Result<(), String> {
        let mut command = Command::new(&self.programs.larder);
        command.arg("snapshot").arg(from).arg("-o").arg(to);
        // What is a snapshot already is not run, and takes no word on how.
        if from.extension().is_some_and(|ending| ending == "ops") {
            command.args(["--policy", "torch-2.11", "--conf", conf]);
        }
        run(&mut command, from).map(drop)
    }

    fn show(&self, pickle: &Path, conf: &str) -> Result<(), String> {
        for (view, writes) in VIEWS {
            let out = self.file("out");
            let _ = fs::remove_file(&out);
            let mut command = Command::new("python3");
            command.arg(&self.program).arg(view[0]).arg(pickle).args(&view[1..]);
            if writes {
                command.arg("-o").arg(&out);
            }
            let printed = run(command.env("HOME", &self.home), pickle)?;
            let shown = if writes { fs::read_to_string(&out).unwrap_or_default() } else { printed };
            // Without call stacks a flame graph still has a line for each segment.
            if shown.is_empty() {
                let view = view.join(" ");
                return Err(format!("the viewer shows nothing as {view} (conf \"{conf}\")"));
            }
        }
        Ok(())
    }
}

/// Fails with the place where two pickles part.
fn compare(before: &Path, after: &Path) -> Result<(), String> {
    let mut python = Command::new("python3");
    python.arg(crate::repository_root().join(COMPARE)).arg(before).arg(after);
    run(&mut python, before).map(drop)
}

/// What a command printed, or why not.
fn run(command: &mut Command, about: &Path) -> Result<String, String> {
    command::output(command).map_err(|why| format!("{}: {why}", about.display()))
}
