//! Programs in C on the simulated GPU: every call of the header, and the program of the manual.

mod compiler;

use std::fs;
use std::path::PathBuf;

#[test]
fn a_program_in_c_makes_every_call() {
    let source = compiler::crate_folder().join("tests/c/every_call.c");
    let output = compiler::build_and_run("every_call", &source);
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{wrong}", output.status);
    assert!(said.ends_with("all is well\n"), "{said}");
    let told = "larder: larder_torch_alloc: GPU 0 out of memory. Tried to allocate 2.00 GiB.";
    assert!(wrong.contains(told), "{wrong}");
}

#[test]
fn a_program_in_c_brings_sources_and_has_symmetric_pools() {
    let source = compiler::crate_folder().join("tests/c/sources.c");
    let output = compiler::build_and_run("sources", &source);
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}\n{wrong}", output.status);
    assert!(said.ends_with("all is well\n"), "{said}");
}

#[test]
fn the_program_of_the_manual_runs() {
    let manual = compiler::crate_folder().join("../../docs/c.md");
    let text = fs::read_to_string(&manual).unwrap();
    let program = text.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let program = program.expect("the manual has a program in C");
    let source = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("manual.c");
    fs::write(&source, program).unwrap();
    let output = compiler::build_and_run("manual", &source);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{said}", output.status);
    let expected = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(Some(&*said), expected, "it prints what the manual says");
}
