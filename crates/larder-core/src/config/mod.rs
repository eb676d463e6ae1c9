//! Settings: PyTorch's `key:value,…` text, its keys, ranges and defaults, and a few of our own.
//!
//! A text is taken, cut off at the largest size or refused exactly where PyTorch does so; only that
//! reading here is all or nothing: a text that is refused changes no setting and says which key it
//! was. Nothing here reads the environment.

mod entry;
mod error;
mod keys;
mod number;
mod reading;
mod reserve;
mod token;

use std::fmt;

pub use crate::config::error::ConfigError;
pub use crate::config::keys::{ALLOCATOR_KEYS, known_since};
use crate::config::reading::Reading;
pub use crate::config::reserve::Reserve;
use crate::torch_version::TorchVersion;
use crate::types::{Bytes, MIB};

/// How many size classes the power-of-two divisions tell apart: 1 MiB, 2 MiB, … 32 GiB and above.
pub const DIVISION_CLASSES: usize = 16;

/// The largest whole number of MiB that PyTorch keeps: what passes it is as good as it.
const SIZE_MAX_BYTES: u64 = u64::MAX / MIB * MIB;
/// What is asked of a device is never larger than this. It leaves room to add and to round without
/// overflow, and no device has as much.
const SEGMENT_MAX_BYTES: u64 = 1 << 59;
const LARGE_SEGMENT_DEFAULT_MB: u64 = 20;
/// PyTorch's `kMinLargeAlloc`; a large segment must be larger than this.
const LARGE_SEGMENT_FLOOR_MB: u64 = 10;

/// Where blocks come from when the cache has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// This allocator.
    #[default]
    Native,
    /// The driver's own stream-ordered pool.
    CudaMallocAsync,
}

impl Backend {
    /// As a settings text has it.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Native => "native",
            Backend::CudaMallocAsync => "cudaMallocAsync",
        }
    }
}

/// Settings for pinned host memory. They are read and kept so that one text can configure a whole
/// program; this allocator manages device memory and does not act on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// `pinned_use_cuda_host_register`
    pub use_host_register: bool,
    /// `pinned_num_register_threads`
    pub register_threads: u64,
    /// `pinned_use_background_threads`
    pub use_background_threads: bool,
    /// `pinned_reserve_segment_size_mb`, in bytes; 0 is none.
    pub reserve_segment_bytes: u64,
    /// `pinned_free_catch_all`
    pub free_catch_all: bool,
    /// `pinned_max_round_threshold_mb`, in bytes; none is no limit.
    pub max_round_threshold_bytes: Option<u64>,
    /// `pinned_max_cached_size_mb`, in bytes; none is no limit.
    pub max_cached_bytes: Option<u64>,
}

