//! What we hand to the CUDA driver, compared with CUDA's own headers.
//!
//! The crate `larder-cuda` prints each size, place and number and each function's type as an
//! expression of C++ and what it is in Rust. A compiler then checks them all against the headers,
//! without running anything.

use xshell::cmd;

use crate::peer::cuda_headers;
use crate::repository::Repository;
use crate::{command, file};

pub(crate) fn run(repo: &Repository) -> Result<(), String> {
    let headers = cuda_headers(repo)?;
    let layouts = repo.example("larder-cuda", "layouts")?;
    let source = source(&command::output(repo.shell.cmd(layouts))?)?;
    let folder = repo.target.join("headers");
    file::create(&folder)?;
    file::write(&folder.join("layouts.cpp"), &source)?;
    let check = "-fsyntax-only";
    command::run(cmd!(
        repo.shell,
        "g++ -std=c++20 {check} -isystem {headers} {folder}/layouts.cpp"
    ))?;
    eprintln!("{} layouts are as in CUDA's headers", source.matches("static_assert").count());
    Ok(())
}

/// A program that compiles exactly if each line is true.
fn source(printed: &str) -> Result<String, String> {
    let mut text =
        String::from("#include <cstddef>\n#include <type_traits>\n#include <cuda.h>\n\n");
    for line in printed.lines() {
        let (expression, value) = line
            .rsplit_once(" = ")
            .filter(|(_, value)| value.parse::<u64>().is_ok())
            .ok_or_else(|| format!("`layouts` printed `{line}`, which is no layout"))?;
        text += &format!("static_assert({expression} == {value}, \"{expression}\");\n");
    }
    if text.contains("static_assert") { Ok(text) } else { Err("`layouts` printed nothing".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_becomes_an_assertion() {
        let text = source("sizeof(int) = 4\noffsetof(T, x) = 8\n").unwrap();
        assert!(text.contains("static_assert(sizeof(int) == 4, \"sizeof(int)\");"), "{text}");
        assert_eq!(text.matches("static_assert").count(), 2);
        assert!(source("").is_err());
        assert!(source("sizeof(int) = four\n").unwrap_err().contains("four"));
    }
}
