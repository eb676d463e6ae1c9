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

use xshell::{Cmd, cmd};

use crate::peer::Peer;
use crate::programs::Programs;
use crate::repository::{Repository, is_script};
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
pub(super) fn check(repo: &Repository, programs: &Programs<'_>) -> Result<String, String> {
    let scratch = repo.target.join("judge/viewer");
    let viewer = Viewer { repo, programs, scratch };
    viewer.stand_in()?;
    for (number, (flavour, conf)) in SHOWN.into_iter().enumerate() {
        let (script, pickle) = (viewer.file("script.ops"), viewer.file("shown.pickle"));
        programs.write_seed(number as u64 + 1, flavour, &script)?;
        viewer.convert(&script, &pickle, conf)?;
        viewer.show(&pickle, conf)?;
    }
    let (mut shown, mut compared) = (SHOWN.len(), 0);
    for recording in repo.recordings().into_iter().filter(|file| !is_script(file)) {
        let (json, pickle) = (viewer.file("middle.json"), viewer.file("after.pickle"));
        viewer.convert(&recording, &pickle, "")?;
        viewer.compare(&recording, &pickle)?;
        viewer.convert(&recording, &json, "")?;
        viewer.convert(&json, &pickle, "")?;
        viewer.compare(&recording, &pickle)?;
        compared += 1;
        // A viewer in Python takes its time; a short recording shows what a long one would.
        if fs::metadata(&recording).is_ok_and(|facts| facts.len() < SHORT_BYTES) {
            viewer.show(&pickle, "")?;
            shown += 1;
        }
    }
    Ok(format!("{shown} snapshots shown by the viewer, {compared} recordings equal round the trip"))
}

struct Viewer<'a> {
    repo: &'a Repository,
    programs: &'a Programs<'a>,
    scratch: PathBuf,
}

impl Viewer<'_> {
    fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// A program that repeats what it is told, in a home for the viewer.
    fn stand_in(&self) -> Result<(), String> {
        let script = self.file("home/.cache/flamegraph.pl");
        file::create(&self.file("home/.cache"))?;
        file::write(&script, "#!/bin/sh\nexec cat\n")?;
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&script, mode).map_err(file::named(&script))
    }

    fn convert(&self, from: &Path, to: &Path, conf: &str) -> Result<(), String> {
        let larder = &self.programs.larder;
        let mut convert = cmd!(self.repo.shell, "{larder} snapshot {from} -o {to}");
        // What is a snapshot already is not run, and takes no word on how.
        if is_script(from) {
            convert = convert.args(["--policy", "torch-2.11", "--conf", conf]);
        }
        printed(convert, from).map(drop)
    }

    fn show(&self, pickle: &Path, conf: &str) -> Result<(), String> {
        let program = Peer::oldest(self.repo).torch().join("cuda/_memory_viz.py");
        let out = self.file("out");
        for (view, writes) in VIEWS {
            let _ = fs::remove_file(&out);
            let (name, options) = (view[0], &view[1..]);
            let mut show = cmd!(self.repo.shell, "python3 {program} {name} {pickle} {options...}");
            if writes {
                show = show.arg("-o").arg(&out);
            }
            let printed = printed(show.env("HOME", self.file("home")), pickle)?;
            let shown = if writes { fs::read_to_string(&out).unwrap_or_default() } else { printed };
            // Without call stacks a flame graph still has a line for each segment.
            if shown.is_empty() {
                let view = view.join(" ");
                return Err(format!("the viewer shows nothing as {view} (conf \"{conf}\")"));
            }
        }
        Ok(())
    }

    /// Compares two pickles as Python reads them; fails with the place where they part.
    fn compare(&self, before: &Path, after: &Path) -> Result<(), String> {
        let compare = cmd!(self.repo.shell, "python3 torch/same_pickles.py {before} {after}");
        printed(compare, before).map(drop)
    }
}

/// What a command printed, or why not.
fn printed(command: Cmd<'_>, about: &Path) -> Result<String, String> {
    command::output(command).map_err(|why| format!("{}: {why}", about.display()))
}