/// All settings. `Config::default()` is PyTorch's default; `parse` and `update` read a text.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // Each is a key of its own; any mixture is legal.
#[non_exhaustive]
pub struct Config {
    /// `backend`
    pub backend: Backend,
    /// `large_segment_size_mb`: what a large request below 10 MiB asks of the device.
    pub large_segment_bytes: u64,
    /// `max_split_size_mb`: blocks of this size and above are not split. None is no limit.
    pub max_split_bytes: Option<u64>,
    /// `max_non_split_rounding_mb`: how much larger than asked a block that is not split may be.
    pub max_non_split_rounding_bytes: u64,
    /// `garbage_collection_threshold`: part of the memory above which idle blocks go back.
    /// 0 is off.
    pub garbage_collection_threshold: f64,
    /// `roundup_power2_divisions`: per size class, into how many steps a power of two is divided.
    /// 0 and 1 do not round.
    pub roundup_divisions: [u64; DIVISION_CLASSES],
    /// `expandable_segments`
    pub expandable_segments: bool,
    /// `plain_captures` (ours): the private pools of graph captures get plain segments though
    /// others are expandable, so that other processes and libraries can have what graphs work on. A
    /// text that names `expandable_segments` turns it off, unless it names this too: then private
    /// pools expand as in PyTorch.
    pub plain_captures: bool,
    /// `expandable_segments_reserve`: the addresses that an expandable segment reserves. None is an
    /// eighth more than the device has, which is also the most.
    pub reserve: Option<Reserve>,
    /// `expandable_segments_reserve_by_class`: the same for classes of streams, by name. A stream
    /// gets a class by a call.
    pub reserve_by_class: Vec<(String, Reserve)>,
    /// `release_lock_on_cudamalloc`
    pub release_lock_on_device_alloc: bool,
    /// `graph_capture_record_stream_reuse`
    pub capture_reuse: bool,
    /// `per_process_memory_fraction`: applied when an allocator is built.
    pub memory_fraction: f64,
    /// `throw_on_cudamalloc_oom`: refuse what would pass the fraction of the device's memory.
    pub reject_above_fraction: bool,
    /// Settings of the host's pinned memory.
    pub pinned: Pinned,
    /// `page_size_mb` (ours): size of the pages that back large expandable segments. None is the
    /// size of a large segment, as in PyTorch.
    pub page_bytes: Option<u64>,
    /// `tight_views_percent` (ours): under the policy tight, what part of the time views may cost.
    /// Beyond it new pages are made instead of views.
    pub tight_views_percent: f64,
    /// `tight_soft` (ours): under the policy tight, new pages are made freely while no more is held
    /// than this times the most that was in use.
    pub tight_soft: f64,
    /// `tight_most` (ours): the same where views have cost what they may.
    pub tight_most: f64,
    /// `tight_floor_mb` (ours): under the policy tight, new pages are made freely up to here.
    pub tight_floor_bytes: u64,
    /// The text that was read last, as it was given.
    pub text: String,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: Backend::Native,
            large_segment_bytes: LARGE_SEGMENT_DEFAULT_MB * MIB,
            max_split_bytes: None,
            max_non_split_rounding_bytes: LARGE_SEGMENT_DEFAULT_MB * MIB,
            garbage_collection_threshold: 0.0,
            roundup_divisions: [0; DIVISION_CLASSES],
            expandable_segments: false,
            plain_captures: false,
            reserve: None,
            reserve_by_class: Vec::new(),
            release_lock_on_device_alloc: false,
            capture_reuse: false,
            memory_fraction: 1.0,
            reject_above_fraction: false,
            pinned: Pinned {
                use_host_register: false,
                register_threads: 1,
                use_background_threads: false,
                reserve_segment_bytes: 0,
                free_catch_all: false,
                max_round_threshold_bytes: None,
                max_cached_bytes: None,
            },
            page_bytes: None,
            tight_views_percent: 1.0,
            tight_soft: 1.007,
            tight_most: 1.1,
            tight_floor_bytes: 0,
            text: String::new(),
        }
    }
}

/// What `tight_soft` and `tight_most` take.
fn is_soft(value: f64) -> bool {
    (1.0..=16.0).contains(&value)
}

const SOFT_EXPECTED: &str = "a number from 1 to 16";

/// What `tight_views_percent` takes.
fn is_percent(value: f64) -> bool {
    (0.0..=100.0).contains(&value)
}

const PERCENT_EXPECTED: &str = "a number from 0 to 100";

