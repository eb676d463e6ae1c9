//! Many threads: what a malloc and a free cost where threads share one allocator, with processors to
//! spare and without, beside PyTorch's own allocator and beside ours with a plain mutex for its lock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::contestant::Measured;
use super::machine::Machine;
use super::table::{Table, digits};
use super::timing::median;
use super::workload::{self, HOT_BLOCK, VARLEN};
use crate::command;
use crate::programs::{self, Programs, copy};

/// How much to measure, and with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) rounds: u64,
    /// The programs are those beside this one, and nothing is written.
    pub(crate) is_laid_out: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { rounds: 10, is_laid_out: false }
    }
}

/// The section of the page.
const HEADING: &str = "## Many threads";
/// So many lines of the recording are run, so that a pass of sixteen threads does not take seconds.
const LINES: usize = 20_000;
/// Sixteen programs of 13 GiB fit.
const MEMORY_GIB: u64 = 4096;
const THREADS: [u64; 4] = [1, 2, 4, 16];
/// How long a measurement shall take.
const TARGET_NS: f64 = 1.2e8;

/// What else goes on, and where the threads may run.
#[derive(Clone, Copy)]
enum Setting {
    Free,
    OneCore,
    Busy,
}

impl Setting {
    const ALL: [Self; 3] = [Self::Free, Self::OneCore, Self::Busy];

    fn title(self) -> &'static str {
        match self {
            Self::Free => "all cores",
            Self::OneCore => "one core",
            Self::Busy => "beside 3 busy processes",
        }
    }

    /// The command as it is run in this setting.
    fn wrap(self, program: &Path) -> Command {
        match self {
            Self::Free | Self::Busy => Command::new(program),
            Self::OneCore => {
                let mut command = Command::new("taskset");
                command.args(["-c", "0"]).arg(program);
                command
            }
        }
    }

    fn company(self) -> Vec<Busy> {
        let count = if matches!(self, Self::Busy) { 3 } else { 0 };
        (0..count).filter_map(|_| Busy::start()).collect()
    }
}

/// A process that does nothing, as fast as it can, until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Option<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        shell.spawn().ok().map(Self)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Who is measured.
struct Contestants {
    judge: PathBuf,
    mutex: PathBuf,
    larder: PathBuf,
}

