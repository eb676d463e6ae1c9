//! Version: which PyTorch made a snapshot, as its keys tell.

use larder_core::{Policy, TorchVersion};
use serde_json::{Map, Value};

use super::{PROPOSED_CONF, Snapshot};

/// The key under which an allocator of Larder's names its policy, among the settings.
pub(super) const POLICY_KEY: &str = "larder_policy";

impl Snapshot {
    /// The PyTorch that made it, or that Larder decided like when it was made; none if it is no
    /// dictionary with settings, or if Larder decided on its own.
    ///
    /// PyTorch 2.14 and 2.15 write the same keys, unless something was told of inside of an entry,
    /// or the settings are of the newer one: such a snapshot is taken for one of 2.15.
    pub fn torch_version(&self) -> Option<TorchVersion> {
        let more = self.more.as_ref()?;
        let settings = self.settings()?;
        if let Some(policy) = self.larder_policy() {
            return policy.strip_prefix("torch-").and_then(|version| version.parse().ok());
        }
        let by_keys = self.version_by_keys(more, settings);
        Some(by_keys.max(self.recorded_config().known_from()))
    }

    /// The policy of the allocator that made it, by name, if that was one of Larder's. What PyTorch
    /// alone wrote while it ran on Larder tells no more than that it did, by its settings.
    pub fn larder_policy(&self) -> Option<&str> {
        let named = self.settings().and_then(|settings| settings.get(POLICY_KEY));
        let named = named.and_then(Value::as_str);
        let is_proposed = self.allocator_conf.as_deref() == Some(PROPOSED_CONF);
        named.or_else(|| is_proposed.then_some(Policy::larder().name))
    }

    pub(crate) fn settings(&self) -> Option<&Map<String, Value>> {
        self.more.as_ref()?.get("allocator_settings").and_then(Value::as_object)
    }

    fn version_by_keys(
        &self,
        more: &Map<String, Value>,
        settings: &Map<String, Value>,
    ) -> TorchVersion {
        if more.contains_key("host_segments") || more.contains_key("host_traces") {
            TorchVersion::V2_15
        } else if settings.contains_key("max_round_threshold") {
            TorchVersion::V2_13
        } else if self.entries.iter().any(|entry| entry.pool.is_some()) {
            TorchVersion::V2_12
        } else {
            TorchVersion::V2_11
        }
    }
}