impl Config {
    /// Reads the settings text of a program that begins.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::default().begin(text)
    }

    /// Reads a settings text as `update` does, before there is an allocator that has these
    /// settings: the backend may become another.
    pub fn begin(&self, text: &str) -> Result<Config, ConfigError> {
        self.clone().reset().read(text, None, None)
    }

    /// Reads a settings text while a program runs, on top of these settings. As in PyTorch, the
    /// four settings that shape blocks (the split limit, its rounding, the garbage collection, the
    /// divisions) go back to their defaults unless the text sets them; all others keep what they
    /// were. The backend cannot become another.
    pub fn update(&self, text: &str) -> Result<Config, ConfigError> {
        self.clone().reset().read(text, None, Some(self.backend))
    }

    fn reset(self) -> Config {
        let defaults = Config::default();
        Config {
            max_split_bytes: defaults.max_split_bytes,
            roundup_divisions: defaults.roundup_divisions,
            garbage_collection_threshold: defaults.garbage_collection_threshold,
            max_non_split_rounding_bytes: 0,
            ..self
        }
    }

    /// Reads a settings text on top of these settings; what it does not name keeps what it was.
    pub fn overlay(&self, text: &str) -> Result<Config, ConfigError> {
        let config = self.clone().read(text, None, None)?;
        config.check()?;
        Ok(config)
    }

    /// A text that gives what is in force: that which was read last, and what is on without it
    /// because it is a policy's default.
    pub fn text_in_force(&self) -> String {
        let read = Config::parse(&self.text).unwrap_or_default();
        let mut entries = vec![self.text.trim_matches([',', ' ']).to_owned()];
        if self.expandable_segments && !read.expandable_segments {
            entries.push("expandable_segments:True".to_owned());
        }
        if self.plain_captures && !read.plain_captures {
            entries.push("plain_captures:True".to_owned());
        }
        entries.retain(|entry| !entry.is_empty());
        entries.join(",")
    }

    /// The first PyTorch that knows all settings of the text that was read last.
    pub fn known_from(&self) -> TorchVersion {
        let is_known = |version: &TorchVersion| self.check_known(*version).is_ok();
        TorchVersion::ALL.into_iter().find(is_known).unwrap_or(TorchVersion::V2_15)
    }

    /// Fails if a PyTorch of this version does not know a setting of the text that was read last.
    /// Where it is none's, it is Larder that decides, which knows them all.
    pub fn check_known(&self, version: impl Into<Option<TorchVersion>>) -> Result<(), ConfigError> {
        let version = version.into();
        match self.clone().read(&self.text, version, None) {
            Err(error @ ConfigError::NotYet { .. }) => Err(error),
            // What was set by hand since may not go with the text.
            _ => Ok(()),
        }
    }

    fn read(
        mut self,
        text: &str,
        version: Option<TorchVersion>,
        backend: Option<Backend>,
    ) -> Result<Config, ConfigError> {
        text.clone_into(&mut self.text);
        Reading::new(text, &mut self, version, backend).read()?;
        Ok(self)
    }

    /// What a large segment asks of the device: the setting, as far as there can be a device for
    /// it.
    #[inline]
    pub fn large_segment(&self) -> u64 {
        self.large_segment_bytes.min(SEGMENT_MAX_BYTES)
    }

    /// Checks settings that were put together by hand: each must be one that a text could set.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: &dyn fmt::Display, expected: &str| {
            let (key, value) = (key.to_owned(), value.to_string());
            Err(ConfigError::BadValue { key, value, expected: expected.to_owned() })
        };
        let large_bytes = self.large_segment_bytes;
        if large_bytes <= LARGE_SEGMENT_FLOOR_MB * MIB {
            return wrong("large_segment_size_mb", &Bytes(large_bytes), "more than 10 MiB");
        }
        let expected = "the size of a large segment or more";
        if let Some(limit_bytes) = self.max_split_bytes
            && limit_bytes < large_bytes
        {
            return wrong("max_split_size_mb", &Bytes(limit_bytes), expected);
        }
        let rounding_bytes = self.max_non_split_rounding_bytes;
        if rounding_bytes < large_bytes {
            return wrong("max_non_split_rounding_mb", &Bytes(rounding_bytes), expected);
        }
        let threshold = self.garbage_collection_threshold;
        if !(0.0..1.0).contains(&threshold) {
            let expected = "a number above 0 and below 1, or 0 for none";
            return wrong("garbage_collection_threshold", &threshold, expected);
        }
        let is_not_one = |&&value: &&u64| value != 0 && !value.is_power_of_two();
        if let Some(value) = self.roundup_divisions.iter().find(is_not_one) {
            return wrong(
                "roundup_power2_divisions",
                value,
                "divisions that are 0 or a power of two",
            );
        }
        if !(0.0..=1.0).contains(&self.memory_fraction) {
            let fraction = &self.memory_fraction;
            return wrong("per_process_memory_fraction", fraction, "a number from 0 to 1");
        }
        for (key, value) in [("tight_soft", self.tight_soft), ("tight_most", self.tight_most)] {
            if !is_soft(value) {
                return wrong(key, &value, SOFT_EXPECTED);
            }
        }
        if !is_percent(self.tight_views_percent) {
            return wrong("tight_views_percent", &self.tight_views_percent, PERCENT_EXPECTED);
        }
        Ok(())
    }
}

