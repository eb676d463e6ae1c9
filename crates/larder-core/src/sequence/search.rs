//! The search for the first call that differs: every rank sends the same kind of message, hears all
//! of them, and takes the same next step.
//!
//! First all say how many calls they made, and the hash of them; mostly that is the end of it. Else
//! they compare hashes at a few places between the last call on which they can agree and the first
//! at which they cannot, over and over, until one call is left, and then tell each other what it
//! was.

use std::fmt;

use crate::sequence::{Call, Divergence, RankCall, Sequence};

/// How long every message is, so that it fits exchanges that want equal lengths.
pub const MESSAGE_BYTES: usize = 1024;

/// What messages begin with, version included.
const MAGIC: u32 = 0x4c53_4501;
/// How many hashes are compared at a time.
const PROBES: u64 = 31;
const HEAD_BYTES: usize = 8;
const WORDS_BYTES: usize = 32;

/// What the ranks say to each other next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// How many calls, and their hash.
    Greeting,
    /// The hashes at places from `low`, where they may be equal, to `high`, where they are not, or
    /// where some rank ends.
    Hashes { low: u64, high: u64, is_low_agreed: bool },
    /// What the call of this number was.
    Call { number: u64 },
}

/// One rank's side of the search.
#[derive(Clone, Debug)]
pub struct Search {
    round: Round,
    /// How many calls this rank had made when it began: later ones are not looked at.
    count: u64,
}

/// What comes after a round.
#[derive(Clone, Debug)]
pub enum Step {
    /// All ranks made the same calls, so many of them.
    Agreed(u64),
    /// Another round is needed.
    Ask(Search),
    /// They did not.
    Differs(Divergence),
}

/// A message that is not one of this search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbled {
    /// Whose it is.
    pub rank: usize,
}

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} answered with bytes that are no seal of this pool: it may be sealing another \
             one",
            self.rank
        )
    }
}

impl Search {
    /// Begins a search in all calls that were made so far.
    pub fn begin(sequence: &Sequence) -> Search {
        Search { round: Round::Greeting, count: sequence.count() }
    }

    /// The number of the call whose stack belongs into the next message, if that is what it is
    /// about.
    pub fn wants_stack(&self) -> Option<u64> {
        match self.round {
            Round::Call { number } if number < self.count => Some(number),
            _ => None,
        }
    }

