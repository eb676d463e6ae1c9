//! Parts: what the small dictionaries and lists of a pickle have become, as the token that takes
//! their place.

/// What a dictionary or a list of the pickle has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Entry number n of the parts' entries.
    Entry(u32),
    /// Block number n of the parts' blocks.
    Block(u32),
    /// Frame number n of the frames.
    Frame(u32),
    /// A list of frames: stack number n of the stacks, or a list that is not one.
    Stack(Option<u32>),
}

const KIND_SHIFT: u32 = 30;
pub(super) const NUMBER_MAX: u32 = (1 << KIND_SHIFT) - 1;

impl Part {
    /// Two bits for the kind and thirty for the number. `None` when the numbers are used up.
    pub(super) fn token(self) -> Option<u32> {
        let (kind, number) = match self {
            Part::Entry(number) => (0, number),
            Part::Block(number) => (1, number),
            Part::Frame(number) => (2, number),
            Part::Stack(Some(number)) => (3, number),
            Part::Stack(None) => return Some(u32::MAX),
        };
        (number < NUMBER_MAX).then_some(kind << KIND_SHIFT | number)
    }

    pub(super) fn from_token(token: u32) -> Part {
        let number = token & NUMBER_MAX;
        match token >> KIND_SHIFT {
            0 => Part::Entry(number),
            1 => Part::Block(number),
            2 => Part::Frame(number),
            _ => Part::Stack((number < NUMBER_MAX).then_some(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_parts_agree() {
        for part in [
            Part::Entry(0),
            Part::Block(7),
            Part::Frame(NUMBER_MAX - 1),
            Part::Stack(Some(3)),
            Part::Stack(None),
        ] {
            assert_eq!(Part::from_token(part.token().unwrap()), part);
        }
        assert_eq!(Part::Stack(Some(NUMBER_MAX)).token(), None);
    }
}
