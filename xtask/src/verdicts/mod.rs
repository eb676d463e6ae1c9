//! Verdicts: PyTorch itself, of every version, on a stand-in for the GPU, with its own allocator
//! and with ours; what becomes of each test on both.

mod recordings;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use clap::Args;
use xshell::Cmd;

use crate::peer::cuda_headers;
use crate::programs::Programs;
use crate::python::{self, Environment, QUIET};
use crate::repository::Repository;
use crate::table::Table;
use crate::torch::{self, Torch};
use crate::{command, docs, file, stand_in};

/// What PyTorch's own tests need besides PyTorch.
const TOOLS: [&str; 5] =
    ["numpy==2.4.6", "expecttest==0.3.0", "hypothesis==6.170.15", "psutil==7.2.2", "ninja==1.13.2"];

/// The classes of PyTorch's `test_cuda.py` that are about memory, under the names that they have
/// had.
const OWN_CLASSES: &str = "TestResizeStorageWithAddr TestCudaAllocator TestCudaMallocAsync \
     TestBlockStateAbsorption TestCachingHostAllocator TestMemPool TestFXMemoryProfiler \
     TestMemoryViz";

/// The memory of the stand-in. What is not written to costs nothing.
const MEMORY_BYTES: u64 = 80 << 30;

/// How often a test that fares worse on ours is tried again on both: some go by the clock.
const AGAIN: usize = 2;

const PAGE: &str = "docs/torch.md";
const HEADINGS: &str = "PyTorch | suite | pass on Larder | pass natively alone | \
     pass on Larder alone | fail on Larder | skipped | now so, now otherwise";

/// What is asked for.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// One version, not all.
    #[arg(long, value_name = "VERSION", value_parser = Torch::named)]
    torch: Option<Torch>,
    /// A folder with PyTorch's own tests, which are not in its wheels: `DIR/2.15/test_cuda.py` and
    /// so on.
    #[arg(long, value_name = "DIR", value_parser = file::absolute)]
    own: Option<PathBuf>,
    /// The environments stay under target/verdicts, five gigabytes each.
    #[arg(long = "keep")]
    keeps: bool,
    /// PyTorch's own allocator with expandable segments beside ours with policy:tight, instead;
    /// nothing is recorded, and no table is written.
    #[arg(long = "tight")]
    is_tight: bool,
    /// Those tests alone with one of these words in their names, `pin,host`; nothing is recorded,
    /// and no table is written.
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
}

impl Options {
    /// Whether all is done that the table tells of.
    fn is_whole(&self) -> bool {
        !self.is_tight && self.only.is_empty()
    }
}

/// Some test files under some settings.
struct Suite {
    name: &'static str,
    files: Vec<PathBuf>,
    /// Words in the names of those that run; all run where there is none.
    words: Vec<String>,
    settings: &'static str,
    /// What only ours is told.
    own_settings: &'static str,
}

/// The verdict on each test.
type Verdicts = BTreeMap<String, String>;

fn passes(verdicts: &Verdicts, name: &str) -> bool {
    verdicts.get(name).is_some_and(|verdict| verdict == "passed")
}

/// What a suite came to.
struct Found {
    /// As it stands in the table.
    row: Vec<String>,
    /// Tests that pass natively and not on ours.
    lost: Vec<String>,
}

/// One version's environment.
struct Stage<'a> {
    torch: Torch,
    environment: Environment<'a>,
    stand_in: &'a Path,
}

/// Runs the suites on the versions asked for, and writes the table once all have been run.
pub(crate) fn run(repo: &Repository, options: &Options) -> Result<(), String> {
    let folder = repo.target.join("verdicts");
    let stand_in = &folder.join("stand-in");
    build_stand_in(repo, stand_in)?;
    let wheels = folder.join("wheel");
    let _ = fs::remove_dir_all(&wheels);
    python::build_wheel(repo, &wheels)?;
    let is_whole = options.is_whole();
    let programs = is_whole.then(|| Programs::build(repo, torch::OLDEST)).transpose()?;
    // One version may be run today, and another tomorrow.
    let kept = |torch: Torch| folder.join(format!("{}.rows", torch.minor));
    let mut worse = Vec::new();
    for torch in options.torch.map_or(torch::ALL.to_vec(), |torch| vec![torch]) {
        let environment = Environment { repo, folder: folder.join(torch.minor) };
        let stage = Stage { torch, environment, stand_in };
        let mut rows = Vec::new();
        for Found { row, lost } in stage.run(&wheels, options)? {
            println!("| {} |", row.join(" | "));
            for name in &lost {
                println!("passes natively and not on Larder: {name}");
                worse.push(format!("{torch}, {}: {name}", row[1]));
            }
            rows.push(row.join(" | "));
        }
        if let Some(programs) = &programs {
            worse.extend(replay_recordings(&stage, programs)?);
        }
        if options.own.is_some() && is_whole {
            file::write(&kept(torch), rows.join("\n"))?;
        }
        if !options.keeps {
            stage.clear()?;
        }
    }
    if is_whole && torch::ALL.iter().all(|&torch| kept(torch).is_file()) {
        let mut table = Table::new(HEADINGS, 2);
        for torch in torch::ALL {
            for row in file::read(&kept(torch))?.lines() {
                table.push(&[row.to_owned()]);
            }
        }
        docs::write(repo, PAGE, "verdicts", &table.markdown())?;
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!("not as in PyTorch:\n{}", worse.join("\n")))
}

