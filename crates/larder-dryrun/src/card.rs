//! The card that is played: what is told of it, and how fast it is. Cards are data, in `cards/`.

use std::env;

use serde_json::Value;

/// The cards that are known, by the names that people use.
const CARDS: [(&str, &str); 7] = [
    ("H200", include_str!("../cards/H200.json")),
    ("H100", include_str!("../cards/H100.json")),
    ("A100-80", include_str!("../cards/A100-80.json")),
    ("L40S", include_str!("../cards/L40S.json")),
    ("L4", include_str!("../cards/L4.json")),
    ("4090", include_str!("../cards/4090.json")),
    ("B200", include_str!("../cards/B200.json")),
];

/// A card.
#[derive(Clone, Debug)]
pub(crate) struct Card {
    pub(crate) name: String,
    pub(crate) total_bytes: u64,
    /// What the context and the libraries take before the program gets any.
    pub(crate) context_bytes: u64,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) multiprocessors: i32,
    pub(crate) threads_per_multiprocessor: i32,
    pub(crate) blocks_per_multiprocessor: i32,
    pub(crate) shared_bytes_per_block: i32,
    pub(crate) shared_bytes_per_multiprocessor: i32,
    pub(crate) l2_bytes: i32,
    pub(crate) bus_bits: i32,
    pub(crate) memory_gb_per_s: f64,
    pub(crate) half_tflops: f64,
    pub(crate) tf32_tflops: f64,
    pub(crate) single_tflops: f64,
    /// What a card of this kind said of its attributes, by their numbers, where one was asked.
    attributes: Vec<(i32, i32)>,
    /// What cuDNN said of it, or nothing.
    cudnn: String,
}

impl Card {
    /// The card that the environment names.
    pub(crate) fn of_environment() -> Result<Card, String> {
        let name = env::var("LARDER_DRY_CARD").unwrap_or_else(|_| "H200".to_owned());
        let mut card = Card::named(&name)?;
        if let Ok(text) = env::var("LARDER_DRY_MEMORY") {
            card.total_bytes = text
                .parse()
                .map_err(|_| format!("LARDER_DRY_MEMORY is a number of bytes, not '{text}'"))?;
        }
        Ok(card)
    }

    fn named(name: &str) -> Result<Card, String> {
        let found = CARDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let (_, text) = found.ok_or_else(|| {
            let known = CARDS.map(|(name, _)| name).join(", ");
            format!("there is no profile of a card '{name}'; there are {known}")
        })?;
        Card::read(text).map_err(|why| format!("the profile of the {name}: {why}"))
    }

