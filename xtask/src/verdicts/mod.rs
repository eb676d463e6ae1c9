//! Verdicts: PyTorch itself, of every version, on a stand-in for the GPU, with its own allocator
//! and with ours; what becomes of each test on both.

mod recordings;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use clap::Args;

use crate::command;
use crate::docs;
use crate::file;
use crate::peer::Peer;
use crate::programs::{Programs, target_folder};
use crate::python::{self, Environment};
use crate::stand_in::{self, Library};
use crate::torch::{self, Torch};

/// What PyTorch's own tests need besides PyTorch.
const TOOLS: [&str; 5] =
    ["numpy==2.4.6", "expecttest==0.3.0", "hypothesis==6.170.15", "psutil==7.2.2", "ninja==1.13.2"];

/// The classes of PyTorch's `test_cuda.py` that are about memory, under the names that they have
/// had.
const OWN_CLASSES: &[&str] = &[
    "TestResizeStorageWithAddr",
    "TestCudaAllocator",
    "TestCudaMallocAsync",
    "TestBlockStateAbsorption",
    "TestCachingHostAllocator",
    "TestMemPool",
    "TestFXMemoryProfiler",
    "TestMemoryViz",
];

/// The memory of the stand-in. What is not written to costs nothing.
const MEMORY_BYTES: u64 = 80 << 30;

/// How often a test that fares worse on ours is tried again on both: some go by the clock.
const AGAIN: usize = 2;

const PAGE: &str = "docs/torch.md";

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// One version, not all.
    #[arg(long, value_name = "VERSION", value_parser = Torch::named)]
    torch: Option<Torch>,
    /// A folder with PyTorch's own tests, which are not in its wheels: `DIR/2.15/test_cuda.py` and
    /// so on.
    #[arg(long, value_name = "DIR")]
    own: Option<PathBuf>,
    /// The environments stay under target/verdicts, five gigabytes each.
    #[arg(long = "keep")]
    keeps: bool,
    /// PyTorch's own allocator with expandable segments beside ours with policy:tight, instead;
    /// nothing is recorded, and no table is written.
    #[arg(long = "tight")]
    is_tight: bool,
}

/// Some test files under some settings.
struct Suite {
    name: &'static str,
    files: Vec<PathBuf>,
    classes: &'static [&'static str],
    settings: &'static str,
    /// What only ours is told.
    own_settings: &'static str,
}

/// The verdict on each test.
type Verdicts = BTreeMap<String, String>;

/// What a suite came to.
struct Found {
    suite: &'static str,
    passed: usize,
    failed: usize,
    skipped: usize,
    unsteady: usize,
    /// Tests that pass natively and not on ours.
    lost: Vec<String>,
    /// Tests that pass on ours and not natively.
    won: usize,
}

/// One version's environment, and where its results go.
struct Stage<'a> {
    root: &'a Path,
    environment: Environment,
    stand_in: &'a Path,
}

/// Runs the suites on the versions asked for, and writes the table once all have been run.
pub(crate) fn run(root: &Path, cargo: &Path, options: &Options) -> Result<(), String> {
    let target = target_folder(root);
    let folder = target.join("verdicts");
    let stand_in = build_stand_in(root, &target, &folder.join("stand-in"))?;
    let wheels = folder.join("wheel");
    let _ = fs::remove_dir_all(&wheels);
    python::build_wheel(root, &wheels)?;
    let programs = Programs::build(root, cargo, &target)?;
    let mut lost = Vec::new();
    for torch in options.torch.map_or(torch::ALL.to_vec(), |torch| vec![torch]) {
        let environment = Environment { folder: folder.join(torch.minor), target: target.clone() };
        let stage = Stage { root, environment, stand_in: &stand_in };
        let mut rows = Vec::new();
        for found in stage.run(torch, &wheels, options)? {
            println!("{}", found.row(torch));
            rows.push(found.row(torch));
            for name in &found.lost {
                println!("passes natively and not on Larder: {name}");
                lost.push(format!("{torch}, {}: {name}", found.suite));
            }
        }
        if !options.is_tight {
            lost.extend(replay_recordings(&stage, &programs, torch)?);
        }
        if options.own.is_some() && !options.is_tight {
            let file = rows_file(&folder, torch);
            let said = |error| format!("{}: {error}", file.display());
            fs::write(&file, rows.join("\n")).map_err(said)?;
        }
        if !options.keeps {
            stage.clear()?;
        }
    }
    // One version may have been run today, and another yesterday.
    let rows: Vec<String> = torch::ALL
        .iter()
        .filter_map(|&torch| fs::read_to_string(rows_file(&folder, torch)).ok())
        .collect();
    if rows.len() == torch::ALL.len() {
        write_table(root, &rows)?;
    }
    if lost.is_empty() {
        return Ok(());
    }
    Err(format!("not as in PyTorch:\n{}", lost.join("\n")))
}

