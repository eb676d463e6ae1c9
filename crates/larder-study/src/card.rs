//! Cards: what those that people have report of their memory, by name or by size.

use std::fmt;

use larder_core::types::{Bytes, GIB, MIB};
use larder_sim::parse_capacity;

use crate::option_error::OptionError;

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// The name, or the size as it was given.
    pub name: String,
    /// The memory that it reports: PyTorch's errors call it the total capacity.
    pub total_bytes: u64,
}

/// What the CUDA context and the libraries that PyTorch loads took of an H200: 0.51 GiB where a
/// program only allocated, 0.73 GiB where it trained. Other cards were not measured.
pub const CONTEXT_BYTES: u64 = 752 * MIB;

/// A card that people name: its name, the least total capacity that one of PyTorch's errors was
/// found to name for it, in hundredths of a GiB, and the issue on GitHub where that error stands. A
/// card sold with 80 GB reports a little less.
type Known = (&'static str, u64, &'static str);

/// The names that are known, smallest first.
const CARDS: [Known; 16] = [
    ("T4", 1_456, "Zheng-Chong/CatVTON#133"),
    ("V100-16", 1_578, "kchengiva/Shift-GCN#34"),
    ("A10", 2_199, "zai-org/CogVLM#236"),
    ("L4", 2_203, "ArcInstitute/evo2#190"),
    ("4090", 2_352, "Soul-AILab/SoulX-FlashTalk#5"),
    ("A30", 2_353, "google/RB-Modulation#5"),
    ("3090", 2_369, "ucwxb/GraphAvatar#4"),
    ("5090", 3_136, "TrajectoryCrafter/TrajectoryCrafter#20"),
    ("V100-32", 3_174, "liucongg/ChatGLM-Finetuning#73"),
    ("A100-40", 3_950, "TianheWu/CoSeR#10"),
    ("L40", 4_440, "QwenLM/Qwen3-VL#2097"),
    ("L40S", 4_453, "Wan-Video/Wan2.1#205"),
    ("A6000", 4_754, "google-research/semivl#18"),
    ("H100", 7_911, "vllm-project/vllm#27508"),
    ("A100-80", 7_914, "lianqi1008/Control-GIC#6"),
    ("H100-NVL", 9_300, "ali-vilab/VACE#56"),
];

/// The H200 that this project is measured on, to the byte.
const MEASURED: (&str, u64) = ("H200", 150_109_880_320);

/// All names with what the cards report, smallest first.
fn known() -> impl Iterator<Item = (&'static str, u64)> {
    CARDS.iter().map(|&(name, hundredths, _)| (name, hundredths * GIB / 100)).chain([MEASURED])
}

impl Card {
    /// Reads a name, a size, or a number of GiB.
    pub fn parse(text: &str) -> Result<Card, OptionError> {
        let bare = |name: &str| {
            let name = name.to_ascii_uppercase().replace([' ', '_'], "-");
            let name = name.strip_prefix("NVIDIA-").unwrap_or(&name).to_owned();
            name.strip_prefix("RTX-").unwrap_or(&name).to_owned()
        };
        if let Some((name, total_bytes)) = known().find(|(name, _)| *name == bare(text)) {
            return Ok(Card { name: name.to_owned(), total_bytes });
        }
        let is_number = text.parse::<f64>().is_ok_and(|number| number > 0.0);
        let size = if is_number { format!("{text}GiB") } else { text.to_owned() };
        let total_bytes = parse_capacity(&size).map_err(|_| {
            let known = known().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
            OptionError::Card { found: text.to_owned(), known }
        })?;
        Ok(Card { name: Bytes(total_bytes).to_string(), total_bytes })
    }

    /// What the card has for a program beside its context.
    pub fn room_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(CONTEXT_BYTES)
    }

    /// The smallest card that is known to have so much.
    pub(crate) fn with_at_least(needed_bytes: u64) -> Option<Card> {
        let (name, total_bytes) = known().find(|&(_, total_bytes)| total_bytes >= needed_bytes)?;
        Some(Card { name: name.to_owned(), total_bytes })
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_as_people_name_them() {
        let name = |text: &str| Card::parse(text).expect("a card").name;
        assert_eq!(["h200", "NVIDIA H200", "RTX 4090"].map(name), ["H200", "H200", "4090"]);
        assert_eq!(["24", "24GiB", "24 GB"].map(name), ["24.00 GiB"; 3]);
        for bad in ["H2000", "", "-3", "0"] {
            let sentence = Card::parse(bad).expect_err(bad).to_string();
            assert!(sentence.contains("H200") && sentence.contains("24GiB"), "{sentence}");
        }
    }

    #[test]
    fn every_card_is_found_by_its_size_or_one_like_it_is() {
        assert!(known().is_sorted_by_key(|(_, total_bytes)| total_bytes));
        for (name, total_bytes) in known() {
            let found = Card::with_at_least(total_bytes).expect("a card");
            assert_eq!(found.total_bytes, total_bytes, "{name}");
            assert_eq!(Card::parse(name).expect("a card").name, name);
        }
        assert_eq!(Card::with_at_least(133 * GIB).map(|card| card.name), Some("H200".to_owned()));
        assert_eq!(Card::with_at_least(1000 * GIB), None);
    }

    /// Whoever doubts a figure can look where it is from.
    #[test]
    fn every_total_names_its_source_and_the_documentation_has_both() {
        let manual = include_str!("../../../docs/commands.md");
        for (name, hundredths, source) in CARDS {
            let (owner, issue) = source.split_once('/').expect("owner/repository#issue");
            let number = issue.split_once('#').expect("an issue").1;
            assert!(!owner.is_empty() && number.parse::<u32>().is_ok(), "{source}");
            let row =
                format!("| {name} | {}.{:02} | {source} |", hundredths / 100, hundredths % 100);
            assert!(manual.contains(&row), "docs/commands.md has no row: {row}");
        }
    }
}
