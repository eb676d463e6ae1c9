//! The settings that can change while running, as values and as a text.

use larder::setup::settings::{check_own, split_policy};
use larder_core::Config;
use larder_core::config::DIVISION_CLASSES;

use crate::border::{Held, Out, Problem, Shown, Status, Text, guard};
use crate::larder::Larder;

/// `LARDER_UNLIMITED`
pub(crate) const UNLIMITED: u64 = u64::MAX;

/// `larder_settings`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(clippy::struct_excessive_bools)] // Each is a setting of its own; any mixture is legal.
pub(crate) struct SettingValues {
    pub(crate) large_segment_bytes: u64,
    pub(crate) max_split_bytes: u64,
    pub(crate) max_non_split_rounding_bytes: u64,
    pub(crate) garbage_collection_threshold: f64,
    pub(crate) roundup_divisions: [u64; DIVISION_CLASSES],
    pub(crate) expandable_segments: bool,
    pub(crate) release_lock_on_device_alloc: bool,
    pub(crate) capture_reuse: bool,
    pub(crate) reject_above_fraction: bool,
    pub(crate) plain_captures: bool,
    pub(crate) memory_fraction: f64,
}

impl SettingValues {
    fn of(config: &Config) -> SettingValues {
        SettingValues {
            large_segment_bytes: config.large_segment_bytes,
            max_split_bytes: config.max_split_bytes.unwrap_or(UNLIMITED),
            max_non_split_rounding_bytes: config.max_non_split_rounding_bytes,
            garbage_collection_threshold: config.garbage_collection_threshold,
            roundup_divisions: config.roundup_divisions,
            expandable_segments: config.expandable_segments,
            release_lock_on_device_alloc: config.release_lock_on_device_alloc,
            capture_reuse: config.capture_reuse,
            reject_above_fraction: config.reject_above_fraction,
            plain_captures: config.plain_captures,
            memory_fraction: config.memory_fraction,
        }
    }

    fn put_into(&self, config: &mut Config) {
        let limit = self.max_split_bytes;
        config.large_segment_bytes = self.large_segment_bytes;
        config.max_split_bytes = (limit != UNLIMITED).then_some(limit);
        config.max_non_split_rounding_bytes = self.max_non_split_rounding_bytes;
        config.garbage_collection_threshold = self.garbage_collection_threshold;
        config.roundup_divisions = self.roundup_divisions;
        config.expandable_segments = self.expandable_segments;
        config.release_lock_on_device_alloc = self.release_lock_on_device_alloc;
        config.capture_reuse = self.capture_reuse;
        config.reject_above_fraction = self.reject_above_fraction;
        config.plain_captures = self.plain_captures;
        config.memory_fraction = self.memory_fraction;
    }
}

#[unsafe(no_mangle)]
extern "C" fn larder_get_settings(larder: Held<Larder>, out: Out<SettingValues>) -> Status {
    guard(|| {
        let (larder, out) = (larder.get("larder")?, out.wanted("out")?);
        // They are the same on all devices.
        out.put(SettingValues::of(&larder.device(0)?.config()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_settings(larder: Held<Larder>, settings: Shown<SettingValues>) -> Status {
    guard(|| {
        let (larder, values) = (larder.get("larder")?, settings.needed("settings")?);
        // They suit all devices or none, so that the first one decides.
        for allocator in larder.allocators() {
            allocator.reconfigure(|config| values.put_into(config))?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_configure(larder: Held<Larder>, settings: Text) -> Status {
    guard(|| {
        let (larder, text) = (larder.get("larder")?, settings.needed("settings")?);
        if split_policy(text)?.0.is_some() {
            let words = "the policy is chosen when a larder is opened, and stays";
            return Err(Problem::Setting(words.to_owned()));
        }
        // A text reads the same on all devices, so that the first one decides.
        for allocator in larder.allocators() {
            allocator.configure(text)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_check_own_settings(name: Text, settings: Text) -> Status {
    guard(|| {
        let (name, text) = (name.needed("name")?, settings.needed("settings")?);
        Ok(check_own(name, text)?)
    })
}