impl Contestants {
    fn all(&self) -> [(&'static str, &Path); 3] {
        [("PyTorch 2.11", &self.judge), ("plain mutex", &self.mutex), ("larder", &self.larder)]
    }
}

/// Builds everything, measures, writes the section of the page and prints it.
pub(crate) fn run(root: &Path, cargo: &Path, options: Options) -> Result<(), String> {
    if options.is_laid_out {
        print!("{}", measure(&programs::beside()?, options.rounds)?);
        return Ok(());
    }
    let folder = programs::target_folder(root).join("threads");
    lay_out(root, cargo, &folder)?;
    let section = measure(&folder, options.rounds)?;
    let page = root.join("docs/benchmarks.md");
    let old = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    workload::write(&page, &with_section(&old, &section))?;
    print!("{section}");
    Ok(())
}

/// Puts everything that is needed into one folder, which can be taken elsewhere.
pub(crate) fn lay_out(root: &Path, cargo: &Path, folder: &Path) -> Result<(), String> {
    let target = programs::target_folder(root);
    eprintln!("==> building PyTorch's allocator, ours, and ours with a plain mutex");
    let built = Programs::build(root, cargo, &target)?.with_newest(root, &target)?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut mutex = Command::new(cargo);
    mutex.args(["build", "--release", "--quiet", "-p", "larder-cli"]).current_dir(root);
    mutex.env("CARGO_TARGET_DIR", target.join("mutex"));
    command::run(mutex.env("RUSTFLAGS", "--cfg larder_mutex"))?;
    built.lay_out(folder)?;
    copy(&target.join("mutex/release/larder"), &folder.join("larder-mutex"))?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    copy(&this, &folder.join("threads"))?;
    for name in ["larder", "larder-mutex", "threads", "write_ops"] {
        command::run(Command::new("strip").arg(folder.join(name)))?;
    }
    lay_out_judge(&built.judge, folder)?;
    if let Some(newest) = &built.newest {
        lay_out_judge(newest, &folder.join(programs::NEWEST))?;
    }
    let scripts = target.join("bench");
    fs::create_dir_all(&scripts).map_err(|error| format!("{}: {error}", scripts.display()))?;
    let workloads = workload::collect(root, &built, &scripts)?;
    workload::lay_out(&workloads, folder)?;
    for workload in workloads {
        if [HOT_BLOCK, VARLEN].contains(&workload.name.as_str()) {
            let text = fs::read_to_string(&workload.script).map_err(|error| error.to_string())?;
            let short: String = text.lines().take(LINES).flat_map(|line| [line, "\n"]).collect();
            workload::write(&folder.join(format!("{}.ops", workload.name)), &short)?;
        }
    }
    Ok(())
}

/// A judge with the libraries that it runs with.
fn lay_out_judge(judge: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let from = judge.parent().unwrap_or(Path::new("."));
    for name in ["judge", "libc10.so", "libc10_cuda.so", "libcudart.so.13"] {
        copy(&from.join(name), &folder.join(name))?;
    }
    // PyTorch asks NVML who has the memory of a GPU that is full, if there is one, and fails where NVML does
    // not know the GPU, as it does not know ours. An empty file is none; later versions need the stand-in.
    let nvml = from.join("libnvidia-ml.so.1");
    if nvml.is_file() {
        copy(&nvml, &folder.join("libnvidia-ml.so.1"))?;
    } else {
        workload::write(&folder.join("libnvidia-ml.so.1"), "")?;
    }
    command::run(
        Command::new("strip").args(["--strip-unneeded"]).arg(folder.join("libcudart.so.13")),
    )
}

/// One measurement.
fn time(
    program: &Path,
    setting: Setting,
    script: &Path,
    (repeat, threads): (u64, u64),
) -> Option<Measured> {
    let mut command = setting.wrap(program);
    command.arg("bench").arg(script);
    command.args(["--repeat", &repeat.to_string(), "--threads", &threads.to_string()]);
    if program.ends_with("judge") {
        command.env("LARDER_SIM_MEMORY", (MEMORY_GIB << 30).to_string());
        command.env_remove("PYTORCH_CUDA_ALLOC_CONF").env_remove("PYTORCH_ALLOC_CONF");
    } else {
        command.args(["--memory", &format!("{MEMORY_GIB}GiB")]);
    }
    // The peer can crash on its way out, which says nothing about what it costs.
    let output = command.output().ok()?;
    Measured::read(&String::from_utf8_lossy(&output.stdout))
}

/// So many passes take about as long as a measurement shall. What is tried last takes half of that at least: a short run
/// of many threads says little, because the last of them may sleep for a while after the others are done.
fn repeats(program: &Path, script: &Path, threads: u64) -> u64 {
    let mut repeat = 1;
    loop {
        let Some(measured) = time(program, Setting::Free, script, (repeat, threads)) else {
            return 1;
        };
        let elapsed_ns = measured.elapsed_ns();
        if elapsed_ns >= TARGET_NS / 2.0 || repeat > 1 << 30 {
            return (repeat as f64 * TARGET_NS / elapsed_ns).ceil().max(1.0) as u64;
        }
        repeat *= if elapsed_ns >= TARGET_NS / 16.0 { 2 } else { 8 };
    }
}

/// Measures everything and writes it down.
fn measure(folder: &Path, rounds: u64) -> Result<String, String> {
    let contestants = Contestants {
        judge: folder.join("judge"),
        mutex: folder.join("larder-mutex"),
        larder: folder.join("larder"),
    };
    let mut table = Table::new(&[
        "workload, threads, where",
        "PyTorch best",
        "mutex median",
        "mutex worst",
        "larder median",
        "larder worst",
        "medians, larder / mutex",
        "worst, larder / mutex",
        "PyTorch best / larder worst",
    ]);
    for name in [HOT_BLOCK, VARLEN] {
        let script = folder.join(format!("{name}.ops"));
        for threads in THREADS {
            let repeats = contestants.all().map(|(_, program)| repeats(program, &script, threads));
            for setting in Setting::ALL {
                eprintln!("==> {name}, {threads} threads, {}", setting.title());
                let company = setting.company();
                let mut times = [const { Vec::new() }; 3];
                for _ in 0..rounds {
                    for (at, (who, program)) in contestants.all().into_iter().enumerate() {
                        let measured = time(program, setting, &script, (repeats[at], threads))
                            .ok_or_else(|| format!("{who} gives no figure for {name}"))?;
                        times[at].push(measured.ns_per_op);
                    }
                }
                drop(company);
                table.push(row(&format!("{name}, {threads}, {}", setting.title()), &times));
            }
        }
    }
    let Machine { date, cpu, cores, compiler } = Machine::read();
    Ok(format!(
        "{HEADING}\n\n{date}, {cpu}, {cores} cores, {compiler}. Nanoseconds per operation of {rounds} runs \
         each, the three in turn:\nPyTorch's own allocator, ours with the standard library's mutex for its \
         lock, and ours. `best` and `worst` are\nof all runs. Of gpt2_varlen the first {LINES} lines are run. \
         Measured by `cargo xtask threads`.\n\n{}",
        table.markdown()
    ))
}

fn row(name: &str, times: &[Vec<f64>; 3]) -> Vec<String> {
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let [peer, mutex, larder] = times;
    let medians = [mutex, larder].map(|times| median(times).unwrap_or(0.0));
    let (mutex_worst, larder_worst) = (worst(mutex), worst(larder));
    let figures = [best(peer), medians[0], mutex_worst, medians[1], larder_worst].map(digits);
    let ratios = [medians[1] / medians[0], larder_worst / mutex_worst, best(peer) / larder_worst];
    let mut cells = vec![name.to_owned()];
    cells.extend(figures);
    cells.extend(ratios.map(|ratio| format!("{ratio:.2}")));
    cells
}

/// The page with its section about threads replaced, or put before what a card gave.
fn with_section(page: &str, section: &str) -> String {
    let card = "\n## On a card\n";
    let begin = page.find(&format!("\n{HEADING}\n")).or_else(|| page.find(card));
    let begin = begin.unwrap_or(page.len());
    let behind = page[begin..].find(card).map_or("", |at| &page[begin + at..]);
    format!("{}\n{section}{behind}", &page[..begin])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_replaced_and_the_rest_stays() {
        let page = "# Benchmarks\n\n## Time\n\n## On a card\n\n| pairs |\n";
        let once = with_section(page, "## Many threads\n\nold\n");
        assert_eq!(
            once,
            "# Benchmarks\n\n## Time\n\n## Many threads\n\nold\n\n## On a card\n\n| pairs |\n"
        );
        let twice = with_section(&once, "## Many threads\n\nnew\n");
        assert_eq!(twice, once.replace("old", "new"));
    }

    #[test]
    fn a_row_holds_the_worst_against_the_best() {
        let cells = row("x", &[vec![900.0, 600.0], vec![100.0, 80.0], vec![90.0, 120.0]]);
        assert_eq!(cells, ["x", "600", "90.0", "100", "105", "120", "1.17", "1.20", "5.00"]);
    }

    #[test]
    fn busy_processes_end_when_they_are_dropped() {
        let busy = Busy::start().expect("a shell");
        let id = busy.0.id();
        drop(busy);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }
}
