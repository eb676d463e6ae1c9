//! What the command line asks for.

use std::path::PathBuf;

use crate::bench::{Options, threads};
use crate::page::Page;
use crate::parity::Seeds;
use crate::same;
use crate::torch::{self, Torch};
use crate::verdicts;
use crate::wheel;
use crate::world::World;

const USAGE: &str = "\
The project's own commands.

Usage: cargo xtask <command>

Commands:
  test     everything that CI checks, in CI's order; the tests come last
  lint     formatting, clippy and documentation, with warnings denied
  tidy     the rules of the source text: layers, crate graph, unsafe, sizes, names, words, links
  parity   PyTorch's own allocator beside ours, on random scripts and recorded programs
  same     another build of `larder` beside this one, on recorded programs under every policy
  differences  what each PyTorch's allocator gets wrong, shown by scripts of a few lines; writes the docs
  bench    what a malloc and a free cost, PyTorch's own allocator beside ours; writes the docs
  threads  the same where many threads share an allocator, beside a plain mutex; writes the docs
  tight    what the policy tight makes of recorded programs, beside the others; writes the docs
  page     the page of `larder report`: built from its sources, and used in a real browser
  model    the lock, checked by loom over the ways in which threads can interleave
  backend  the library for PyTorch programs, built against the oldest and the newest PyTorch
  verdicts PyTorch itself, of each version, on a stand-in for the GPU: its tests and ours, natively and on Larder
  headers  what we hand to the CUDA driver, compared with CUDA's own headers
  python   the Python package, installed as its users install it, and its tests
  wheel    the Python package as a wheel for everybody, with the command larder in it; tried without Rust
  world    other machines and programs: beside cudarc, no CUDA, macOS, the lowest Rust, packages, installs
  gpu      the folder target/gpu, which proves and measures on a machine with a GPU

Options:
  -h, --help   print this text, or after a command what the command does
";

const TEST_HELP: &str = "\
Runs everything that CI checks and stops at the first step that fails, with its exit code.

Usage: cargo xtask test

Steps: format, clippy, docs, tidy, release build of the program, parity with the allocators of
PyTorch 2.11 and, in short, 2.15, settings as PyTorch 2.11 to 2.15 read them, the lock by model, CUDA's headers, the proof on a stand-in for the driver, the Python package,
what other programs see of the crates, in short, the page of `larder report` in a browser, doc tests, tests. The tests run under cargo-nextest where it is installed, otherwise under cargo test.
";

const LINT_HELP: &str = "\
Runs the format check, clippy and the documentation build, with warnings denied.

Usage: cargo xtask lint
";

const TIDY_HELP: &str = "\
Reads the source text and reports, by file and line, what breaks the project's rules.

Usage: cargo xtask tidy

It reads the files that git tracks and the new ones that git does not ignore.
";

const PARITY_HELP: &str = "\
Runs PyTorch's own allocator and ours, under the policy that is named after its version, on the same simulated GPU
with the same scripts, and compares every statistic, every count of device calls and every placement.

Usage: cargo xtask parity [--torch VERSION] [--seeds N] [--from SEED] [--random-only]
                          [--through-interface | --laid-out] [--as VERSION]
       cargo xtask parity --settings N [--from SEED]

Options:
  --settings N          instead, N random settings texts, read by the own parser of each PyTorch, 2.11 to 2.15, and by
                        ours: accepted, refused and meant alike
  --torch VERSION       which PyTorch: 2.11, 2.12, 2.13, 2.14 or 2.15; 2.11 without it
  --seeds N             how many random scripts of each flavour, each under all settings; 50 without it
  --from SEED           the first seed; 1 without it
  --random-only         no recorded programs
  --through-interface   ours runs behind PyTorch's own C++ interface, as it does in a PyTorch program
  --laid-out            take the programs that lie beside this one, as in target/gpu/threads, and compare no recordings
  --as VERSION          ours decides as this other PyTorch, to see how many scripts tell the two apart

