//! The header and the library agree: the same functions, in C and in C++.

mod compiler;

use std::collections::BTreeSet;
use std::process::Command;

/// The functions that the header declares: a line of it that begins with a type and names one.
fn declared() -> BTreeSet<String> {
    let header = compiler::header();
    let declares =
        |line: &&str| !line.starts_with([' ', '/', '#', '}', '*']) && !line.starts_with("typedef");
    let name = |line: &str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("larder_").then(|| name.to_owned())
    };
    header.lines().filter(declares).filter_map(name).collect()
}

#[test]
fn what_the_header_declares_is_what_the_library_exports() {
    let listed =
        compiler::run(Command::new("nm").args(["-D", "--defined-only"]).arg(compiler::library()));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let exported: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    assert!(exported.contains("larder_malloc"), "nm lists nothing:\n{listed}");
    assert_eq!(declared(), exported);
}

#[test]
fn the_c_programs_call_every_function() {
    let programs = [include_str!("c/every_call.c"), include_str!("c/sources.c")];
    let calls =
        |name: &&String| programs.iter().any(|program| program.contains(&format!("{name}(")));
    let missing: Vec<String> = declared().iter().filter(|name| !calls(name)).cloned().collect();
    assert!(missing.is_empty(), "nobody calls {missing:?}");
}

#[test]
fn the_header_is_good_in_c_and_in_cpp() {
    let header = compiler::crate_folder().join("include/larder.h");
    for (program, language, standard) in
        [("cc", "c", "-std=c99"), ("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")]
    {
        let mut compile = Command::new(program);
        compile.args(["-x", language, standard, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic"]);
        let output = compiler::run(compile.arg("-Werror").arg(&header));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {standard}:\n{said}");
    }
}

#[test]
fn the_library_is_found_under_its_own_name() {
    let output = compiler::run(Command::new("readelf").arg("-d").arg(compiler::library()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("[liblarder.so]"), "{said}");
}
