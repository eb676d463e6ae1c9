//! Holdings: how much a program held at each moment by where it was asked for, as it asked: the
//! same under every allocator and all settings.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use larder_core::types::Bytes;
use larder_sim::script::Op;
use larder_snapshot::{Snapshot, StackId};

use crate::scene::Provenance;
use crate::workload::Workload;

/// How many frames name a stack.
const FRAMES_NAMED: usize = 3;

/// Where memory is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The same for the same place in whatever recording.
    pub mark: u64,
    /// The same where the lines of the program moved.
    pub loose_mark: u64,
    /// The frames that a person looks for, innermost first; or what it is where there is no stack.
    pub words: Vec<String>,
}

/// What a program asks for, request by request.
#[derive(Debug, Default)]
pub struct Holdings {
    /// The places, in the order in which they come first.
    pub places: Vec<Place>,
    /// The place of each request, in the order of the operations.
    requests: Vec<u32>,
}

/// How much of something there was, and the request behind which that was, from 0.
pub type Peak = (u64, usize);

/// The most that was held at once, and what each place held then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Most {
    /// In all.
    pub all: Peak,
    /// What each place held at that moment.
    pub then: Vec<u64>,
    /// The most that each place ever held.
    pub of_each: Vec<Peak>,
}

impl Holdings {
    /// By call stack, and by size where there is none.
    pub fn by_stack(workload: &Workload, snapshot: Option<(&Snapshot, u32)>) -> Holdings {
        let provenance = Provenance::new(workload, snapshot);
        let key = |id, size_bytes| match provenance.stack(id) {
            Some(stack) => (Some(stack), 0),
            None => (None, size_bytes),
        };
        let place = |(stack, size_bytes): (Option<StackId>, u64)| {
            let Some((stack, (snapshot, _))) = stack.zip(snapshot) else {
                return sized(size_bytes);
            };
            let (mark, loose_mark) = marks_of(snapshot, stack);
            let words = provenance.frames(stack).into_iter().take(FRAMES_NAMED).collect();
            Place { mark, loose_mark, words }
        };
        Holdings::by(workload, key, place)
    }

    /// By whatever key an allocation of a name and a size has, of each of which `place` says what
    /// it is.
    pub fn by<K: Copy + Eq + Hash>(
        workload: &Workload,
        key: impl Fn(u64, u64) -> K,
        place: impl Fn(K) -> Place,
    ) -> Holdings {
        let mut holdings = Holdings::default();
        let mut known: HashMap<K, u32> = HashMap::new();
        let mut marks: HashMap<u64, u32> = HashMap::new();
        for op in &workload.ops {
            let Op::Alloc { id, size_bytes, .. } = *op else { continue };
            let key = key(id, size_bytes);
            let number = *known.entry(key).or_insert_with(|| {
                let place = place(key);
                // Two stacks of a snapshot may be one in all but what is not kept.
                *marks.entry(place.mark).or_insert_with(|| {
                    holdings.places.push(place);
                    holdings.places.len() as u32 - 1
                })
            });
            holdings.requests.push(number);
        }
        holdings
    }

    /// Goes through the program: the place that changed, what it holds and what all hold from then
    /// on, behind how many requests. It ends when `told` says so.
    fn follow(&self, workload: &Workload, mut told: impl FnMut(u32, u64, u64, usize) -> bool) {
        let refused = workload.recording.as_ref().map_or(&[][..], |facts| &facts.refused);
        let mut live: HashMap<u64, (u32, u64)> = HashMap::new();
        let (mut held, mut all) = (vec![0_u64; self.places.len()], 0_u64);
        let mut request = 0;
        for op in &workload.ops {
            let is_done = match *op {
                Op::Alloc { id, size_bytes, .. } => {
                    let place = self.requests[request];
                    request += 1;
                    // The program never had what was refused.
                    if refused.binary_search(&id).is_ok() {
                        continue;
                    }
                    live.insert(id, (place, size_bytes));
                    held[place as usize] += size_bytes;
                    all += size_bytes;
                    told(place, held[place as usize], all, request - 1)
                }
                Op::Free { id } => {
                    let Some((place, size_bytes)) = live.remove(&id) else { continue };
                    held[place as usize] -= size_bytes;
                    all -= size_bytes;
                    told(place, held[place as usize], all, request.saturating_sub(1))
                }
                _ => continue,
            };
            if is_done {
                return;
            }
        }
    }

