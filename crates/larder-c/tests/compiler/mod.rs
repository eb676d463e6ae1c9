//! The built library, and programs in C that are linked with it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The crate's folder.
pub(crate) fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The header's text.
#[allow(dead_code)] // Each test that shares this module uses a part of it.
pub(crate) fn header() -> String {
    fs::read_to_string(crate_folder().join("include/larder.h")).expect("the header is there")
}

/// The shared library, which Cargo builds beside the tests.
pub(crate) fn library() -> PathBuf {
    let test = env::current_exe().expect("a test knows its own file");
    let beside = test.parent().expect("a file lies in a folder").join("liblarder_c.so");
    assert!(beside.is_file(), "the library is not at {}", beside.display());
    beside
}

/// Runs a tool that comes with a C compiler.
pub(crate) fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().unwrap_or_else(|error| {
        panic!("`{program}` cannot be started, and this test needs a C compiler: {error}")
    })
}

/// Compiles a program and links it with the library under the name that it is installed as; the
/// program is started with that folder as the place to look for it.
#[allow(dead_code)]
pub(crate) fn build_and_run(name: &str, source: &Path) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::copy(library(), folder.join("liblarder.so")).unwrap();
    let program = folder.join("program");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I"])
        .arg(crate_folder().join("include"))
        .arg(source)
        .arg("-L")
        .arg(&folder)
        .args(["-llarder", "-pthread", "-o"])
        .arg(&program);
    let compiled = run(&mut compile);
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{} does not compile:\n{said}", source.display());
    let mut start = Command::new(&program);
    start.env("LD_LIBRARY_PATH", &folder);
    for variable in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "LARDER_CONF"] {
        start.env_remove(variable);
    }
    start.env("LARDER_DEVICE", "sim:1GiB").env("LARDER_CONF", "max_split_size_mb:64");
    run(&mut start)
}
