//! Names the shared library: programs are linked with `-llarder` and find it by that name.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Apple's linker has another word for the name.
    let is_apple = std::env::var("CARGO_CFG_TARGET_VENDOR").is_ok_and(|vendor| vendor == "apple");
    let name =
        if is_apple { "-install_name,@rpath/liblarder.dylib" } else { "-soname,liblarder.so" };
    println!("cargo:rustc-cdylib-link-arg=-Wl,{name}");
}