/// Has a version record what parity compares, and says how the replays differ from it.
fn replay_recordings(
    stage: &Stage<'_>,
    programs: &Programs,
    torch: Torch,
) -> Result<Vec<String>, String> {
    let (equal, different) = recordings::compare(stage, programs)?;
    let count = equal + different.len();
    println!("PyTorch {torch}: {equal} of {count} recordings are replayed to the byte");
    Ok(different.into_iter().map(|sentence| format!("{torch}, recorded: {sentence}")).collect())
}

impl Stage<'_> {
    fn run(&self, torch: Torch, wheels: &Path, options: &Options) -> Result<Vec<Found>, String> {
        eprintln!("==> PyTorch {torch} in {}", self.environment.folder.display());
        let pins = TOOLS.map(str::to_owned).into_iter();
        self.environment.prepare(&pins.chain([format!("torch=={torch}")]).collect::<Vec<_>>())?;
        let mut pip = self.environment.python();
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"])
            .args(["--no-deps", "--no-index", "--force-reinstall", "--find-links"]);
        command::run(pip.arg(wheels).arg("larder"))?;
        command::run(self.environment.python().args(["-m", "larder", "--compile"]))?;
        suites(self.root, torch, options)?.iter().map(|suite| self.compare(suite)).collect()
    }

    /// Runs a suite on both, and what fares worse on ours once more on both.
    fn compare(&self, suite: &Suite) -> Result<Found, String> {
        eprintln!("==> {}, natively and on Larder", suite.name);
        // Side by side: they have nothing to do with one another.
        let (native, ours) = thread::scope(|scope| {
            let native = scope.spawn(|| self.verdicts(suite, false, suite.classes));
            let ours = self.verdicts(suite, true, suite.classes);
            (native.join(), ours)
        });
        let (native, ours) = (native.map_err(|_| "a thread panicked")??, ours?);
        let count = |word: &str| ours.values().filter(|verdict| *verdict == word).count();
        let passes = |verdicts: &Verdicts, name: &str| {
            verdicts.get(name).is_some_and(|verdict| verdict == "passed")
        };
        // Where nothing runs at all the two are equal, and nothing is shown.
        if !native.keys().any(|name| passes(&native, name)) {
            let folder = self.environment.folder.display();
            return Err(format!("no test of {} passes natively; see {folder}", suite.name));
        }
        let worse: Vec<&String> =
            native.keys().filter(|name| passes(&native, name) && !passes(&ours, name)).collect();
        let mut lost: Vec<String> = worse.iter().map(|name| (*name).clone()).collect();
        for _ in 0..AGAIN {
            let mut left = Vec::new();
            for name in lost {
                let only = [name.as_str()];
                let native = self.verdicts(suite, false, &only)?;
                let ours = self.verdicts(suite, true, &only)?;
                if passes(&native, &name) && !passes(&ours, &name) {
                    left.push(name);
                }
            }
            lost = left;
        }
        let won = ours.keys().filter(|name| passes(&ours, name) && !passes(&native, name)).count();
        Ok(Found {
            suite: suite.name,
            passed: count("passed"),
            failed: count("failed") + count("ended"),
            skipped: count("skipped"),
            unsteady: worse.len() - lost.len(),
            lost,
            won,
        })
    }

    /// What becomes of each test with one of these words in its name, or of all.
    fn verdicts(&self, suite: &Suite, on_larder: bool, words: &[&str]) -> Result<Verdicts, String> {
        let side = if on_larder { "larder" } else { "native" };
        let name = suite.name.replace([' ', '/', ','], "-");
        // What a test came to when it was tried again does not hide what the suite came to.
        let again = if words == suite.classes { "" } else { ".again" };
        let out = self.environment.folder.join(format!("{name}.{side}{again}"));
        let log = self.environment.folder.join(format!("{name}.{side}{again}.log"));
        let _ = fs::remove_file(&out);
        let said = |error| format!("{}: {error}", log.display());
        let written = fs::File::create(&log).map_err(said)?;
        let mut python = self.on_stand_in(MEMORY_BYTES);
        if on_larder {
            python.args(["-m", "larder"]);
        }
        python.arg(self.root.join("torch/verdicts.py")).arg(&out);
        for word in words {
            python.args(["-k", word]);
        }
        // What a run that was cut off was compiling stays locked, and whoever finds it waits.
        let extensions = self.environment.folder.join(format!("extensions.{side}"));
        let _ = fs::remove_dir_all(&extensions);
        python
            .args(&suite.files)
            .env("TORCH_EXTENSIONS_DIR", &extensions)
            .env("PYTORCH_CUDA_ALLOC_CONF", suite.settings)
            .env("LARDER_CONF", suite.own_settings)
            .stdout(written.try_clone().map_err(said)?)
            .stderr(written);
        command::run(&mut python).map_err(|error| format!("{error}; see {}", log.display()))?;
        let text = file::read(&out)?;
        Ok(read_verdicts(&text))
    }

    /// Python, where a GPU with so much memory seems to be.
    fn on_stand_in(&self, memory_bytes: u64) -> Command {
        let mut python = self.environment.python();
        python
            .env("LARDER_STAND_IN_MEMORY", memory_bytes.to_string())
            .env("LD_LIBRARY_PATH", self.stand_in)
            .env("LD_PRELOAD", self.stand_in.join("libcudart.so.13"));
        python
    }

    /// Takes the environment away; what it printed stays.
    fn clear(&self) -> Result<(), String> {
        recordings::clear(self);
        let folder = &self.environment.folder;
        let _ = fs::remove_file(folder.join("complete"));
        let venv = folder.join("venv");
        fs::remove_dir_all(&venv).map_err(file::named(&venv))
    }
}