    /// What this rank says in this round. `stack` is that of the call that [`Search::wants_stack`]
    /// names; what does not fit is left off.
    pub fn message(&self, sequence: &Sequence, stack: &str) -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4] = self.kind();
        let mut words = Vec::new();
        match self.round {
            Round::Greeting => {
                let hash = sequence.hash_after(self.count).unwrap_or(0);
                words.extend([sequence.first(), self.count, hash]);
            }
            Round::Hashes { low, high, .. } => {
                words.extend([low, high]);
                words.extend(places(low, high).map(|at| sequence.hash_after(at).unwrap_or(0)));
            }
            Round::Call { number } => {
                let call = sequence.call(number).filter(|_| number < self.count);
                words.extend(call.map_or([0; 4], Call::words));
                let room = &mut bytes[HEAD_BYTES + WORDS_BYTES..];
                let text = fitting(stack, room.len());
                room[..text.len()].copy_from_slice(text.as_bytes());
            }
        }
        for (at, word) in words.into_iter().enumerate() {
            let from = HEAD_BYTES + 8 * at;
            bytes[from..from + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Takes in what all ranks said in this round, in the order of the ranks.
    pub fn hear(&self, messages: &[Vec<u8>]) -> Result<Step, Garbled> {
        for (rank, message) in messages.iter().enumerate() {
            let is_ours = message.len() == MESSAGE_BYTES
                && message[..4] == MAGIC.to_le_bytes()
                && message[4] == self.kind();
            if !is_ours {
                return Err(Garbled { rank });
            }
        }
        match self.round {
            Round::Greeting => Ok(self.after_greeting(messages)),
            Round::Hashes { low, high, is_low_agreed } => {
                let stray = messages.iter().position(|m| [word(m, 0), word(m, 1)] != [low, high]);
                match stray {
                    Some(rank) => Err(Garbled { rank }),
                    None => Ok(self.after_hashes(messages, (low, high), is_low_agreed)),
                }
            }
            Round::Call { number } => {
                let ranks = messages.iter().map(|message| told_call(message)).collect();
                let (call, remembered_from) = (Some(number), 0);
                Ok(Step::Differs(Divergence { call, remembered_from, ranks }))
            }
        }
    }

    fn kind(&self) -> u8 {
        match self.round {
            Round::Greeting => 1,
            Round::Hashes { .. } => 2,
            Round::Call { .. } => 3,
        }
    }

    fn ask(&self, round: Round) -> Step {
        Step::Ask(Search { round, count: self.count })
    }

    fn after_greeting(&self, messages: &[Vec<u8>]) -> Step {
        let same = |at| messages.iter().all(|message| word(message, at) == word(&messages[0], at));
        if same(1) && same(2) {
            return Step::Agreed(self.count);
        }
        let low = messages.iter().map(|message| word(message, 0)).max().unwrap_or(0);
        let high = messages.iter().map(|message| word(message, 1)).min().unwrap_or(0);
        if high < low {
            return unknown(low);
        }
        self.ask(Round::Hashes { low, high, is_low_agreed: false })
    }

    fn after_hashes(
        &self,
        messages: &[Vec<u8>],
        (low, high): (u64, u64),
        is_low_agreed: bool,
    ) -> Step {
        let differs = |at: usize| {
            messages.iter().any(|message| word(message, 2 + at) != word(&messages[0], 2 + at))
        };
        let known: Vec<u64> = places(low, high).collect();
        let found = (0..known.len()).find(|&at| differs(at));
        match found {
            Some(0) if !is_low_agreed => unknown(low),
            Some(at) => {
                let (low, high) = (known[at.saturating_sub(1)], known[at]);
                if high - low <= 1 {
                    self.ask(Round::Call { number: low })
                } else {
                    self.ask(Round::Hashes { low, high, is_low_agreed: true })
                }
            }
            // They agree as far as the shortest goes, so that the next call is the first to differ.
            None => self.ask(Round::Call { number: high }),
        }
    }
}

/// The ranks parted before the first call that all of them remember.
fn unknown(remembered_from: u64) -> Step {
    Step::Differs(Divergence { call: None, remembered_from, ranks: Vec::new() })
}

/// The places at which hashes are compared, both ends among them.
fn places(low: u64, high: u64) -> impl Iterator<Item = u64> {
    let distance = high - low;
    let steps = distance.clamp(1, PROBES);
    let at =
        move |step: u64| low + (u128::from(distance) * u128::from(step) / u128::from(steps)) as u64;
    (0..=steps).map(at)
}

fn word(message: &[u8], at: usize) -> u64 {
    let from = HEAD_BYTES + 8 * at;
    u64::from_le_bytes(message[from..from + 8].try_into().expect("eight bytes"))
}

fn told_call(message: &[u8]) -> RankCall {
    let call = Call::of_words([0, 1, 2, 3].map(|at| word(message, at)));
    let text = &message[HEAD_BYTES + WORDS_BYTES..];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    RankCall { call, stack: String::from_utf8_lossy(&text[..end]).into_owned() }
}

/// As much of a text as fits, in whole lines where there are any.
fn fitting(text: &str, room: usize) -> &str {
    if text.len() <= room {
        return text;
    }
    let end = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    let cut = &text[..end];
    cut.rfind('\n').map_or(cut, |line| &cut[..line])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search among ranks until it ends, and says how many rounds it took.
    fn search(ranks: &[Sequence]) -> (Step, u32) {
        let mut searches: Vec<Search> = ranks.iter().map(Search::begin).collect();
        for round in 1.. {
            let each = searches.iter().zip(ranks);
            let messages: Vec<Vec<u8>> = each
                .map(|(search, sequence)| {
                    let stack = search.wants_stack().map(|number| format!("call {number}"));
                    search.message(sequence, stack.as_deref().unwrap_or(""))
                })
                .collect();
            let steps: Vec<Step> =
                searches.iter().map(|search| search.hear(&messages).unwrap()).collect();
            match &steps[0] {
                Step::Ask(_) => {
                    searches = steps
                        .into_iter()
                        .map(|step| match step {
                            Step::Ask(search) => search,
                            other => panic!("one asks on, another says {other:?}"),
                        })
                        .collect();
                }
                _ => return (steps.into_iter().next_back().unwrap(), round),
            }
        }
        unreachable!()
    }

    fn calls(count: u64, odd: Option<u64>) -> Sequence {
        let mut sequence = Sequence::default();
        for number in 0..count {
            let number = if odd == Some(number) { u64::MAX } else { number };
            sequence.note(Call::Free { number });
        }
        sequence
    }

    #[test]
    fn ranks_that_did_the_same_agree_at_once() {
        let (step, rounds) = search(&[calls(1000, None), calls(1000, None), calls(1000, None)]);
        assert!(matches!(step, Step::Agreed(1000)) && rounds == 1, "{step:?} in {rounds} rounds");
    }

    #[test]
    fn the_first_call_that_differs_is_found_wherever_it_is() {
        for count in [1, 2, 3, 31, 32, 33, 100, 5000] {
            for odd in [0, 1, 2, count / 2, count - 1].into_iter().filter(|&odd| odd < count) {
                let (step, rounds) = search(&[calls(count, None), calls(count, Some(odd))]);
                let Step::Differs(found) = step else { panic!("{step:?}") };
                assert_eq!(found.call, Some(odd), "of {count} calls");
                assert_eq!(found.ranks[1].call, Some(Call::Free { number: u64::MAX }));
                assert_eq!(found.ranks[0].stack, format!("call {odd}"));
                assert!(rounds <= 6, "{rounds} rounds for {count} calls");
            }
        }
    }

    #[test]
    fn a_rank_that_made_fewer_calls_is_named_at_the_first_that_it_lacks() {
        let (step, _) = search(&[calls(50, None), calls(20, None), calls(50, None)]);
        let Step::Differs(found) = step else { panic!("{step:?}") };
        assert_eq!((found.call, found.odd_ranks()), (Some(20), vec![1]));
        assert_eq!(found.ranks[1], RankCall { call: None, stack: String::new() });
    }

    #[test]
    fn a_difference_that_was_forgotten_is_said_to_be() {
        let mut ranks = [calls(50, None), calls(50, Some(3))];
        ranks[1].forget_before(10);
        let (step, _) = search(&ranks);
        let Step::Differs(found) = step else { panic!("{step:?}") };
        assert_eq!((found.call, found.remembered_from), (None, 10));
        assert!(found.to_string().contains("before call 10"));
    }

    #[test]
    fn other_bytes_are_refused() {
        let (sequence, search) = (calls(3, None), Search::begin(&calls(3, None)));
        let fine = search.message(&sequence, "");
        let garbled = search.hear(&[fine.clone(), fine[1..].to_vec()]).unwrap_err();
        assert_eq!(garbled, Garbled { rank: 1 });
        let other = Search { round: Round::Call { number: 1 }, count: 3 };
        let garbled = search.hear(&[fine, other.message(&sequence, "")]).unwrap_err();
        assert_eq!(garbled, Garbled { rank: 1 });
    }

    #[test]
    fn a_long_stack_is_cut_between_lines() {
        let stack = "ein Wörtchen\n".repeat(200);
        let cut = fitting(&stack, 100);
        assert!(cut.len() <= 100 && cut.ends_with("Wörtchen"), "{cut}");
    }
}
