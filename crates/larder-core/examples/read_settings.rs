//! Reads settings texts as Larder does, for the comparison with PyTorch's own parser.
//!
//! ```text
//! read_settings VERSION < LINES
//! ```
//!
//! Lines are `start TEXT` and `update TEXT`. For each it prints `refused`, or `accepted` and the
//! value of every setting that this PyTorch has, as `torch/settings_judge.cpp` prints PyTorch's.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use larder_core::config::{Config, Reserve, division_class};
use larder_core::torch_version::TorchVersion;

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    let result = argument.parse().map_err(|error| format!("{error}")).and_then(answer);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("read_settings: {sentence}");
            ExitCode::from(2)
        }
    }
}

fn answer(version: TorchVersion) -> Result<(), String> {
    let mut lines = String::new();
    io::stdin().read_to_string(&mut lines).map_err(|error| error.to_string())?;
    let mut config = Config::default();
    let mut answers = String::new();
    // A text may end with a carriage return, which `lines` would drop.
    for line in lines.split_terminator('\n') {
        let (word, text) = line.split_once(' ').unwrap_or((line, ""));
        let read = if word == "start" {
            config = Config::default();
            Config::parse(text)
        } else {
            config.update(text)
        };
        match read.and_then(|read| read.check_known(version).map(|()| read)) {
            Ok(read) => {
                config = read;
                answers += &figures(&config, version);
            }
            Err(_) => answers += "refused",
        }
        answers.push('\n');
    }
    io::stdout().write_all(answers.as_bytes()).map_err(|error| error.to_string())
}

/// Every setting that this PyTorch has.
fn figures(config: &Config, version: TorchVersion) -> String {
    let mut text = String::from("accepted");
    let mut show = |name: &str, value: &dyn std::fmt::Display| {
        write!(text, " {name}={value}").expect("a text takes all that is written");
    };
    let unlimited = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
    let divisions_of = |size: u64| config.roundup_divisions[division_class(size)];
    let listed = |values: Vec<u64>| {
        let values: Vec<String> = values.iter().map(u64::to_string).collect();
        values.join(";") + ";"
    };
    let hexadecimal = |value: f64| format!("{:x}", value.to_bits());
    let pinned = &config.pinned;
    show("backend", &config.backend.name());
    show("large_segment", &config.large_segment_bytes);
    show("max_split", &unlimited(config.max_split_bytes));
    show("max_non_split_rounding", &config.max_non_split_rounding_bytes);
    show("garbage_collection", &hexadecimal(config.garbage_collection_threshold));
    show("divisions", &listed(config.roundup_divisions.to_vec()));
    show("divisions_of", &listed((9..40).map(|at| divisions_of((1 << at) + 512)).collect()));
    show("expandable", &u8::from(config.expandable_segments));
    show("release_lock", &u8::from(config.release_lock_on_device_alloc));
    show("capture_reuse", &u8::from(config.capture_reuse));
    show("memory_fraction", &hexadecimal(config.memory_fraction));
    show("host_register", &u8::from(pinned.use_host_register));
    show("register_threads", &pinned.register_threads);
    show("background_threads", &u8::from(pinned.use_background_threads));
    show("reserve_segment", &pinned.reserve_segment_bytes);
    if version >= TorchVersion::V2_12 {
        show("reject_above_fraction", &u8::from(config.reject_above_fraction));
        show("free_catch_all", &u8::from(pinned.free_catch_all));
    }
    if version >= TorchVersion::V2_13 {
        show("max_round_threshold", &unlimited(pinned.max_round_threshold_bytes));
        show("max_cached", &unlimited(pinned.max_cached_bytes));
    }
    if version >= TorchVersion::V2_15 {
        for name in ["", "a", "serve", "train", ":", "[", ",", "0.5", ">"] {
            for total_bytes in [80_u64 << 30, 12_345_678] {
                let bytes = reserve_of(config, name).map(|reserve| reserve.bytes(total_bytes));
                let bytes = bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
                show(&format!("reserve[{name}]"), &bytes);
            }
        }
    }
    show("text", &config.text);
    text
}

/// What a segment of a class of streams reserves.
fn reserve_of(config: &Config, name: &str) -> Option<Reserve> {
    let own = config.reserve_by_class.iter().find(|(class, _)| class == name);
    own.map(|(_, reserve)| *reserve).or(config.reserve)
}