impl Found {
    fn row(&self, torch: Torch) -> String {
        let Self { suite, passed, failed, skipped, unsteady, won, .. } = self;
        let lost = self.lost.len();
        format!(
            "| {torch} | {suite} | {passed} | {lost} | {won} | {failed} | {skipped} | {unsteady} |"
        )
    }
}

/// Where the rows of a version are kept, until all are there.
fn rows_file(folder: &Path, torch: Torch) -> PathBuf {
    folder.join(format!("{}.rows", torch.minor))
}

/// The suites for a version. Plain settings are said, since ours has others by default.
fn suites(root: &Path, torch: Torch, options: &Options) -> Result<Vec<Suite>, String> {
    const PLAIN: &str = "expandable_segments:False";
    const EXPANDABLE: &str = "expandable_segments:True";
    let folder = root.join("torch/tests");
    let entries = fs::read_dir(&folder).map_err(file::named(&folder))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("test_"))
    });
    files.sort();
    let suite = |name, files, classes, settings| {
        let (settings, own_settings) =
            if options.is_tight { (EXPANDABLE, "policy:tight") } else { (settings, "") };
        Suite { name, files, classes, settings, own_settings }
    };
    let mut suites = vec![suite("torch/tests", files, &[], PLAIN)];
    if let Some(own) = &options.own {
        let file = own.join(torch.minor).join("test_cuda.py");
        if !file.is_file() {
            return Err(format!("{} is not there", file.display()));
        }
        let file = vec![file];
        suites.push(suite("test_cuda.py, memory", file.clone(), OWN_CLASSES, PLAIN));
        if !options.is_tight {
            suites.push(suite("test_cuda.py, memory, expandable", file, OWN_CLASSES, EXPANDABLE));
        }
    }
    Ok(suites)
}

fn read_verdicts(text: &str) -> Verdicts {
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(verdict, name)| (name.to_owned(), verdict.to_owned())).collect()
}

/// The libraries in the places of the driver, the runtime and NVML.
pub(crate) fn build_stand_in(root: &Path, target: &Path, folder: &Path) -> Result<PathBuf, String> {
    file::create(folder)?;
    let headers = Peer::new(target).cuda_headers()?;
    let own = root.join("torch/stand_in");
    let sources = &[stand_in::driver(root), own.join("driver.cpp")];
    Library { name: "libcuda.so.1", sources, words: &[] }.compile(&headers, folder)?;
    let sources = &["runtime.cpp", "kernels.cpp", "unsupported.cpp"].map(|file| own.join(file));
    let words = &[
        format!("-I{}", root.join("crates/larder-proof/stand_in").display()),
        folder.join("libcuda.so.1").display().to_string(),
        format!("-Wl,--version-script={}", own.join("libcudart.map").display()),
        "-Wl,--no-undefined".to_owned(),
        "-Wl,-rpath,$ORIGIN".to_owned(),
    ];
    Library { name: "libcudart.so.13", sources, words }.compile(&headers, folder)?;
    stand_in::compile_nvml(root, &headers, folder)?;
    Ok(folder.to_owned())
}

fn write_table(root: &Path, rows: &[String]) -> Result<(), String> {
    let head = "| PyTorch | suite | pass on Larder | pass natively alone | pass on Larder alone | \
    fail on Larder | skipped | now so, now otherwise |\n\
                |---|---|---:|---:|---:|---:|---:|---:|";
    let table = format!("{head}\n{}\n", rows.join("\n"));
    docs::write(root, PAGE, "verdicts", &table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_became_of_a_suite() {
        let verdicts = read_verdicts("passed a.B.c\nended a.B.d e\n");
        assert_eq!(verdicts["a.B.d e"], "ended");
        let found = Found {
            suite: "torch/tests",
            passed: 7,
            failed: 1,
            skipped: 2,
            unsteady: 0,
            lost: vec!["a.B.c".to_owned()],
            won: 3,
        };
        assert_eq!(found.row(torch::NEWEST), "| 2.15.0 | torch/tests | 7 | 1 | 3 | 1 | 2 | 0 |");
    }
}
