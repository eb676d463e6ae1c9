//! What we hand to the CUDA driver, compared with CUDA's own headers.
//!
//! The crate `larder-cuda` prints each size, place and number and each function's type as an
//! expression of C++ and what it is in Rust. A compiler then checks them all against the headers,
//! without running anything.

use std::path::Path;
use std::process::Command;

use crate::command;
use crate::file;
use crate::peer::Peer;
use crate::programs::{self, target_folder};

pub(crate) fn run(root: &Path, cargo: &Path) -> Result<(), String> {
    let target = target_folder(root);
    let headers = Peer::new(&target).cuda_headers()?;
    programs::build(root, cargo, &target, &["-p", "larder-cuda", "--example", "layouts"])?;
    let printed = Command::new(target.join("release/examples/layouts"))
        .output()
        .map_err(|error| format!("layouts: {error}"))?;
    let source = source(&String::from_utf8_lossy(&printed.stdout))?;
    let folder = target.join("headers");
    let file = folder.join("layouts.cpp");
    file::create(&folder)?;
    file::write(&file, &source)?;
    let mut compile = Command::new("g++");
    compile.args(["-std=c++20", "-fsyntax-only", "-isystem"]).arg(headers).arg(&file);
    command::run(&mut compile)?;
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
