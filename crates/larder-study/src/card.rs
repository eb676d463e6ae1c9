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

/// The names that are known, smallest first, with the least total capacity that PyTorch's errors
/// were seen to name: a card sold with 80 GB reports a little less. That of the H200 is exact.
const CARDS: [(&str, u64); 19] = [
    ("T4", gib(1_456)),
    ("V100-16", gib(1_576)),
    ("L4", gib(2_195)),
    ("A10", gib(2_197)),
    ("A30", gib(2_349)),
    ("4090", gib(2_351)),
    ("3090", gib(2_356)),
    ("5090", gib(3_134)),
    ("V100-32", gib(3_150)),
    ("A100-40", gib(3_938)),
    ("L40", gib(4_438)),
    ("L40S", gib(4_438)),
    ("A6000", gib(4_740)),
    ("A100-80", gib(7_910)),
    ("H100", gib(7_910)),
    ("H100-NVL", gib(9_300)),
    ("H20", gib(9_500)),
    ("H200", 150_109_880_320),
    ("B200", gib(17_830)),
];

/// So many hundredths of a GiB.
const fn gib(hundredths: u64) -> u64 {
    hundredths * GIB / 100
}

impl Card {
    /// Reads a name, a size, or a number of GiB.
    pub fn parse(text: &str) -> Result<Card, OptionError> {
        let bare = |name: &str| {
            let name = name.to_ascii_uppercase().replace([' ', '_'], "-");
            let name = name.strip_prefix("NVIDIA-").unwrap_or(&name).to_owned();
            name.strip_prefix("RTX-").unwrap_or(&name).to_owned()
        };
        let known = CARDS.iter().find(|(name, _)| *name == bare(text));
        if let Some(&(name, total_bytes)) = known {
            return Ok(Card { name: name.to_owned(), total_bytes });
        }
        let is_number = text.parse::<f64>().is_ok_and(|number| number > 0.0);
        let size = if is_number { format!("{text}GiB") } else { text.to_owned() };
        let total_bytes = parse_capacity(&size).map_err(|_| {
            let known = CARDS.map(|(name, _)| name).join(", ");
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
        let enough = CARDS.iter().find(|&&(_, total_bytes)| total_bytes >= needed_bytes);
        let &(name, total_bytes) = enough?;
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
        assert!(CARDS.is_sorted_by_key(|&(_, total_bytes)| total_bytes));
        for (name, total_bytes) in CARDS {
            let found = Card::with_at_least(total_bytes).expect("a card");
            assert_eq!(found.total_bytes, total_bytes, "{name}");
            assert_eq!(Card::parse(name).expect("a card").name, name);
        }
        assert_eq!(Card::with_at_least(133 * GIB).map(|card| card.name), Some("H200".to_owned()));
        assert_eq!(Card::with_at_least(1000 * GIB), None);
    }
}
