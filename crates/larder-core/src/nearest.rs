//! Nearest: the word that somebody meant who wrote another.

/// A word that differs in more letters than this is another word.
const DISTANCE_MAX: usize = 3;

/// The one of some words that is most like this one, if any is like it.
pub fn nearest<'a>(word: &str, words: &[&'a str]) -> Option<&'a str> {
    let near = words.iter().map(|&other| (distance(word, other), other));
    let (distance, other) = near.min_by_key(|&(distance, _)| distance)?;
    // Of a short word little would be left.
    (distance <= DISTANCE_MAX.min(word.chars().count() / 3)).then_some(other)
}

/// How many letters must be put in, left out or changed to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut before = row[0];
        row[0] = at + 1;
        for (column, &theirs) in other.iter().enumerate() {
            let changed = before + usize::from(letter != theirs);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_a_word_is_taken_for_it() {
        let words = ["alloc", "free", "pool-begin", "expandable_segments"];
        assert_eq!(nearest("aloc", &words), Some("alloc"));
        assert_eq!(nearest("expandable_segment", &words), Some("expandable_segments"));
        assert_eq!(nearest("pool_begin", &words), Some("pool-begin"));
        for other in ["", "x", "frob", "synchronise", "\u{e9}"] {
            assert_eq!(nearest(other, &words), None, "{other}");
        }
    }

    #[test]
    fn letters_are_counted() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
