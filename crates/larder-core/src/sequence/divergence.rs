//! Divergence: where the ranks' calls part, and what each of them did there.

use std::collections::BTreeMap;
use std::fmt;

use crate::sequence::Call;
use crate::types::Bytes;

/// What one rank did at the call where the ranks part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankCall {
    /// The call; none if the rank has made fewer.
    pub call: Option<Call>,
    /// The stack of the call, the innermost frame first, if the rank kept a history with stacks.
    pub stack: String,
}

/// The first call that is not the same on all ranks. Every rank is told the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The number of the call; none where some rank no longer remembers it.
    pub call: Option<u64>,
    /// Up to here, nobody can tell: the ranks remember calls from this one on.
    pub remembered_from: u64,
    /// What each rank did there, in the order of the ranks; empty where the call is not known.
    pub ranks: Vec<RankCall>,
}

impl Divergence {
    /// The ranks that did what fewer of them did than anything else: those to look at first. Empty
    /// where that is a tie, or not known.
    pub fn odd_ranks(&self) -> Vec<usize> {
        let groups = self.groups();
        let sizes = || groups.iter().map(|(_, ranks)| ranks.len());
        let Some(most) = sizes().max() else { return Vec::new() };
        if sizes().filter(|&size| size == most).count() > 1 {
            return Vec::new();
        }
        let odd = groups.into_iter().filter(|(_, ranks)| ranks.len() < most);
        let mut ranks: Vec<usize> = odd.flat_map(|(_, ranks)| ranks).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Ranks that did the same, together, in the order of their first.
    fn groups(&self) -> Vec<(Option<Call>, Vec<usize>)> {
        let mut groups: BTreeMap<usize, (Option<Call>, Vec<usize>)> = BTreeMap::new();
        for (rank, at) in self.ranks.iter().enumerate() {
            let known = groups.values_mut().find(|(call, _)| *call == at.call);
            match known {
                Some((_, ranks)) => ranks.push(rank),
                None => _ = groups.insert(rank, (at.call, vec![rank])),
            }
        }
        groups.into_values().collect()
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(number) = self.call else {
            return write!(
                f,
                "the ranks of a symmetric pool parted before call {}, the first that all of them \
                 remember; sealing the pool more often would have named it",
                self.remembered_from
            );
        };
        write!(f, "the ranks of a symmetric pool part at call {number}: ")?;
        for (at, (call, ranks)) in self.groups().into_iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "; " })?;
            write_ranks(f, &ranks)?;
            write_call(f, call)?;
            let stack = &self.ranks[ranks[0]].stack;
            if !stack.is_empty() {
                write!(f, " in {}", stack.trim_end().replace('\n', " < "))?;
            }
        }
        Ok(())
    }
}

fn write_ranks(f: &mut fmt::Formatter<'_>, ranks: &[usize]) -> fmt::Result {
    f.write_str(if ranks.len() == 1 { "rank " } else { "ranks " })?;
    for (at, rank) in ranks.iter().enumerate() {
        f.write_str(match at {
            0 => "",
            _ if at + 1 == ranks.len() => " and ",
            _ => ", ",
        })?;
        write!(f, "{rank}")?;
    }
    f.write_str(" ")
}

fn write_call(f: &mut fmt::Formatter<'_>, call: Option<Call>) -> fmt::Result {
    match call {
        None => f.write_str("made no such call"),
        Some(Call::Begin { settings }) => {
            write!(f, "made the pool with settings of the mark {settings:016x}")
        }
        Some(Call::Request { size_bytes, segment, offset_bytes }) => {
            let size = Bytes(size_bytes);
            write!(f, "asked for {size} and got offset {offset_bytes} of segment {segment}")
        }
        Some(Call::Refused { size_bytes }) => {
            write!(f, "asked for {} and got no memory", Bytes(size_bytes))
        }
        Some(Call::Free { number }) => write!(f, "freed the block of call {number}"),
        Some(Call::Trim { segments }) => write!(f, "gave back {segments} segments"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(call: Option<Call>, stack: &str) -> RankCall {
        RankCall { call, stack: stack.to_owned() }
    }

    #[test]
    fn a_divergence_says_who_did_what() {
        let asked = Some(Call::Request { size_bytes: 4096, segment: 1, offset_bytes: 512 });
        let freed = Some(Call::Free { number: 9 });
        let ranks = vec![
            rank(asked, ""),
            rank(asked, ""),
            rank(freed, "forward (model.py:7)\nmain (run.py:1)\n"),
            rank(asked, ""),
        ];
        let divergence = Divergence { call: Some(17), remembered_from: 0, ranks };
        assert_eq!(divergence.odd_ranks(), [2]);
        assert_eq!(
            divergence.to_string(),
            "the ranks of a symmetric pool part at call 17: ranks 0, 1 and 3 asked for 4.00 KiB \
             and got offset 512 of segment 1; rank 2 freed the block of call 9 in forward \
             (model.py:7) < main (run.py:1)"
        );
        let tie = Divergence { ranks: vec![rank(asked, ""), rank(None, "")], ..divergence };
        assert!(tie.odd_ranks().is_empty());
        assert!(tie.to_string().ends_with("; rank 1 made no such call"));
    }
}
