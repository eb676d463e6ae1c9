//! Lays out what a user's machine compiles: the C++ part for PyTorch, and the header of the C
//! interface. The package takes them from here (`tool.maturin.include`), so that each stands in the
//! repository once.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // The native module is a library with Larder's C interface, and the C++ part finds it by that
    // name. Apple's linker has another word for it.
    let is_apple = env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    let name =
        if is_apple { "-install_name,@rpath/liblarder.dylib" } else { "-soname,liblarder.so" };
    println!("cargo::rustc-cdylib-link-arg=-Wl,{name}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo says where"));
    // What was laid out before may have another name by now.
    for entry in fs::read_dir(&out)? {
        fs::remove_file(entry?.path())?;
    }
    let torch = Path::new("../torch");
    println!("cargo::rerun-if-changed={}", torch.display());
    for entry in fs::read_dir(torch)? {
        let path = entry?.path();
        let is_named =
            path.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("backend"));
        let is_source = path.extension().is_some_and(|ending| ending == "cpp" || ending == "hpp");
        if is_named && is_source {
            copy(&path, &out)?;
        }
    }
    copy(Path::new("../crates/larder-c/include/larder.h"), &out)
}

fn copy(from: &Path, folder: &Path) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", from.display());
    fs::copy(from, folder.join(from.file_name().unwrap_or_default())).map(drop)
}