    fn read(text: &str) -> Result<Card, String> {
        let data: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let number = |key: &str| data[key].as_f64().ok_or_else(|| format!("'{key}' is no number"));
        let whole = |key: &str| number(key).map(|value| value as i32);
        let capability = |at: usize| {
            let part = data["compute_capability"][at].as_i64();
            part.map(|part| part as i32).ok_or("'compute_capability' is not two numbers")
        };
        let attribute = |(number, value): (&String, &Value)| {
            Some((number.parse().ok()?, value.as_i64()? as i32))
        };
        let attributes = data["attributes"].as_object();
        Ok(Card {
            name: data["name"].as_str().ok_or("'name' is no text")?.to_owned(),
            total_bytes: number("total_bytes")? as u64,
            context_bytes: number("context_bytes")? as u64,
            compute_capability: (capability(0)?, capability(1)?),
            multiprocessors: whole("multiprocessors")?,
            threads_per_multiprocessor: whole("threads_per_multiprocessor")?,
            blocks_per_multiprocessor: whole("blocks_per_multiprocessor")?,
            shared_bytes_per_block: whole("shared_bytes_per_block")?,
            shared_bytes_per_multiprocessor: whole("shared_bytes_per_multiprocessor")?,
            l2_bytes: whole("l2_bytes")?,
            bus_bits: whole("bus_bits")?,
            memory_gb_per_s: number("memory_gb_per_s")?,
            half_tflops: number("half_tflops")?,
            tf32_tflops: number("tf32_tflops")?,
            single_tflops: number("single_tflops")?,
            attributes: attributes.into_iter().flatten().filter_map(attribute).collect(),
            cudnn: data["cudnn"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// cuDNN's description of such a card: its own where one was asked, or one made of what is
    /// known.
    pub(crate) fn cudnn(&self) -> String {
        if !self.cudnn.is_empty() {
            return self.cudnn.clone();
        }
        let (major, minor) = self.compute_capability;
        let attribute = |number| self.attribute(number);
        serde_json::json!({
            "maxGridSize": [attribute(5), attribute(6), attribute(7)],
            "maxBlockSize": [attribute(2), attribute(3), attribute(4)],
            "regsPerBlock": attribute(12),
            "multiProcessorCount": self.multiprocessors,
            "warpSize": attribute(10),
            "maxSharedMemoryPerBlock": attribute(8),
            "maxSharedMemoryPerBlockOptin": self.shared_bytes_per_block,
            "reservedSharedMemoryPerBlock": attribute(111),
            "maxRegistersPerSM": attribute(82),
            "maxCtasPerSM": self.blocks_per_multiprocessor,
            "maxThreadsPerBlock": attribute(1),
            "maxThreadsPerSM": self.threads_per_multiprocessor,
            "pciDeviceId": 1,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "totalGlobalMem": self.total_bytes,
            "smClockRateKHz": 1_800_000,
            "memClockRateKHz": 2_600_000,
            "l2CacheSize": self.l2_bytes,
            "cudaDeviceId": 0,
            "deviceVer": major * 100 + minor * 10,
            "driverVer": 13000,
            "deviceName": self.name,
        })
        .to_string()
    }

    /// An attribute, by the number that the driver and the runtime both have for it.
    pub(crate) fn attribute(&self, number: i32) -> i32 {
        if let Some(&(_, value)) = self.attributes.iter().find(|&&(known, _)| known == number) {
            return value;
        }
        match number {
            // Threads of a block and its dimensions; reserved shared memory.
            1..=3 | 111 => 1024,
            4 => 64,
            // A grid's dimensions, and a pitch.
            5 | 11 => i32::MAX,
            6 | 7 => 65535,
            // Shared memory of a block that asks for no more.
            8 => 48 << 10,
            // Constant memory, and registers of a block and of a multiprocessor.
            9 | 12 | 82 => 65536,
            // A warp, and how textures are aligned.
            10 => 32,
            14 => 512,
            16 => self.multiprocessors,
            37 => self.bus_bits,
            38 => self.l2_bytes,
            39 => self.threads_per_multiprocessor,
            // Engines that copy.
            40 => 3,
            75 => self.compute_capability.0,
            76 => self.compute_capability.1,
            81 => self.shared_bytes_per_multiprocessor,
            97 => self.shared_bytes_per_block,
            106 => self.blocks_per_multiprocessor,
            // What such cards can do: mapped memory of the host, kernels side by side, one address
            // space, priorities, caches, managed memory, preemption, cooperative launches, virtual
            // memory with file descriptors as handles, and pools of the driver's.
            19 | 31 | 41 | 78..=80 | 83 | 90 | 91 | 95 | 96 | 99 | 101..=103 | 115 => 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_whole() {
        for (name, _) in CARDS {
            let card = Card::named(&name.to_lowercase()).unwrap();
            assert!(card.total_bytes > 20 << 30 && card.multiprocessors > 50, "{name}");
            assert_eq!(card.attribute(75), card.compute_capability.0, "{name}");
            assert_eq!(card.attribute(16), card.multiprocessors, "{name}");
        }
        assert!(Card::named("H300").unwrap_err().ends_with("L4, 4090, B200"));
    }
}