The recorded programs are compared too. A difference is printed with its seed, its settings and the
shortest beginning of the script that shows it. Scripts on which the peer gives up or does not agree
with itself are set aside and counted. It needs python3 with pip, gcc, g++ and, the first time, the
network: PyTorch's wheel is fetched from the package index and what is needed of it kept under
target/judge.
";

const DIFFERENCES_HELP: &str = "\
Runs the scripts of docs/differences on the allocators of PyTorch 2.11 to 2.15 and on ours, and writes the table of
docs/differences.md. It fails if a version has a defect that the page says is mended in it, or the other way round.

Usage: cargo xtask differences

What it needs is what parity needs, and the wheels of all five versions, one after the other.
";

const VERDICTS_HELP: &str = "\
Runs PyTorch itself, of each version, on a stand-in for the GPU, with its own allocator and with ours: the tests in
torch/tests, and those of PyTorch's own test_cuda.py that are about memory. Says which pass on both and which do not, and
writes a table in docs/torch.md once all versions were run. Each version also records the programs that parity compares, and
their replays under --policy torch are compared with it.

Usage: cargo xtask verdicts [--torch VERSION] [--own DIR] [--tight] [--keep]

Options:
  --torch VERSION   one version, not all
  --own DIR         a folder with PyTorch's own tests, which are not in its wheels: DIR/2.15/test_cuda.py and so on
  --tight           PyTorch's own allocator with expandable segments beside ours with policy:tight, instead; nothing is
                    recorded, and no table is written
  --keep            the environments stay under target/verdicts, five gigabytes each

It needs python3 with pip, g++ and the network. A version takes about ten minutes on an idle core.
";

const BENCH_HELP: &str = "\
Measures the allocators of PyTorch 2.11 and 2.15 and ours, torch-2.11 and larder, on the same simulated GPU with the
same scripts, in turn, and writes docs/benchmarks.md and docs/benchmarks.svg.

Usage: cargo xtask bench [--rounds N] [--quick] [--laid-out] [--own]

Options:
  --rounds N   how often each measurement is made, of which the median is shown; 7 without it
  --quick      a look in a few minutes: 3 rounds, short measurements, no large snapshot
  --laid-out   take the programs that lie beside this one, as in target/gpu/threads; time the scripts alone, and
               write nothing
  --own        time the policies larder and tight alone, in turn, with one thread, and write nothing: minutes for
               many rounds

It times the scripts and recordings in workloads/, counts instructions where valgrind is installed,
runs the bench of free blocks, and reads a snapshot of 1 GB that it makes under target/ and removes
again. Nothing else should run on the machine meanwhile. What it needs is what parity needs.
";

const THREADS_HELP: &str = "\
Measures PyTorch 2.11's own allocator, ours, and ours with a plain mutex for its lock, with 1, 2, 4 and 16
threads, on all cores, on one core, and beside three busy processes, and writes a section of
docs/benchmarks.md.

Usage: cargo xtask threads [--rounds N] [--laid-out]

Options:
  --rounds N   how often each measurement is made; 10 without it
  --laid-out   take the programs that lie beside this one, as in target/gpu/threads, and write nothing

What it needs is what parity needs, and taskset.
";

const TIGHT_HELP: &str = "\
Runs recorded programs on the simulated GPU under PyTorch 2.11's decisions, with and without expandable
segments, under larder and under tight, and writes a section of docs/benchmarks.md.

Usage: cargo xtask tight [--traces DIR]

Options:
  --traces DIR   the folder with the recordings; without it those that bench measures

For tight it also says whether 1.01 times what is in use at the peak is memory enough, what each of six
passes calls the driver for, and what becomes of the program with sizes 8 and 32 times as large, and with
sizes up to 3 % off, ten times. It is a measurement: whatever comes out, it ends well.
";

const PAGE_HELP: &str = "\
Builds the page of `larder report` from its sources, compares it with the one that is shipped, and uses it in
Chromium as a person would: reads its figures, drags, zooms, points, clicks, searches, compares.