    /// The most that was held, in all and by each place.
    pub fn most(&self, workload: &Workload) -> Most {
        let mut all: Peak = (0, 0);
        let mut of_each: Vec<Peak> = vec![(0, 0); self.places.len()];
        self.follow(workload, |place, held, total, request| {
            if held > of_each[place as usize].0 {
                of_each[place as usize] = (held, request);
            }
            if total > all.0 {
                all = (total, request);
            }
            false
        });
        let mut then = vec![0; self.places.len()];
        self.follow(workload, |place, held, total, request| {
            then[place as usize] = held;
            total == all.0 && request == all.1
        });
        Most { all, then, of_each }
    }

    /// The first request behind which a place holds more than so much.
    pub fn first_above(&self, workload: &Workload, place: u32, bytes: u64) -> Option<usize> {
        let mut found = None;
        self.follow(workload, |which, held, _, request| {
            if which == place && held > bytes {
                found = Some(request);
            }
            found.is_some()
        });
        found
    }

    /// How many requests each place makes, and of how many bytes in all.
    pub fn asked(&self, workload: &Workload) -> Vec<(u64, u64)> {
        let mut asked = vec![(0_u64, 0_u64); self.places.len()];
        let allocs = workload.ops.iter().filter_map(|op| match *op {
            Op::Alloc { size_bytes, .. } => Some(size_bytes),
            _ => None,
        });
        for (&place, size_bytes) in self.requests.iter().zip(allocs) {
            asked[place as usize].0 += 1;
            asked[place as usize].1 += size_bytes;
        }
        asked
    }
}

/// What has no stack is told apart by its size.
fn sized(size_bytes: u64) -> Place {
    let mark = hashed(&("sized", size_bytes));
    let words = vec![format!("{} each, with no stack", Bytes(size_bytes))];
    Place { mark, loose_mark: mark, words }
}

/// The two marks of a stack: by names, files and lines, and without the lines.
fn marks_of(snapshot: &Snapshot, stack: StackId) -> (u64, u64) {
    let (mut exact, mut loose) = (DefaultHasher::new(), DefaultHasher::new());
    for frame in snapshot.stack(stack) {
        let named = (snapshot.text(frame.name), snapshot.text(frame.filename));
        named.hash(&mut loose);
        (named, frame.line).hash(&mut exact);
    }
    (exact.finish(), loose.finish())
}

fn hashed(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use larder_core::types::MIB;
    use larder_sim::script::Script;

    use super::*;

    #[test]
    fn the_most_of_each_and_what_each_held_at_the_peak() {
        let script = "alloc 1 2MiB 0\nalloc 2 2MiB 0\nfree 1\nalloc 3 5MiB 0\nfree 2\nfree 3\n";
        let ops = Script::parse(script).expect("a script");
        let workload = Workload { ops, ..Workload::default() };
        let holdings = Holdings::by_stack(&workload, None);
        let most = holdings.most(&workload);
        assert_eq!(most.all, (7 * MIB, 2));
        assert_eq!(most.then, [2 * MIB, 5 * MIB]);
        assert_eq!(most.of_each, [(4 * MIB, 1), (5 * MIB, 2)]);
        assert_eq!(holdings.first_above(&workload, 0, 3 * MIB), Some(1));
        assert_eq!(holdings.first_above(&workload, 1, 5 * MIB), None);
        assert_eq!(holdings.asked(&workload), [(2, 4 * MIB), (1, 5 * MIB)]);
    }
}
