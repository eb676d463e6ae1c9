//! Reading: how PyTorch goes through the tokens of a settings text, entry by entry.
//!
//! It does so in three turns: for the size of a large segment, which bounds others; for the
//! settings of all accelerators; and for those of CUDA. Each turn knows the keys of the others and
//! steps over them. What stands between a key and its value, and between a value and the next key,
//! is one token of any kind; that it is a colon or a comma is not asked. Where lists are, the turns
//! can come out of step, and then one of them finds no key where it looks for one.

use crate::config::entry::Entry;
use crate::config::keys::{ALLOCATOR_KEYS, KEYS, known_since};
use crate::config::number::whole;
use crate::config::token::{Tokens, is_punctuation};
use crate::config::{Backend, Config, ConfigError, division_class, is_percent, is_soft};
use crate::config::{LARGE_SEGMENT_FLOOR_MB, PERCENT_EXPECTED, SOFT_EXPECTED};
use crate::torch_version::TorchVersion;
use crate::types::MIB;

const LARGE_SEGMENT: &str = "large_segment_size_mb";
const DIVISIONS: &str = "roundup_power2_divisions";
const CLASSES: &str = "expandable_segments_reserve_by_class";

/// The settings that are read in the second turn, besides ours. They are known to all accelerators.
const ACCELERATOR_KEYS: [&str; 8] = [
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    DIVISIONS,
    "expandable_segments",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Accelerator,
    Cuda,
}