Usage: cargo xtask page [--build | --measure]

Options:
  --build     instead, build the page that is shipped anew; for whoever changed its sources
  --measure   instead, measure how long pages of recordings of up to ten million events take to show, and
              how they move, and write a section of docs/benchmarks.md; it takes minutes

It needs Node 20 or newer with npm and, the first time, npm's registry. Chromium is installed by apt-get where
it is missing.
";

const MODEL_HELP: &str = "\
Checks the lock by model: loom runs its tests over the ways in which threads can interleave.

Usage: cargo xtask model
";

const HEADERS_HELP: &str = "\
Compares the sizes, the places, the numbers and the functions' types that we call the CUDA driver by
with those in CUDA's own headers, out of the wheel nvidia-cuda-runtime.

Usage: cargo xtask headers

It needs python3 with pip, g++ and, the first time, the Python package index; what it fetches stays
under target/judge.
";

const PYTHON_HELP: &str = "\
Installs the Python package from its folder with pip and runs its tests, in a virtual environment.

Usage: cargo xtask python

It needs python3 with pip and venv, g++ and, the first time, the Python package index; what it fetches
stays under target/python. It needs no PyTorch.
";

const WHEEL_HELP: &str = "\
Builds the Python package as a wheel for the package index, in target/wheels: for every Linux for which PyTorch's
own wheels are made (manylinux_2_28) and Python 3.10 or newer, with the command `larder` in it and the C++ part
for each PyTorch from 2.11 to 2.15, so that who installs it compiles nothing. Then installs it into a new
virtual environment in which no Rust is to be found, and uses it.

Usage: cargo xtask wheel [--torch VERSION | --all] [--built]

Options:
  --torch VERSION  tries it under this PyTorch too, on a stand-in for the GPU, where every compiler that is called is
                   written down and fails (torch/card/install.py)
  --all            the same under all five and under other releases of two of them, one after the other
  --built          tries the wheel that is in target/wheels, and builds none

It needs python3 with pip and venv, strip, g++, readelf and, the first time, the Python package index: five wheels of
PyTorch, of which little is kept under target/judge. The rest stays under target/wheel. A PyTorch under which
it is tried takes five gigabytes of disk meanwhile.
";

const WORLD_HELP: &str = "\
Checks what machines and programs that are not ours see:
- a program that uses cudarc, with each version of CUDA that cudarc has, builds beside `larder` and with it;
- a program that wants simulated GPUs only builds nothing of CUDA;
- each crate without `publish = false` can be packaged, and the packages build with each other;
- what users need builds for macOS, and with the lowest Rust that Cargo.toml states;
- `cargo install` gives the command `larder`, and so does the wheel (see `cargo xtask wheel`).

Usage: cargo xtask world [--quick]

Options:
  --quick   the first three alone, in short: the oldest and the newest CUDA, packages that are not built

It needs rustup, which fetches the lowest Rust and the standard library for macOS, and what `wheel` needs;
--quick needs nothing more than a build does.
";

const BACKEND_HELP: &str = "\
Builds the library that puts Larder behind PyTorch's own interface, against PyTorch 2.11 and against the
newest PyTorch that it is known to build for.

Usage: cargo xtask backend

It needs what parity needs, and the newest PyTorch's wheel besides.
";

const GPU_HELP: &str = "\
Builds what proves and measures on a machine with a GPU, and lays it out in target/gpu: a program, the
Python package as a wheel, and a script that runs both. The machine needs the NVIDIA driver, and for the
training loop cuBLAS 13; for PyTorch programs it needs PyTorch and a C++ compiler.

Usage: cargo xtask gpu [--kernels | --stand-in | --bundle]

Options:
  --kernels    compile the kernels anew before, with NVRTC out of its wheel, which needs no GPU
  --stand-in   instead, run the proof here, in short, on a stand-in for the driver; that shows that
               the calls are made as CUDA's header declares them and that the proof can pass
  --bundle     other people's libraries too (vLLM and what it imports; torch/card/bundle.txt), in target/bundle,
               some 250 MB in parts of 44 MiB, for `target/gpu/run.sh torch clients`