/// Has a version record what parity compares, and says how the replays differ from it.
fn replay_recordings(stage: &Stage<'_>, programs: &Programs<'_>) -> Result<Vec<String>, String> {
    let (equal, different) = recordings::compare(stage, programs)?;
    let (torch, count) = (stage.torch, equal + different.len());
    println!("PyTorch {torch}: {equal} of {count} recordings are replayed to the byte");
    Ok(different.into_iter().map(|sentence| format!("{torch}, recorded: {sentence}")).collect())
}

impl Stage<'_> {
    fn run(&self, wheels: &Path, options: &Options) -> Result<Vec<Found>, String> {
        let Self { torch, environment, .. } = self;
        eprintln!("==> PyTorch {torch} in {}", environment.folder.display());
        let pins = TOOLS.map(str::to_owned).into_iter();
        environment.prepare(&pins.chain([format!("torch=={torch}")]).collect::<Vec<_>>())?;
        let pip = environment.python().args(["-m", "pip", "install"]).args(QUIET);
        let pip = pip.args(["--no-deps", "--no-index", "--force-reinstall", "--find-links"]);
        command::run(pip.arg(wheels).arg("larder"))?;
        command::run(environment.python().args(["-m", "larder", "--compile"]))?;
        let suites = suites(&environment.repo.root, *torch, options)?;
        suites.iter().map(|suite| self.compare(suite)).collect()
    }

    /// Runs a suite on both, and what fares worse on ours once more on both.
    fn compare(&self, suite: &Suite) -> Result<Found, String> {
        eprintln!("==> {}, natively and on Larder", suite.name);
        let words: Vec<&str> = suite.words.iter().map(String::as_str).collect();
        let (native, ours) = self.both(suite, &words)?;
        // Where nothing runs at all the two are equal, and nothing is shown.
        if !native.keys().any(|name| passes(&native, name)) {
            let folder = self.environment.folder.display();
            return Err(format!("no test of {} passes natively; see {folder}", suite.name));
        }
        let better = |one: &Verdicts, other: &Verdicts| -> Vec<String> {
            let names = one.keys().filter(|name| passes(one, name) && !passes(other, name));
            names.cloned().collect()
        };
        let (worse, won) = (better(&native, &ours), better(&ours, &native));
        let mut lost = worse.clone();
        for _ in 0..AGAIN {
            let mut left = Vec::new();
            for name in lost {
                let (native, ours) = self.both(suite, &[name.as_str()])?;
                if passes(&native, &name) && !passes(&ours, &name) {
                    left.push(name);
                }
            }
            lost = left;
        }
        let count = |words: &[&str]| {
            ours.values().filter(|verdict| words.contains(&verdict.as_str())).count()
        };
        let counts = [
            count(&["passed"]),
            lost.len(),
            won.len(),
            count(&["failed", "ended"]),
            count(&["skipped"]),
            worse.len() - lost.len(),
        ];
        let names = [self.torch.to_string(), suite.name.to_owned()];
        let row = names.into_iter().chain(counts.map(|count| count.to_string())).collect();
        Ok(Found { row, lost })
    }

    /// What becomes of each test with one of these words in its name, or of all, natively and on
    /// Larder. They run side by side: they have nothing to do with one another.
    fn both(&self, suite: &Suite, words: &[&str]) -> Result<(Verdicts, Verdicts), String> {
        let native = self.start(suite, false, words)?;
        let ours = self.start(suite, true, words)?;
        Ok((native.verdicts()?, ours.verdicts()?))
    }

    fn start(&self, suite: &Suite, on_larder: bool, words: &[&str]) -> Result<Running, String> {
        let side = if on_larder { "larder" } else { "native" };
        // What a test came to when it was tried again does not hide what the suite came to.
        let again = if words == suite.words { "" } else { ".again" };
        let name = format!("{}.{side}{again}", suite.name.replace([' ', '/', ','], "-"));
        let out = self.environment.folder.join(&name);
        let log = self.environment.folder.join(format!("{name}.log"));
        let _ = fs::remove_file(&out);
        let written = fs::File::create(&log).map_err(file::named(&log))?;
        // What a run that was cut off was compiling stays locked, and whoever finds it waits.
        let extensions = self.environment.folder.join(format!("extensions.{side}"));
        let _ = fs::remove_dir_all(&extensions);
        let larder: &[&str] = if on_larder { &["-m", "larder"] } else { &[] };
        let python = self.on_stand_in(MEMORY_BYTES).args(larder);
        let python = python.arg("torch/verdicts.py").arg(&out);
        let python = python.args(words.iter().flat_map(|word| ["-k", word])).args(&suite.files);
        let python = python
            .env("TORCH_EXTENSIONS_DIR", &extensions)
            .env("PYTORCH_CUDA_ALLOC_CONF", suite.settings)
            .env("LARDER_CONF", suite.own_settings);
        let mut python = Command::from(python);
        python.stdout(written.try_clone().map_err(file::named(&log))?).stderr(written);
        let child = python.spawn().map_err(|error| format!("python: {error}"))?;
        Ok(Running { child, out, log })
    }

    /// Python, where a GPU with so much memory seems to be.
    fn on_stand_in(&self, memory_bytes: u64) -> Cmd<'_> {
        on_stand_in(&self.environment, self.stand_in, memory_bytes)
    }

    /// Takes the environment away; what it printed stays.
    fn clear(&self) -> Result<(), String> {
        let _ = fs::remove_file(self.environment.folder.join("complete"));
        let venv = self.environment.folder.join("venv");
        fs::remove_dir_all(&venv).map_err(file::named(&venv))
    }
}

