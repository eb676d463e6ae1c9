//! Provenance: since when an allocation is there, and from which stack, as the recording tells it.

use std::collections::HashMap;

use larder_core::heap::State;
use larder_core::types::Addr;
use larder_snapshot::{Snapshot, StackId};

use super::Scene;
use crate::category::{Categories, Category, OwnRules};
use crate::recording::Origin;
use crate::workload::Workload;

/// Tells of each allocation of a workload where it comes from.
pub struct Provenance<'a> {
    origins: &'a [Origin],
    snapshot: Option<(&'a Snapshot, u32)>,
    /// The stacks of blocks that are older than the trace, by address.
    old_stacks: HashMap<u64, StackId>,
    /// Where the requests of the program begin: what stands before was there already.
    first_us: Option<u64>,
    categories: Categories,
}

/// Since when an allocation is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Whether it was there before the recording began.
    pub is_older: bool,
    /// Microseconds from the first entry of the trace, where that has times.
    pub elapsed_us: Option<u64>,
}

impl<'a> Provenance<'a> {
    /// With the snapshot that the workload comes from, and whose trace it was; a script has none.
    pub fn new(workload: &'a Workload, snapshot: Option<(&'a Snapshot, u32)>) -> Provenance<'a> {
        let mut old_stacks = HashMap::new();
        let mut first_us = None;
        if let Some((snapshot, device)) = snapshot {
            let segments = snapshot.segments.iter().filter(|segment| segment.device == device);
            for block in segments.flat_map(|segment| &segment.blocks) {
                old_stacks.extend(block.stack.map(|stack| (block.addr, stack)));
            }
            let first = snapshot.trace(device).and_then(<[_]>::first);
            first_us = first.filter(|entry| entry.has_time).map(|entry| entry.time_us);
        }
        let origins = &workload.origins;
        let provenance = Provenance {
            origins,
            snapshot,
            old_stacks,
            first_us,
            categories: Categories::default(),
        };
        provenance.with_rules(&OwnRules::default())
    }

    /// The same, with a person's own rules for what an allocation is for.
    #[must_use]
    pub fn with_rules(self, rules: &OwnRules) -> Provenance<'a> {
        let categories = self
            .snapshot
            .map(|(snapshot, device)| Categories::of(snapshot, device, self.origins, rules));
        Provenance { categories: categories.unwrap_or_default(), ..self }
    }

    /// What each allocation is for.
    pub fn categories(&self) -> &Categories {
        &self.categories
    }

    /// Since when an allocation is there, if the recording tells.
    pub fn since(&self, id: u64) -> Option<Since> {
        match *self.origins.get(id as usize)? {
            Origin::Before(_) => Some(Since { is_older: true, elapsed_us: None }),
            Origin::Entry(index) => {
                let (snapshot, device) = self.snapshot?;
                let entry = snapshot.trace(device)?.get(index)?;
                let elapsed_us = self.first_us.filter(|_| entry.has_time);
                let elapsed_us = elapsed_us.map(|first| entry.time_us.saturating_sub(first));
                Some(Since { is_older: false, elapsed_us })
            }
        }
    }

    /// The call stack of an allocation, if it was recorded and has any frame.
    pub fn stack(&self, id: u64) -> Option<StackId> {
        let (snapshot, device) = self.snapshot?;
        let stack = match *self.origins.get(id as usize)? {
            Origin::Before(addr) => self.old_stacks.get(&addr).copied(),
            Origin::Entry(index) => snapshot.trace(device)?.get(index)?.stack,
        };
        stack.filter(|&stack| snapshot.stack(stack).len() > 0)
    }

    /// The frames of a stack that a person looks for, innermost first: the innermost that has a
    /// file, and those outside of installed packages. Where there are none of these, all that have
    /// a file, or all.
    pub fn frames(&self, stack: StackId) -> Vec<String> {
        let Some((snapshot, _)) = self.snapshot else { return Vec::new() };
        let (mut own, mut named, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for frame in snapshot.stack(stack) {
            let (name, path) = (snapshot.text(frame.name), snapshot.text(frame.filename));
            if matches!(path, "" | "??") {
                all.push(name.to_owned());
                continue;
            }
            let file = path.rsplit('/').next().unwrap_or(path);
            let words = format!("{file}:{} {name}", frame.line);
            match is_packaged(path) {
                true => named.push(words.clone()),
                // The one that the program called into comes before the program's own.
                false if own.is_empty() => {
                    own.extend(named.iter().take(1).chain([&words]).cloned());
                }
                false => own.push(words.clone()),
            }
            all.push(words);
        }
        match (own.is_empty(), named.is_empty()) {
            (true, true) => all,
            (true, false) => named,
            (false, _) => own,
        }
    }
}

/// Whether a file is of a package that was installed, and not of the program.
fn is_packaged(path: &str) -> bool {
    ["/site-packages/", "/dist-packages/", "/lib/python"].iter().any(|part| path.contains(part))
}

/// Live memory that came from one place of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The stack, where the recording has one.
    pub stack: Option<StackId>,
    /// The size of each, where there is no stack to tell them apart by.
    pub size_bytes: Option<u64>,
    /// What they are for.
    pub category: Category,
    /// How many allocations.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The operation that asked for the oldest of them, from 0.
    pub oldest: usize,
    /// The name of that one.
    pub oldest_id: u64,
}

/// Who holds the live memory, most first: by stack and what it is for, and what has no
/// stack by size.
pub fn holders(scene: &Scene, provenance: &Provenance<'_>) -> Vec<Holder> {
    let mut holders: HashMap<(Option<StackId>, Option<u64>, Category), Holder> = HashMap::new();
    for block in scene.segments.iter().flat_map(|segment| &segment.blocks) {
        let id = scene.live.get(&Addr(block.span.addr.0)).filter(|_| block.state == State::Live);
        let Some(&id) = id else { continue };
        let stack = provenance.stack(id);
        let size_bytes = stack.is_none().then_some(block.requested_bytes);
        let born = scene.born.get(&id).copied().unwrap_or(0);
        let category = provenance.categories.get(id);
        let holder = holders.entry((stack, size_bytes, category)).or_insert(Holder {
            stack,
            size_bytes,
            category,
            count: 0,
            bytes: 0,
            oldest: born,
            oldest_id: id,
        });
        holder.count += 1;
        holder.bytes += block.span.size_bytes;
        if born < holder.oldest {
            (holder.oldest, holder.oldest_id) = (born, id);
        }
    }
    let mut holders: Vec<Holder> = holders.into_values().collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.oldest));
    holders
}
