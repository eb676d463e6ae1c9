//! Rooms: how much memory each device has and how much of it the program may hold, as an allocator
//! of Larder's writes it among the settings.

use larder_core::allocator::history::DeviceSnapshot;
use serde_json::{Value, json};

use super::Snapshot;

/// The key of the devices' memory.
pub(super) const DEVICES_KEY: &str = "larder_devices";
/// The key that says that a request which failed had the snapshot written.
const ON_FAILURE_KEY: &str = "larder_on_failure";

/// What a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All its memory, the CUDA context and other processes included.
    pub total_bytes: u64,
    /// How much the program may hold of it, if there is a cap.
    pub cap_bytes: Option<u64>,
}

/// What each of these devices has.
pub(super) fn rooms(devices: &[DeviceSnapshot]) -> Value {
    let room = |device: &DeviceSnapshot| {
        json!({
            "device": device.device.0,
            "total_bytes": device.total_bytes,
            "cap_bytes": device.cap_bytes,
        })
    };
    devices.iter().map(room).collect()
}

impl Snapshot {
    /// What a device has, if the snapshot says it.
    pub fn room(&self, device: u32) -> Option<Room> {
        let rooms = self.settings()?.get(DEVICES_KEY)?.as_array()?;
        let is_asked = |room: &&Value| room["device"].as_u64() == Some(u64::from(device));
        let room = rooms.iter().find(is_asked)?;
        let total_bytes = room["total_bytes"].as_u64().filter(|&bytes| bytes > 0)?;
        Some(Room { total_bytes, cap_bytes: room["cap_bytes"].as_u64() })
    }

    /// Whether it was written because a request failed, the last that it tells of.
    pub fn is_on_failure(&self) -> bool {
        let says = self.settings().and_then(|settings| settings.get(ON_FAILURE_KEY));
        says.and_then(Value::as_bool) == Some(true)
    }

    /// Says that a request which failed had it written.
    pub(super) fn mark_failure(&mut self) {
        let more = self.more.get_or_insert_default();
        let settings = more.entry("allocator_settings").or_insert_with(|| json!({}));
        settings[ON_FAILURE_KEY] = true.into();
    }
}