/// Tests that run, and the files into which they write.
struct Running {
    child: Child,
    out: PathBuf,
    log: PathBuf,
}

impl Running {
    fn verdicts(mut self) -> Result<Verdicts, String> {
        let status = self.child.wait().map_err(|error| format!("python: {error}"))?;
        if !status.success() {
            return Err(format!("`python` failed: {status}; see {}", self.log.display()));
        }
        Ok(read_verdicts(&file::read(&self.out)?))
    }
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
    let suite = |name, files, words: &'static str, settings| {
        let words = match &options.only[..] {
            [] => words.split_whitespace().map(str::to_owned).collect(),
            only => only.to_vec(),
        };
        // Pinned memory is ours only where somebody says so, and tests are about it too.
        let (settings, own_settings) = if options.is_tight {
            (EXPANDABLE, "policy:tight,pinned:larder")
        } else {
            (settings, "pinned:larder")
        };
        Suite { name, files, words, settings, own_settings }
    };
    let mut suites = vec![suite("torch/tests", files, "", PLAIN)];
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

/// An environment's Python, where a GPU with so much memory seems to be.
pub(crate) fn on_stand_in<'a>(
    environment: &Environment<'a>,
    stand_in: &Path,
    memory_bytes: u64,
) -> Cmd<'a> {
    let python = environment.python().env("LARDER_STAND_IN_MEMORY", memory_bytes.to_string());
    python.env("LD_LIBRARY_PATH", stand_in).env("LD_PRELOAD", stand_in.join("libcudart.so.13"))
}

/// The libraries in the places of the driver, the runtime and NVML, in a folder.
pub(crate) fn build_stand_in(repo: &Repository, folder: &Path) -> Result<(), String> {
    file::create(folder)?;
    let headers = &cuda_headers(repo)?;
    let driver = [stand_in::DRIVER, "torch/stand_in/driver.cpp"];
    stand_in::compile(repo, headers, ("libcuda.so.1", &driver, &[]), folder)?;
    let sources = ["runtime", "kernels", "unsupported"];
    let sources = sources.map(|name| format!("torch/stand_in/{name}.cpp"));
    let words = [
        "-Icrates/larder-proof/stand_in",
        &folder.join("libcuda.so.1").display().to_string(),
        "-Wl,--version-script=torch/stand_in/libcudart.map",
        "-Wl,--no-undefined",
        "-Wl,-rpath,$ORIGIN",
    ];
    let sources = sources.each_ref().map(String::as_str);
    stand_in::compile(repo, headers, ("libcudart.so.13", &sources, &words), folder)?;
    stand_in::compile_nvml(repo, headers, folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_by_name() {
        let verdicts = read_verdicts("passed a.B.c\nended a.B.d e\n");
        assert_eq!(verdicts["a.B.d e"], "ended");
        assert!(passes(&verdicts, "a.B.c") && !passes(&verdicts, "a.B.d e"));
    }
}
