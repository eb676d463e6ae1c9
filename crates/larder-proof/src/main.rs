//! Proof and measurement of Larder on a real GPU.
//!
//! `larder-proof` runs all parts, each in a process of its own and with a limit on its time, writes
//! what they say to the folder that the variable OUT names (or to `proof-results`), prints a table
//! last, and fails if a part failed.

mod conformance;
mod driver_pool;
mod figures;
mod full;
mod graphs;
mod nccl;
mod nvshmem;
mod ordering;
mod pairs;
mod parts;
mod patterns;
mod rig;
mod sharing;
mod supervisor;
mod training;
mod views;

use std::env;
use std::process::ExitCode;

use parts::{PARTS, Part};

const USAGE: &str = "\
Proves and measures Larder on GPU 0.

Usage: larder-proof [--short] [--times N] [part ...]

With --times each part that runs on the card runs N times in a row, with nothing set up in between.

Without names all parts run, in this order:
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    match perform(&words) {
        Ok(code) => code,
        Err(sentence) => {
            eprintln!("larder-proof: {sentence}");
            ExitCode::from(2)
        }
    }
}

fn perform(words: &[String]) -> Result<ExitCode, String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["-h" | "--help", ..] => {
            print!("{USAGE}");
            for part in PARTS {
                println!("  {:<12} {} (at most {} s)", part.name, part.about, part.limit_s);
            }
            Ok(ExitCode::SUCCESS)
        }
        [nvshmem::ELEMENT, ref words @ ..] => nvshmem::element(words).map(|()| ExitCode::SUCCESS),
        [sharing::PARTNER] => sharing::partner().map(|()| ExitCode::SUCCESS),
        ["part", name, ref options @ ..] => {
            let options = Options::read(options)?;
            match options.names[..] {
                [] => Ok(run_part(find(name)?, &options)),
                _ => Err("one part runs in a process of its own".to_owned()),
            }
        }
        _ => {
            let options = Options::read(&words)?;
            let names = options.names.iter();
            let mut chosen = names.map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
            if chosen.is_empty() {
                chosen.extend(PARTS);
            }
            supervisor::run(&chosen, options.short, options.times)
        }
    }
}

/// What the command line says besides.
struct Options<'a> {
    short: bool,
    uncounted: bool,
    times: u32,
    names: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn read(words: &[&'a str]) -> Result<Options<'a>, String> {
        let mut options = Options { short: false, uncounted: false, times: 1, names: Vec::new() };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--short" => options.short = true,
                "--uncounted" => options.uncounted = true,
                "--times" => {
                    let times = words.next().and_then(|text| text.parse().ok());
                    let times = times.filter(|&times| times > 0);
                    options.times = times.ok_or("--times needs a number from 1 on")?;
                }
                option if option.starts_with('-') => {
                    return Err(format!("there is no option '{option}'"));
                }
                name => options.names.push(name),
            }
        }
        Ok(options)
    }
}

fn find(name: &str) -> Result<&'static Part, String> {
    let names = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    Part::named(name).ok_or_else(|| format!("there is no part '{name}'; the parts are {}", names()))
}

/// Runs a part here and says what came of it.
fn run_part(part: &Part, options: &Options<'_>) -> ExitCode {
    let (said, code) = match part.run(options.short, !options.uncounted, options.times) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(said) => (said, ExitCode::FAILURE),
    };
    println!("{}{}", supervisor::RESULT, said.replace('\n', " "));
    code
}
