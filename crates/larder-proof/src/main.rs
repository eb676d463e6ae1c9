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
mod ordering;
mod pairs;
mod parts;
mod patterns;
mod rig;
mod sharing;
mod supervisor;
mod training;

use std::env;
use std::process::ExitCode;

use parts::{PARTS, Part};

const USAGE: &str = "\
Proves and measures Larder on GPU 0.

Usage: larder-proof [--short] [part ...]

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
        [sharing::PARTNER] => sharing::partner().map(|()| ExitCode::SUCCESS),
        ["part", name] => Ok(run_part(find(name)?, false, true)),
        ["part", name, "--short"] => Ok(run_part(find(name)?, true, true)),
        ["part", name, "--short", "--uncounted"] => Ok(run_part(find(name)?, true, false)),
        _ => {
            let short = words.contains(&"--short");
            let names = words.iter().filter(|&&word| word != "--short");
            let mut chosen = names.map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
            if chosen.is_empty() {
                chosen.extend(PARTS);
            }
            supervisor::run(&chosen, short)
        }
    }
}

fn find(name: &str) -> Result<&'static Part, String> {
    let names = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
    Part::named(name).ok_or_else(|| format!("there is no part '{name}'; the parts are {}", names()))
}

/// Runs a part here and says what came of it.
fn run_part(part: &Part, short: bool, counted: bool) -> ExitCode {
    let (said, code) = match part.run(short, counted) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(said) => (said, ExitCode::FAILURE),
    };
    println!("{}{}", supervisor::RESULT, said.replace('\n', " "));
    code
}