/// The size class of the divisions that `size_bytes` falls into.
#[inline]
pub fn division_class(size_bytes: u64) -> usize {
    let class = (size_bytes | 1).ilog2().saturating_sub(MIB.ilog2()) as usize;
    class.min(DIVISION_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    fn refusal(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_text_is_the_default() {
        assert_eq!(parse(""), Config::default());
        assert_eq!(parse(" , ".trim_matches([' ', ','])), Config::default());
    }

    #[test]
    fn settings_are_read_with_spaces_and_a_closing_comma() {
        let config = parse(" max_split_size_mb : 40 , expandable_segments:True, ");
        assert_eq!(config.max_split_bytes, Some(40 * MIB));
        assert!(config.expandable_segments);
    }

    #[test]
    fn large_segments_bound_the_split_limit_wherever_they_stand() {
        assert!(Config::parse("max_split_size_mb:30,large_segment_size_mb:40").is_err());
        let config = parse("max_split_size_mb:30,large_segment_size_mb:30");
        assert_eq!(config.large_segment_bytes, 30 * MIB);
        assert_eq!(config.max_non_split_rounding_bytes, 30 * MIB);
        assert!(refusal("large_segment_size_mb:10").contains("11 or more"));
    }

    #[test]
    fn divisions_take_one_number_or_a_list() {
        assert_eq!(parse("roundup_power2_divisions:8").roundup_divisions, [8; 16]);
        let list = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_divisions;
        assert_eq!(list, [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
        // Without `>` the classes behind the last key, and those skipped, stay at 0.
        let gaps = parse("roundup_power2_divisions:[64:8,256:4]").roundup_divisions;
        assert_eq!(gaps, [8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        // What parts two entries is not looked at, and a list may be empty.
        assert_eq!(parse("roundup_power2_divisions:[4;:2,]").roundup_divisions[2], 2);
        assert_eq!(parse("roundup_power2_divisions:[]").roundup_divisions, [0; 16]);
        for bad in ["7", "[3:4]", "[4:3]", "[4]", "[4:2", "[[4:2]]", "[4:2]]]"] {
            assert!(
                Config::parse(&format!("roundup_power2_divisions:{bad}")).is_err(),
                "{bad} was taken"
            );
        }
    }

    #[test]
    fn sizes_beyond_any_memory_are_cut_off() {
        let config = parse("large_segment_size_mb:18446744073709551615");
        assert_eq!(config.large_segment_bytes, SIZE_MAX_BYTES);
        assert_eq!(config.max_non_split_rounding_bytes, SIZE_MAX_BYTES);
        assert_eq!(config.large_segment(), SEGMENT_MAX_BYTES);
    }

    #[test]
    fn what_a_program_restores_is_as_good_as_no_limit() {
        // vLLM loads weights with the least limit, and sets the largest one there is after it.
        let loading = parse("max_split_size_mb:20");
        let restored = loading.update("max_split_size_mb:17592186044415").unwrap();
        assert_eq!(restored.max_split_bytes, Some(u64::MAX - MIB + 1));
        assert_eq!(restored.check(), Ok(()));
        let beyond = parse("max_split_size_mb:18446744073709551615");
        assert_eq!(beyond.max_split_bytes, restored.max_split_bytes);
        let by_hand = Config { max_split_bytes: Some(u64::MAX - 1), ..Config::default() };
        assert_eq!(by_hand.check(), Ok(()));
    }

    #[test]
    fn whole_numbers_are_cut_off_or_go_round_as_in_pytorch() {
        let mebibytes = |key: &str, number: &str| Config::parse(&format!("{key}:{number}"));
        for key in ["max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb"] {
            for number in ["17592186044415", "17592186044416", "18446744073709551615", "-1"] {
                let config = mebibytes(key, number).unwrap();
                let most = config.large_segment_bytes.max(config.max_non_split_rounding_bytes);
                let most = most.max(config.max_split_bytes.unwrap_or(0));
                assert_eq!(most, SIZE_MAX_BYTES, "{key}:{number}");
            }
            for number in ["18446744073709551616", "-18446744073709551615", "many", "", "10"] {
                assert!(mebibytes(key, number).is_err(), "{key}:{number} was taken");
            }
        }
        let reserved = |number: &str| {
            mebibytes("pinned_reserve_segment_size_mb", number)
                .map(|c| c.pinned.reserve_segment_bytes)
        };
        assert_eq!((reserved("17592186044417"), reserved("17592186044416")), (Ok(MIB), Ok(0)));
        assert!(reserved("0").is_err());
    }

    #[test]
    fn a_key_may_stand_twice_and_the_last_one_counts() {
        let config = parse("max_split_size_mb:40,expandable_segments:True,max_split_size_mb:30");
        assert_eq!(config.max_split_bytes, Some(30 * MIB));
        let list = parse("roundup_power2_divisions:4,roundup_power2_divisions:[>:8]");
        assert_eq!(list.roundup_divisions[..3], [4, 8, 8]);
    }

    #[test]
    fn what_stands_between_words_is_not_looked_at() {
        let config = parse("max_split_size_mb,40]expandable_segments[True");
        assert_eq!((config.max_split_bytes, config.expandable_segments), (Some(40 * MIB), true));
        for bad in [",", "max_split_size_mb:40,,", ":", "max_split_size_mb:40,expandable_segments:"]
        {
            assert!(refusal(bad).contains("key:value"), "{bad}");
        }
    }

    #[test]
    fn the_backend_stays_what_it_was() {
        let native = Config::default();
        assert!(native.update("backend:native").is_ok());
        assert!(native.update("backend:cudaMallocAsync").is_err());
        assert_eq!(
            native.begin("backend:cudaMallocAsync").unwrap().backend,
            Backend::CudaMallocAsync
        );
        let other = parse("backend:cudaMallocAsync,backend:cudaMallocAsync");
        assert_eq!(other.backend, Backend::CudaMallocAsync);
        assert!(other.update("backend:native").is_err());
        assert_eq!(other.update("max_split_size_mb:40").unwrap().backend, Backend::CudaMallocAsync);
    }

    #[test]
    fn a_size_falls_into_the_class_of_its_power_of_two() {
        assert_eq!(division_class(512), 0);
        assert_eq!(division_class(2 * MIB - 1), 0);
        assert_eq!(division_class(2 * MIB), 1);
        assert_eq!(division_class(u64::MAX), 15);
    }

    #[test]
    fn a_bad_text_is_named_and_changes_nothing() {
        assert!(refusal("no_such_key:1").contains("no setting 'no_such_key'"));
        assert_eq!(
            refusal("expandable_segments:true"),
            "the setting 'expandable_segments' takes True or False, not 'true'"
        );
        assert!(refusal("garbage_collection_threshold:1.0").contains("above 0 and below 1"));
        assert!(refusal("garbage_collection_threshold:nan").contains("above 0 and below 1"));
        assert!(refusal("per_process_memory_fraction:1.1").contains("from 0 to 1"));
        assert!(refusal("max_split_size_mb:19").contains("20 or more"));
        assert!(refusal("expandable_segments").contains("key:value"));
        assert!(refusal("expandable_segments=True").ends_with("use `:` for `=`"));
        let near = refusal("expandable_segment:True");
        assert!(near.contains("did you mean expandable_segments? the settings are"), "{near}");
        let pasted = refusal("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
        assert!(pasted.ends_with("without the name of a variable before them"), "{pasted}");
        assert!(refusal("backend:native,backend:cudaMallocAsync").contains("first, native"));
        assert!(refusal("page_size_mb:3").contains("even"));
        assert!(refusal("pinned_num_register_threads:256").contains("128"));
    }

    #[test]
    fn a_setting_is_unknown_to_those_before_it() {
        let refusal =
            |text: &str, version| parse(text).check_known(version).unwrap_err().to_string();
        assert_eq!(
            refusal(
                "expandable_segments:True, expandable_segments_reserve:0.5",
                TorchVersion::V2_14
            ),
            "PyTorch 2.14 has no setting 'expandable_segments_reserve': it is known from PyTorch \
             2.15 on"
        );
        for (text, since) in [
            ("throw_on_cudamalloc_oom:True", TorchVersion::V2_12),
            ("pinned_free_catch_all:True", TorchVersion::V2_12),
            ("pinned_max_round_threshold_mb:8", TorchVersion::V2_13),
            ("pinned_max_cached_size_mb:8", TorchVersion::V2_13),
            ("expandable_segments_reserve:40G", TorchVersion::V2_15),
            ("expandable_segments_reserve_by_class:[a:0.5,b:2g]", TorchVersion::V2_15),
        ] {
            for version in TorchVersion::ALL {
                assert_eq!(parse(text).check_known(version).is_ok(), version >= since, "{text}");
            }
        }
        for text in ["max_split_size_mb:40", "page_size_mb:2", "roundup_power2_divisions:[4:2,>:4]"]
        {
            assert_eq!(parse(text).check_known(TorchVersion::V2_11), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_reserve_is_a_part_of_the_device_or_so_many_gibibytes() {
        let bytes = |text: &str| {
            let reserve = parse(&format!("expandable_segments_reserve:{text}")).reserve;
            reserve.map(|reserve| reserve.bytes(80 << 30))
        };
        assert_eq!(bytes("0.5"), Some(40 << 30));
        assert_eq!((bytes("40G"), bytes("1.5g")), (Some(40 << 30), Some(3 << 29)));
        // What is no reserve is passed over, and what was in force stays.
        for bad in ["0", "-1", "inf", "nan", "40M", "G"] {
            assert_eq!(bytes(bad), None, "{bad}");
            let before = parse("expandable_segments_reserve:40G");
            let after = before.update(&format!("expandable_segments_reserve:{bad}"));
            assert_eq!(after.unwrap().reserve, before.reserve, "{bad}");
        }
        let classes = parse("expandable_segments_reserve_by_class:[serve:2G,train:0.75]");
        let names: Vec<&str> =
            classes.reserve_by_class.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["serve", "train"]);
        let last = parse("expandable_segments_reserve_by_class:[a:2G,b:0,a:3G]");
        assert_eq!(last.reserve_by_class, [("a".to_owned(), Reserve::Gibibytes(3.0))]);
        assert!(refusal("expandable_segments_reserve_by_class:0.5").contains("key:value"));
    }

    #[test]
    fn captures_are_plain_until_somebody_asks_for_expandable_segments_by_name() {
        let default =
            Config { expandable_segments: true, plain_captures: true, ..Config::default() };
        assert_eq!(default.text_in_force(), "expandable_segments:True,plain_captures:True");
        assert!(default.update("max_split_size_mb:40").unwrap().plain_captures);
        assert!(!default.update("expandable_segments:True").unwrap().plain_captures);
        for text in [
            "expandable_segments:True,plain_captures:True",
            "plain_captures:True,expandable_segments:True",
        ] {
            let both = parse(text);
            assert!(both.expandable_segments && both.plain_captures, "{text}");
            assert_eq!(both.text_in_force(), text);
        }
        assert_eq!(parse("max_split_size_mb:40,").text_in_force(), "max_split_size_mb:40");
    }

    #[test]
    fn a_new_text_resets_what_shapes_blocks_and_keeps_the_rest() {
        let first =
            parse("max_split_size_mb:40,expandable_segments:True,roundup_power2_divisions:4");
        let second = first.update("garbage_collection_threshold:0.5").unwrap();
        assert_eq!(second.max_split_bytes, None);
        assert_eq!(second.roundup_divisions, [0; 16]);
        assert!(second.expandable_segments);
    }
}