/// A text that is being read into settings.
pub(super) struct Reading<'a> {
    tokens: Tokens,
    config: &'a mut Config,
    /// Whose keys there are; all of them if it is none's.
    version: Option<TorchVersion>,
    /// What a backend must be, if it was chosen before.
    backend: Option<Backend>,
    /// What the text says of captures' memory, which has the last word.
    plain_captures: Option<bool>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        text: &str,
        config: &'a mut Config,
        version: Option<TorchVersion>,
        backend: Option<Backend>,
    ) -> Reading<'a> {
        Reading { tokens: Tokens::of(text), config, version, backend, plain_captures: None }
    }

    /// Reads the whole text. If it is refused, the settings are half changed.
    pub(super) fn read(mut self) -> Result<(), ConfigError> {
        self.read_large_segment()?;
        let rounding_bytes = &mut self.config.max_non_split_rounding_bytes;
        *rounding_bytes = (*rounding_bytes).max(self.config.large_segment_bytes);
        self.take_turn(Turn::Accelerator)?;
        self.take_turn(Turn::Cuda)?;
        if let Some(is_plain) = self.plain_captures {
            self.config.plain_captures = is_plain;
        }
        Ok(())
    }

    /// This key is found wherever it stands.
    fn read_large_segment(&mut self) -> Result<(), ConfigError> {
        let mut at = 0;
        while let Some(token) = self.tokens.get(at) {
            if token == LARGE_SEGMENT {
                let entry = Entry { key: LARGE_SEGMENT, value: self.tokens.need(at + 2, at)? };
                self.config.large_segment_bytes =
                    entry.mebibytes_from(LARGE_SEGMENT_FLOOR_MB + 1)?;
                at += 2;
            }
            at += 1;
        }
        Ok(())
    }

    fn take_turn(&mut self, turn: Turn) -> Result<(), ConfigError> {
        let mut at = 0;
        while let Some(key) = self.tokens.get(at) {
            self.check_key(key, at)?;
            let last = if turn_of(key) != Some(turn) {
                self.tokens.end_of(at)?
            } else if key == DIVISIONS {
                self.read_divisions(at)?
            } else if key == CLASSES {
                self.read_classes(at)?
            } else {
                let key = key.to_owned();
                let value = self.tokens.need(at + 2, at)?.to_owned();
                self.set(&Entry { key: &key, value: &value })?;
                at + 2
            };
            at = last + 2;
        }
        Ok(())
    }

    /// Fails if there is no such setting, or none yet.
    fn check_key(&self, key: &str, at: usize) -> Result<(), ConfigError> {
        let key = key.to_owned();
        if !KEYS.contains(&key.as_str()) {
            let is_entry = self.tokens.get(at + 1) == Some(":") && !is_punctuation(&key);
            return Err(if is_entry {
                ConfigError::UnknownKey { key }
            } else {
                ConfigError::BadSyntax { found: key }
            });
        }
        let Some(version) = self.version else { return Ok(()) };
        match known_since(&key) {
            Some(since) if since > version => Err(ConfigError::NotYet { key, since, version }),
            _ => Ok(()),
        }
    }

    /// Reads one number for all size classes, or a list `[256:1,512:2,>:4]`; the index of its last
    /// token. In a list the first entry also fills the classes below it, and `>` fills those after
    /// the last key.
    fn read_divisions(&mut self, at: usize) -> Result<usize, ConfigError> {
        let first = self.tokens.need(at + 2, at)?;
        if first != "[" {
            let entry = Entry { key: DIVISIONS, value: first };
            let value = whole(first).filter(|value| value.is_power_of_two());
            let expected = "a power of two, or a list of sizes in MiB and powers of two";
            self.config.roundup_divisions.fill(value.ok_or_else(|| entry.bad(expected))?);
            return Ok(at + 2);
        }
        let divisions = &mut self.config.roundup_divisions;
        let (mut class_last, mut is_first) = (0, true);
        let mut last = at + 3;
        while self.tokens.need(last, at)? != "]" {
            let list = self.tokens.value(at, self.tokens.end_of(at)?);
            let bad = |expected: &str| Entry { key: DIVISIONS, value: &list }.bad(expected);
            let (size, value) = (self.tokens.need(last, at)?, self.tokens.need(last + 2, at)?);
            let value = whole(value)
                .filter(|&value| value == 0 || value.is_power_of_two())
                .ok_or_else(|| bad("divisions that are 0 or a power of two"))?;
            if size == ">" {
                divisions[class_last + 1..].fill(value);
            } else {
                let mebibytes = whole(size)
                    .filter(|size| size.is_power_of_two())
                    .ok_or_else(|| bad("sizes that are a power of two in MiB, or >"))?;
                let class = division_class(mebibytes.saturating_mul(MIB));
                if is_first {
                    divisions[..class].fill(value);
                }
                divisions[class] = value;
                (class_last, is_first) = (class, false);
            }
            last += 3;
            // What parts two entries of the list is not looked at either.
            if self.tokens.need(last, at)? != "]" {
                last += 1;
            }
        }
        Ok(last)
    }

    /// Reads a list of names with a reserve each; the index of its last token. What opens it is not
    /// looked at.
    fn read_classes(&mut self, at: usize) -> Result<usize, ConfigError> {
        let mut classes = Vec::new();
        self.tokens.need(at + 2, at)?;
        let mut last = at + 3;
        while self.tokens.need(last, at)? != "]" {
            let name = self.tokens.need(last, at)?.to_owned();
            let value = self.tokens.need(last + 2, at)?;
            if let Some(reserve) = (Entry { key: CLASSES, value }).reserve() {
                classes.retain(|(other, _)| *other != name);
                classes.push((name, reserve));
            }
            last += 3;
            if self.tokens.need(last, at)? == "," {
                last += 1;
            }
        }
        self.config.reserve_by_class = classes;
        Ok(last)
    }

    fn set(&mut self, entry: &Entry<'_>) -> Result<(), ConfigError> {
        let config = &mut *self.config;
        let large_segment_mb = config.large_segment_bytes / MIB;
        match entry.key {
            "backend" => {
                config.backend = entry.backend(self.backend)?;
                self.backend = Some(config.backend);
            }
            "max_split_size_mb" => {
                config.max_split_bytes = Some(entry.mebibytes_from(large_segment_mb)?);
            }
            "max_non_split_rounding_mb" => {
                config.max_non_split_rounding_bytes = entry.mebibytes_from(large_segment_mb)?;
            }
            "garbage_collection_threshold" => {
                config.garbage_collection_threshold = entry
                    .fraction(|value| value > 0.0 && value < 1.0, "a number above 0 and below 1")?;
            }
            "expandable_segments" => {
                config.expandable_segments = entry.boolean()?;
                config.plain_captures = false;
            }
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                config.release_lock_on_device_alloc = entry.boolean()?;
            }
            "graph_capture_record_stream_reuse" => config.capture_reuse = entry.boolean()?,
            "per_process_memory_fraction" => {
                config.memory_fraction =
                    entry.fraction(|value| (0.0..=1.0).contains(&value), "a number from 0 to 1")?;
            }
            "throw_on_cudamalloc_oom" => config.reject_above_fraction = entry.boolean()?,
            "expandable_segments_reserve" => config.reserve = entry.reserve().or(config.reserve),
            _ if entry.key.starts_with("pinned_") => self.set_pinned(entry)?,
            _ => self.set_own(entry)?,
        }
        Ok(())
    }

    fn set_pinned(&mut self, entry: &Entry<'_>) -> Result<(), ConfigError> {
        let pinned = &mut self.config.pinned;
        match entry.key {
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                pinned.use_host_register = entry.boolean()?;
            }
            "pinned_num_register_threads" => pinned.register_threads = entry.register_threads()?,
            "pinned_use_background_threads" => pinned.use_background_threads = entry.boolean()?,
            "pinned_reserve_segment_size_mb" => {
                pinned.reserve_segment_bytes = entry.kept_mebibytes()?;
            }
            "pinned_free_catch_all" => pinned.free_catch_all = entry.boolean()?,
            "pinned_max_round_threshold_mb" => {
                pinned.max_round_threshold_bytes = Some(entry.mebibytes_from(0)?);
            }
            "pinned_max_cached_size_mb" => {
                pinned.max_cached_bytes = Some(entry.mebibytes_from(0)?);
            }
            key => return Err(ConfigError::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }

    fn set_own(&mut self, entry: &Entry<'_>) -> Result<(), ConfigError> {
        let config = &mut *self.config;
        match entry.key {
            "plain_captures" => self.plain_captures = Some(entry.boolean()?),
            "page_size_mb" => config.page_bytes = Some(entry.page_bytes()?),
            "tight_views_percent" => {
                config.tight_views_percent = entry.plain_fraction(is_percent, PERCENT_EXPECTED)?;
            }
            "tight_soft" => config.tight_soft = entry.plain_fraction(is_soft, SOFT_EXPECTED)?,
            "tight_most" => config.tight_most = entry.plain_fraction(is_soft, SOFT_EXPECTED)?,
            "tight_floor_mb" => config.tight_floor_bytes = entry.plain_mebibytes()?,
            key => return Err(ConfigError::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }
}

/// In which turn a key is read; none if before both.
fn turn_of(key: &str) -> Option<Turn> {
    if key == LARGE_SEGMENT {
        None
    } else if ACCELERATOR_KEYS.contains(&key) || ALLOCATOR_KEYS.contains(&key) {
        Some(Turn::Accelerator)
    } else {
        Some(Turn::Cuda)
    }
}