Take the folder there and run `target/gpu/run.sh`, or `target/gpu/run.sh PART ...` for some parts
alone; `target/gpu/run.sh --help` lists them. `target/gpu/run.sh torch` runs PyTorch programs on Larder and on
PyTorch's own allocator (torch/card must be there too). Results go to the folder that the variable OUT names.
";

/// What is done about the proof on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gpu {
    /// Its folder is laid out.
    Folder,
    /// Its kernels are compiled anew, and the folder is laid out.
    Kernels,
    /// It is run in short on a stand-in for the driver.
    StandIn,
    /// The folder is laid out, and with it other people's libraries for the part `clients`.
    Bundle,
}

/// Something that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Test,
    Lint,
    Tidy,
    Parity(Seeds),
    /// The other build.
    Same(PathBuf),
    Bench(Options),
    Threads(threads::Options),
    /// The folder with the recordings, where it is named.
    Tight(Option<PathBuf>),
    Page(Page),
    Model,
    Headers,
    Python,
    Wheel(wheel::Options),
    World(World),
    Differences,
    Verdicts(verdicts::Options),
    Backend,
    Gpu(Gpu),
}

impl Task {
    fn named(name: &str) -> Option<Self> {
        match name {
            "test" => Some(Self::Test),
            "lint" => Some(Self::Lint),
            "tidy" => Some(Self::Tidy),
            "parity" => Some(Self::Parity(Seeds::default())),
            "same" => Some(Self::Same(PathBuf::new())),
            "bench" => Some(Self::Bench(Options::default())),
            "threads" => Some(Self::Threads(threads::Options::default())),
            "tight" => Some(Self::Tight(None)),
            "page" => Some(Self::Page(Page::Test)),
            "model" => Some(Self::Model),
            "headers" => Some(Self::Headers),
            "python" => Some(Self::Python),
            "wheel" => Some(Self::Wheel(wheel::Options::default())),
            "world" => Some(Self::World(World::Whole)),
            "differences" => Some(Self::Differences),
            "verdicts" => Some(Self::Verdicts(verdicts::Options::default())),
            "backend" => Some(Self::Backend),
            "gpu" => Some(Self::Gpu(Gpu::Folder)),
            _ => None,
        }
    }

