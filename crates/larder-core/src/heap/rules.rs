//! Rules: the settings, the policy and the cap, and all that follows from them.

use crate::config::Config;
use crate::error::Unsound;
use crate::heap::Want;
use crate::heap::reserves::Reserves;
use crate::heap::size::{self, Fineness};
use crate::policy::{Policy, TieBreak};
use crate::types::{PoolKind, StreamId};

/// How requests share memory, which a placement says once.
#[derive(Clone, Copy, Debug)]
pub(in crate::heap) struct Layout {
    /// Whether blocks of all sizes, and of all lanes of a pool, lie in one segment.
    pub(in crate::heap) shares_segments: bool,
    /// Where every remainder is worth keeping.
    pub(in crate::heap) fineness: Fineness,
}

/// The settings, the policy and the cap.
#[derive(Clone, Debug)]
pub(in crate::heap) struct Rules {
    config: Config,
    policy: Policy,
    layout: Layout,
    device_total_bytes: u64,
    cap_bytes: Option<u64>,
    /// `config.max_split_bytes`, or the largest number where there is no limit that a request could
    /// reach.
    split_limit_bytes: u64,
    /// Whether garbage collection is on; then searches are counted.
    collecting: bool,
    /// Whether it ever was on, or a split limit was set. Until then no search was counted, every
    /// age is zero, and no block is oversize.
    has_ages: bool,
    /// Whether requests are rounded to whole units and no more, searches are not counted, and
    /// blocks have no numbers.
    is_plain: bool,
    reserves: Box<Reserves>,
}

impl Rules {
    /// The rules for a device of this much memory. The settings' part of it is the cap.
    pub(in crate::heap) fn new(
        config: Config,
        policy: Policy,
        layout: Layout,
        device_total_bytes: u64,
    ) -> Rules {
        let fraction = config.memory_fraction;
        let mut rules = Rules {
            config,
            policy,
            layout,
            device_total_bytes,
            cap_bytes: None,
            split_limit_bytes: u64::MAX,
            collecting: false,
            has_ages: false,
            is_plain: false,
            reserves: Box::default(),
        };
        rules.set_fraction(fraction);
        rules
    }

    /// The settings in force.
    #[inline]
    pub(in crate::heap) fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings; the fraction is not applied again.
    pub(in crate::heap) fn set_config(&mut self, config: Config) {
        self.config = config;
        self.derive();
    }

    /// The policy in force.
    #[inline]
    pub(in crate::heap) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Caps the memory at this part of the device; 1 lifts the cap.
    pub(in crate::heap) fn set_fraction(&mut self, fraction: f64) {
        debug_assert!((0.0..=1.0).contains(&fraction), "{fraction} is no part of a device");
        self.cap_bytes = (fraction < 1.0).then(|| {
            let bytes = fraction * self.device_total_bytes as f64;
            if self.policy.cap_rounds_to_nearest { bytes.round() as u64 } else { bytes as u64 }
        });
        self.derive();
    }

    /// Works out what follows from settings, policy and cap.
    fn derive(&mut self) {
        let limit_bytes = self.config.max_split_bytes;
        let limit_bytes = limit_bytes.filter(|&bytes| bytes <= size::REQUEST_LIMIT_BYTES);
        self.split_limit_bytes = limit_bytes.unwrap_or(u64::MAX);
        self.collecting = self.config.garbage_collection_threshold > 0.0
            && (self.cap_bytes.is_some() || self.policy.collect_without_cap);
        self.has_ages |= self.collecting || limit_bytes.is_some();
        let rounds_up = self.config.roundup_divisions.iter().any(|&divisions| divisions > 1);
        let has_numbers = self.policy.tie_break == TieBreak::BlockNumber;
        self.is_plain = !(rounds_up || self.has_ages || has_numbers);
        debug_assert!(!self.collecting || self.has_ages, "who collects looks at ages");
    }

    /// Free blocks have ages from now on.
    pub(in crate::heap) fn begin_ages(&mut self) {
        self.has_ages = true;
        self.derive();
    }

    #[inline]
    pub(in crate::heap) fn device_total_bytes(&self) -> u64 {
        self.device_total_bytes
    }

    /// The cap on what may be held of the device.
    pub(in crate::heap) fn cap_bytes(&self) -> Option<u64> {
        self.cap_bytes
    }

    /// From this size on a block is oversize; the largest number where there is no limit.
    #[inline]
    pub(in crate::heap) fn split_limit_bytes(&self) -> u64 {
        self.split_limit_bytes
    }

    /// Whether garbage collection is on; then searches are counted.
    #[inline]
    pub(in crate::heap) fn is_collecting(&self) -> bool {
        self.collecting
    }

    /// Whether free blocks have ages, or ever had.
    #[inline]
    pub(in crate::heap) fn has_ages(&self) -> bool {
        self.has_ages
    }

    /// Whether requests are rounded to whole units and no more, searches are not counted, and
    /// blocks have no numbers.
    #[inline]
    pub(in crate::heap) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether blocks of all sizes, and of all lanes of a pool, lie in one segment.
    #[inline]
    pub(in crate::heap) fn shares_segments(&self) -> bool {
        self.layout.shares_segments
    }

    /// Where every remainder is worth keeping.
    #[inline]
    pub(in crate::heap) fn fineness(&self) -> Fineness {
        self.layout.fineness
    }

    /// The kind of pool for a rounded size.
    #[inline]
    pub(in crate::heap) fn kind(&self, rounded_bytes: u64) -> PoolKind {
        if self.layout.shares_segments { PoolKind::Large } else { size::kind(rounded_bytes) }
    }

    /// Whether a request is put into pages, which it is where all share them, unless its memory has
    /// to be plain.
    #[inline]
    pub(in crate::heap) fn puts_into_pages(&self, want: &Want) -> bool {
        self.layout.shares_segments && want.expandable
    }

    /// What may not be passed where the settings say to refuse it at once.
    pub(in crate::heap) fn share_bytes(&self) -> f64 {
        self.config.memory_fraction * self.device_total_bytes as f64
    }

    /// The most that can ever be held.
    pub(in crate::heap) fn limit_bytes(&self) -> u64 {
        self.cap_bytes.unwrap_or(u64::MAX).min(self.device_total_bytes)
    }

    /// What is said of streams.
    pub(in crate::heap) fn reserves(&self) -> &Reserves {
        &self.reserves
    }

    pub(in crate::heap) fn reserves_mut(&mut self) -> &mut Reserves {
        &mut self.reserves
    }

    /// What the next segment of a stream should reserve, in bytes; none is as many as are ever of
    /// use.
    pub(in crate::heap) fn reserve_of(&self, stream: StreamId) -> Option<u64> {
        self.reserves.reserve_of(stream, &self.config, self.device_total_bytes)
    }

    /// What is derived is what follows from the settings, and the cap is within the device.
    pub(in crate::heap) fn check(&self) -> Result<(), Unsound> {
        let mut anew = self.clone();
        anew.derive();
        let derived = |rules: &Rules| {
            (rules.split_limit_bytes, rules.collecting, rules.has_ages, rules.is_plain)
        };
        if derived(&anew) != derived(self) {
            return Err("the rules do not follow from the settings".into());
        }
        if self.cap_bytes.is_some_and(|cap_bytes| cap_bytes > self.device_total_bytes) {
            return Err("the cap is beyond the device".into());
        }
        Ok(())
    }
}
