//! Arenas: the ranges of addresses that expandable segments reach over, told by what was ever
//! mapped.

use larder_study::timeline::Stretch;

/// A range in which memory was mapped and unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    pub(crate) addr: u64,
    pub(crate) end: u64,
    pub(crate) lane: u32,
}

/// The arenas by their addresses. What touches and is of one lane is one.
pub(crate) fn arenas(stretches: &[Stretch]) -> Vec<Arena> {
    let mut parts: Vec<&Stretch> = stretches.iter().filter(|part| part.expandable).collect();
    parts.sort_unstable_by_key(|part| (part.addr, part.size_bytes));
    let mut arenas: Vec<Arena> = Vec::new();
    for part in parts {
        let end = part.addr + part.size_bytes;
        match arenas.last_mut() {
            Some(last) if part.addr <= last.end && part.lane == last.lane => {
                last.end = last.end.max(end);
            }
            _ => arenas.push(Arena { addr: part.addr, end, lane: part.lane }),
        }
    }
    arenas
}

/// The number of the arena in which a stretch lies, counted from 1; 0 for a fixed segment.
pub(crate) fn arena_of(arenas: &[Arena], stretch: &Stretch) -> u64 {
    if !stretch.expandable {
        return 0;
    }
    arenas.partition_point(|arena| arena.addr <= stretch.addr) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_one_arena() {
        let part = |addr, expandable| Stretch {
            begin: 0,
            end: 9,
            lane: 0,
            expandable,
            addr,
            size_bytes: 10,
        };
        let parts = [part(100, true), part(50, true), part(110, true), part(60, false)];
        let found = arenas(&parts);
        assert_eq!(
            found.iter().map(|arena| (arena.addr, arena.end)).collect::<Vec<_>>(),
            [(50, 60), (100, 120)]
        );
        assert_eq!(parts.each_ref().map(|part| arena_of(&found, part)), [2, 1, 2, 0]);
    }
}
