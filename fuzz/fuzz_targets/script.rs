//! Any text as an op script: never a panic, and what is accepted prints and reads back the same.
#![no_main]

use larder_sim::script::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(ops) = Script::parse(text) {
        let printed: String = ops.iter().map(|op| format!("{op}\n")).collect();
        assert_eq!(Script::parse(&printed), Ok(ops));
    }
});