    fn help(&self) -> &'static str {
        match self {
            Self::Test => TEST_HELP,
            Self::Lint => LINT_HELP,
            Self::Tidy => TIDY_HELP,
            Self::Parity(_) => PARITY_HELP,
            Self::Same(_) => same::HELP,
            Self::Bench(_) => BENCH_HELP,
            Self::Threads(_) => THREADS_HELP,
            Self::Tight(_) => TIGHT_HELP,
            Self::Page(_) => PAGE_HELP,
            Self::Model => MODEL_HELP,
            Self::Headers => HEADERS_HELP,
            Self::Python => PYTHON_HELP,
            Self::Wheel(_) => WHEEL_HELP,
            Self::World(_) => WORLD_HELP,
            Self::Verdicts(_) => VERDICTS_HELP,
            Self::Differences => DIFFERENCES_HELP,
            Self::Backend => BACKEND_HELP,
            Self::Gpu(_) => GPU_HELP,
        }
    }

    /// Reads an option of this task, and its value if it takes one; false if the task has no such
    /// option.
    fn set<'a>(
        &mut self,
        option: &str,
        rest: &mut impl Iterator<Item = &'a String>,
    ) -> Result<bool, String> {
        match (self, option) {
            (Self::Parity(seeds), "--seeds") => seeds.count = number(option, rest)?,
            (Self::Parity(seeds), "--through-interface") => seeds.through_interface = true,
            (Self::Parity(seeds), "--random-only") => seeds.is_random_only = true,
            (Self::Parity(seeds), "--laid-out") => seeds.is_laid_out = true,
            (Self::Parity(seeds), "--from") => seeds.from = number(option, rest)?,
            (Self::Parity(seeds), "--settings") => seeds.texts = Some(number(option, rest)?),
            (Self::Parity(seeds), "--torch") => seeds.torch = torch(option, rest)?,
            (Self::Parity(seeds), "--as") => seeds.decided_as = Some(torch(option, rest)?),
            (Self::Same(other), "--with") => *other = folder(option, rest)?,
            (Self::Verdicts(options), "--torch") => options.torch = Some(torch(option, rest)?),
            (Self::Verdicts(options), "--own") => options.own = Some(folder(option, rest)?),
            (Self::Verdicts(options), "--keep") => options.keeps = true,
            (Self::Verdicts(options), "--tight") => options.is_tight = true,
            (Self::Bench(options), "--rounds") => options.rounds = Some(rounds(rest)?),
            (Self::Threads(options), "--rounds") => options.rounds = rounds(rest)?,
            (Self::Threads(options), "--laid-out") => options.is_laid_out = true,
            (Self::Tight(traces), "--traces") => *traces = Some(folder(option, rest)?),
            (Self::Bench(options), "--quick") => options.is_quick = true,
            (Self::Bench(options), "--laid-out") => options.is_laid_out = true,
            (Self::Bench(options), "--own") => options.is_own = true,
            (Self::Wheel(options), "--torch") => {
                let name = rest.next().map_or("", String::as_str);
                options.under.push(Torch::released(name)?);
            }
            (Self::Wheel(options), "--all") => {
                options.under.extend([&torch::ALL[..], &torch::OTHER_RELEASES].concat());
            }
            (Self::Wheel(options), "--built") => options.is_built = true,
            (Self::World(world), "--quick") => *world = World::Quick,
            (Self::Page(page), "--build") => *page = Page::Build,
            (Self::Page(page), "--measure") => *page = Page::Measure,
            (Self::Gpu(gpu), "--kernels") => *gpu = Gpu::Kernels,
            (Self::Gpu(gpu), "--stand-in") => *gpu = Gpu::StandIn,
            (Self::Gpu(gpu), "--bundle") => *gpu = Gpu::Bundle,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The number of rounds.
fn rounds<'a>(rest: &mut impl Iterator<Item = &'a String>) -> Result<u64, String> {
    let rounds = number("--rounds", rest)?;
    if rounds > 0 { Ok(rounds) } else { Err("`--rounds` is at least 1".to_owned()) }
}

/// The version of PyTorch behind an option.
fn torch<'a>(option: &str, rest: &mut impl Iterator<Item = &'a String>) -> Result<Torch, String> {
    let name = rest.next().ok_or_else(|| format!("`{option}` needs a version of PyTorch"))?;
    Torch::named(name)
}

/// The folder behind an option.
fn folder<'a>(
    option: &str,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Result<PathBuf, String> {
    let value = rest.next().ok_or_else(|| format!("`{option}` takes a folder"))?;
    Ok(PathBuf::from(value))
}

/// The number behind an option.
fn number<'a>(option: &str, rest: &mut impl Iterator<Item = &'a String>) -> Result<u64, String> {
    let value = rest.next().map_or("", String::as_str);
    value.parse().map_err(|_| format!("`{option}` takes a number, not `{value}`"))
}

/// A command line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Help(&'static str),
    Run(Task),
}

impl Request {
    /// Reads the words after `cargo xtask`; the error is a sentence for the user.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let Some((first, rest)) = arguments.split_first() else {
            return Err(format!("a command is missing\n\n{USAGE}"));
        };
        if is_help(first) || first == "help" {
            return Ok(Self::Help(USAGE));
        }
        let Some(mut task) = Task::named(first) else {
            return Err(format!(
                "there is no command `{first}`; `cargo xtask --help` lists the commands"
            ));
        };
        let help = task.help();
        let mut words = rest.iter().filter(|word| !is_help(word));
        while let Some(word) = words.next() {
            if !task.set(word, &mut words)? {
                return Err(format!(
                    "`{first}` does not take `{word}`; \
                     `cargo xtask {first} --help` says what it does"
                ));
            }
        }
        Ok(if rest.iter().any(|word| is_help(word)) { Self::Help(help) } else { Self::Run(task) })
    }
}

