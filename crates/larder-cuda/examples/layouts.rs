//! Prints what is handed to the driver by its layout or by its number, for `cargo xtask headers`.

fn main() {
    for (expression, value) in larder_cuda::layouts::all() {
        println!("{expression} = {value}");
    }
}
