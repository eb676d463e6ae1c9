//! Sleep and wake: regions of tags, and memory that goes to the device and keeps its addresses.

use larder_core::allocator::sleep::{SleepStats as CoreStats, Slept as CoreSlept, Which};
use larder_core::{Allocator, Keep};

use crate::border::{Held, Out, Problem, Status, Text, guard};
use crate::larder::Larder;

/// `larder_keep`
pub(crate) mod keep {
    pub(crate) const CONTENTS: u32 = 0;
    pub(crate) const NOTHING: u32 = 1;
    pub(crate) const ZEROS: u32 = 2;
    pub(crate) const AS_TAGGED: u32 = 3;
}

/// `larder_slept`
#[allow(clippy::struct_field_names)] // Units come last.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Slept {
    pub(crate) asleep_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) plain_bytes: u64,
}

impl From<CoreSlept> for Slept {
    fn from(slept: CoreSlept) -> Slept {
        let CoreSlept { asleep_bytes, kept_bytes, plain } = slept;
        let plain_bytes = plain.iter().map(|span| span.size_bytes).sum();
        Slept { asleep_bytes, kept_bytes, plain_bytes }
    }
}

/// `larder_sleep_stats`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SleepStats {
    pub(crate) asleep_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) spare_bytes: u64,
    pub(crate) generation: u64,
}

impl From<CoreStats> for SleepStats {
    fn from(stats: CoreStats) -> SleepStats {
        let CoreStats { asleep_bytes, used_bytes, kept_bytes, spare_bytes, generation, .. } = stats;
        SleepStats { asleep_bytes, used_bytes, kept_bytes, spare_bytes, generation }
    }
}

/// What becomes of contents; none where the tags say.
fn keep_of(number: u32) -> Result<Option<Keep>, Problem> {
    match number {
        keep::CONTENTS => Ok(Some(Keep::Contents)),
        keep::NOTHING => Ok(Some(Keep::Nothing)),
        keep::ZEROS => Ok(Some(Keep::Zeros)),
        keep::AS_TAGGED => Ok(None),
        _ => Err(Problem::Argument(format!("{number} is no larder_keep"))),
    }
}

fn tag_of(tag: Text) -> Result<String, Problem> {
    let name = tag.needed("tag")?;
    if name.contains(',') {
        return Err(Problem::Argument(format!("the name of a tag has no comma: {name:?}")));
    }
    Ok(name.to_owned())
}

fn which(tags: Text) -> Result<Which, Problem> {
    let names = tags.read("tags")?;
    Ok(names.map_or(Which::All, |names| Which::Tags(names.split(',').map(str::to_owned).collect())))
}

#[unsafe(no_mangle)]
extern "C" fn larder_region_begin(larder: Held<Larder>, tag: Text, keep: u32) -> Status {
    guard(|| {
        let (name, keep) = (tag_of(tag)?, keep_of(keep)?);
        let as_tagged = || Problem::Argument("a region says itself what is kept".to_owned());
        let keep = keep.ok_or_else(as_tagged)?;
        let allocators = larder.get("larder")?.allocators();
        allocators.iter().try_for_each(|allocator| allocator.begin_region(&name, keep))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_region_end(larder: Held<Larder>, tag: Text) -> Status {
    guard(|| {
        let name = tag_of(tag)?;
        let allocators = larder.get("larder")?.allocators();
        allocators.iter().try_for_each(|allocator| allocator.end_region(&name))?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_regions_leave(larder: Held<Larder>) -> Status {
    guard(|| {
        larder.get("larder")?.allocators().iter().for_each(Allocator::leave_regions);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_regions_return(larder: Held<Larder>) -> Status {
    guard(|| {
        let allocators = larder.get("larder")?.allocators();
        allocators.iter().try_for_each(Allocator::return_to_regions)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_sleep(
    larder: Held<Larder>,
    device: i32,
    tags: Text,
    keep: u32,
    out: Out<Slept>,
) -> Status {
    guard(|| {
        let (which, keep) = (which(tags)?, keep_of(keep)?);
        let slept = larder.get("larder")?.device(device)?.sleep(&which, keep)?;
        out.put_if_wanted(slept.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_wake(larder: Held<Larder>, device: i32, tags: Text) -> Status {
    guard(|| Ok(larder.get("larder")?.device(device)?.wake(&which(tags)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn larder_get_sleep_stats(
    larder: Held<Larder>,
    device: i32,
    out: Out<SleepStats>,
) -> Status {
    guard(|| {
        let out = out.wanted("out")?;
        out.put(larder.get("larder")?.device(device)?.sleep_stats().into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn larder_set_keep_limit(larder: Held<Larder>, device: i32, limit_bytes: u64) -> Status {
    guard(|| {
        let keeper = larder.get("larder")?.device(device)?.keeper();
        keeper.set_limit(limit_bytes).map_err(|error| Problem::Argument(error.to_string()))
    })
}