fn is_help(word: &str) -> bool {
    word == "-h" || word == "--help"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Request, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&words)
    }

    #[test]
    fn commands_are_understood() {
        assert_eq!(parse("test"), Ok(Request::Run(Task::Test)));
        assert_eq!(parse("lint"), Ok(Request::Run(Task::Lint)));
        assert_eq!(parse("tidy"), Ok(Request::Run(Task::Tidy)));
    }

    #[test]
    fn parity_takes_its_seeds() {
        let seeds = |from, count| Seeds { from, count, ..Seeds::default() };
        let parity = |from, count| Ok(Request::Run(Task::Parity(seeds(from, count))));
        let through = Seeds { through_interface: true, ..seeds(1, 9) };
        let parsed = parse("parity --through-interface --seeds 9");
        assert_eq!(parsed, Ok(Request::Run(Task::Parity(through))));
        let laid_out = Seeds { is_laid_out: true, ..seeds(1, 2000) };
        let parsed = parse("parity --laid-out --seeds 2000");
        assert_eq!(parsed, Ok(Request::Run(Task::Parity(laid_out))));
        assert_eq!(parse("parity"), parity(1, 50));
        assert_eq!(parse("parity --from 7"), parity(7, 50));
        assert_eq!(parse("parity --seeds 2000 --from 3"), parity(3, 2000));
        assert!(parse("parity --seeds").unwrap_err().contains("`--seeds` takes a number"));
        assert!(parse("parity --from x").unwrap_err().contains("`x`"));
        assert!(parse("parity --to 3").unwrap_err().contains("`--to`"));
        assert!(parse("tidy --seeds 3").unwrap_err().contains("`--seeds`"));
        let texts = Seeds { texts: Some(300), ..seeds(4, 50) };
        let parsed = parse("parity --settings 300 --from 4");
        assert_eq!(parsed, Ok(Request::Run(Task::Parity(texts))));
        assert_eq!(parse("parity --help"), Ok(Request::Help(PARITY_HELP)));
    }

    #[test]
    fn bench_takes_its_rounds_and_a_flag() {
        let bench = |rounds, is_quick| {
            let options = Options { rounds, is_quick, ..Options::default() };
            Ok(Request::Run(Task::Bench(options)))
        };
        assert_eq!(parse("bench"), bench(None, false));
        assert_eq!(parse("bench --quick"), bench(None, true));
        assert_eq!(parse("bench --quick --rounds 9"), bench(Some(9), true));
        assert_eq!(parse("bench --rounds 2 --quick"), bench(Some(2), true));
        assert!(parse("bench --rounds").unwrap_err().contains("`--rounds` takes a number"));
        assert!(parse("bench --rounds 0").unwrap_err().contains("at least 1"));
        assert!(parse("bench --fast").unwrap_err().contains("`--fast`"));
        assert!(parse("parity --quick").unwrap_err().contains("`--quick`"));
        let laid_out = Options { is_laid_out: true, ..Options::default() };
        assert_eq!(parse("bench --laid-out"), Ok(Request::Run(Task::Bench(laid_out))));
        let own = Options { rounds: Some(30), is_own: true, ..Options::default() };
        assert_eq!(parse("bench --own --rounds 30"), Ok(Request::Run(Task::Bench(own))));
        assert_eq!(parse("bench --help"), Ok(Request::Help(BENCH_HELP)));
    }

    #[test]
    fn threads_take_rounds_and_a_flag_and_model_takes_nothing() {
        let threads = |rounds, is_laid_out| {
            Ok(Request::Run(Task::Threads(threads::Options { rounds, is_laid_out })))
        };
        assert_eq!(parse("threads"), threads(10, false));
        assert_eq!(parse("threads --laid-out --rounds 12"), threads(12, true));
        assert!(parse("threads --rounds 0").unwrap_err().contains("at least 1"));
        assert_eq!(parse("model"), Ok(Request::Run(Task::Model)));
        assert!(parse("model --rounds 3").unwrap_err().contains("`--rounds`"));
    }

    #[test]
    fn same_takes_the_other_build() {
        let same = |path: &str| Ok(Request::Run(Task::Same(PathBuf::from(path))));
        assert_eq!(parse("same --with old/larder"), same("old/larder"));
        assert!(parse("same --with").unwrap_err().contains("`--with`"));
        assert_eq!(parse("same --help"), Ok(Request::Help(same::HELP)));
    }

    #[test]
    fn tight_takes_a_folder() {
        let tight = |folder: Option<&str>| {
            Ok(Request::Run(Task::Tight(folder.map(std::path::PathBuf::from))))
        };
        assert_eq!(parse("tight"), tight(None));
        assert_eq!(parse("tight --traces some/folder"), tight(Some("some/folder")));
        assert!(parse("tight --traces").unwrap_err().contains("`--traces` takes a folder"));
        assert!(parse("bench --traces x").unwrap_err().contains("`--traces`"));
        assert_eq!(parse("tight --help"), Ok(Request::Help(TIGHT_HELP)));
    }

    #[test]
    fn gpu_takes_flags_and_headers_takes_nothing() {
        assert_eq!(parse("headers"), Ok(Request::Run(Task::Headers)));
        assert_eq!(parse("backend"), Ok(Request::Run(Task::Backend)));
        assert_eq!(parse("gpu"), Ok(Request::Run(Task::Gpu(Gpu::Folder))));
        assert_eq!(parse("gpu --kernels"), Ok(Request::Run(Task::Gpu(Gpu::Kernels))));
        assert_eq!(parse("gpu --stand-in"), Ok(Request::Run(Task::Gpu(Gpu::StandIn))));
        assert_eq!(parse("gpu --bundle"), Ok(Request::Run(Task::Gpu(Gpu::Bundle))));
        assert_eq!(parse("python"), Ok(Request::Run(Task::Python)));
        assert_eq!(parse("wheel"), Ok(Request::Run(Task::Wheel(wheel::Options::default()))));
        let under = vec![torch::OLDEST];
        let options = wheel::Options { under, is_built: true };
        assert_eq!(parse("wheel --built --torch 2.11"), Ok(Request::Run(Task::Wheel(options))));
        assert_eq!(parse("world"), Ok(Request::Run(Task::World(World::Whole))));
        assert_eq!(parse("world --quick"), Ok(Request::Run(Task::World(World::Quick))));
        assert!(parse("headers --kernels").unwrap_err().contains("`--kernels`"));
        assert_eq!(parse("gpu --help"), Ok(Request::Help(GPU_HELP)));
    }

    #[test]
    fn help_is_given_for_the_whole_and_for_each_command() {
        assert_eq!(parse("--help"), Ok(Request::Help(USAGE)));
        assert_eq!(parse("help"), Ok(Request::Help(USAGE)));
        assert_eq!(parse("test --help"), Ok(Request::Help(TEST_HELP)));
        assert_eq!(parse("tidy -h"), Ok(Request::Help(TIDY_HELP)));
        assert_eq!(parse("parity --help --laid-out"), Ok(Request::Help(PARITY_HELP)));
    }

    #[test]
    fn strangers_are_errors_that_name_them() {
        assert!(parse("").unwrap_err().contains("missing"));
        assert!(parse("tset").unwrap_err().contains("`tset`"));
        assert!(parse("test --fast").unwrap_err().contains("`--fast`"));
        assert!(parse("lint --help more").unwrap_err().contains("`more`"));
    }
}
