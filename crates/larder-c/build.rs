//! Names the shared library: programs are linked with `-llarder` and find `liblarder.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblarder.so");
}
