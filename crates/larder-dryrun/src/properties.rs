//! What a program is told about a card: CUDA 13's structure of properties.

use crate::card::Card;

/// The whole of the structure, field by field as CUDA 13's header lays it out.
pub(crate) const SIZE: usize = 1008;

/// The structure.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct DeviceProperties([u8; SIZE]);

impl DeviceProperties {
    /// The properties of a card with this number.
    pub(crate) fn of(card: &Card, index: usize) -> DeviceProperties {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, card.name.as_bytes());
        // The card's identity, which is made up and differs from card to card.
        put(256, b"larder dry run");
        put(271, &[index as u8 + 1]);
        put(288, &card.total_bytes.to_le_bytes());
        put(312, &u64::from(i32::MAX as u32).to_le_bytes());
        for (at, attribute) in FIELDS {
            put(at, &card.attribute(attribute).to_le_bytes());
        }
        put(568, &(index as i32 + 1).to_le_bytes());
        DeviceProperties(bytes)
    }
}

/// Where the structure has what is an attribute too, and the attribute's number. What is longer
/// than an attribute has zeros behind it.
const FIELDS: [(usize, i32); 38] = [
    (296, 8),
    (304, 12),
    (308, 10),
    (320, 1),
    (324, 2),
    (328, 3),
    (332, 4),
    (336, 5),
    (340, 6),
    (344, 7),
    (352, 9),
    (360, 75),
    (364, 76),
    (368, 14),
    (384, 16),
    (392, 19),
    (560, 31),
    (564, 32),
    (584, 40),
    (588, 41),
    (592, 37),
    (596, 38),
    (604, 39),
    (608, 78),
    (612, 79),
    (616, 80),
    (624, 81),
    (632, 82),
    (636, 83),
    (656, 89),
    (660, 90),
    (664, 91),
    (668, 95),
    (672, 97),
    (688, 106),
    (696, 111),
    (704, 99),
    (720, 115),
];
