//! Random programs that put memory to sleep and wake it, beside a naive model: a list of blocks,
//! each with what was written to it, its tag, and whether it sleeps.
//!
//! Half of the programs meet faults: any device call may fail. A sleep or a wake that fails has
//! changed nothing, whatever call it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_core::allocator::sleep::Which;
use larder_core::error::{Error, SleepProblem};
use larder_core::heap::Filter;
use larder_core::types::{KIB, MIB, PoolId, Span};
use larder_core::{Addr, Allocator, Config, Keep, Policy, StreamId};
use larder_sim::random::Random;
use larder_sim::{CallKind, Fault, FaultPlan, SimDevice, SimOptions};

use crate::soak::contents;

/// The memory of the device.
const MEMORY_BYTES: u64 = 160 * MIB;
const STREAMS: u64 = 3;
/// The stream that is captured.
const CAPTURED: StreamId = StreamId(2);
const TAGS: [&str; 3] = ["weights", "kv_cache", "graphs"];
/// A pool that the program makes for itself.
const OWN_POOL: PoolId = PoolId(0, 5);
/// The pool of the program's graphs, which it captures in a region.
const GRAPHS: PoolId = PoolId(3, 0);
/// A call fails this often, where any may.
const FAULTS: f64 = 0.01;
/// What is written last is what a block is checked for: with this added where it was cleared.
const CLEARED: u64 = u64::MAX;

/// What was seen, so that runs that never got anywhere are found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps that were taken.
    pub steps: u64,
    /// Calls that put memory to sleep.
    pub sleeps: u64,
    /// Calls that woke memory.
    pub wakes: u64,
    /// Sleeps and wakes that failed.
    pub refused: u64,
    /// Wakes for which the device had no room.
    pub short: u64,
    /// Blocks that were freed in their sleep.
    pub freed_asleep: u64,
    /// Blocks whose contents were looked at after they woke.
    pub found_again: u64,
    /// Graph captures.
    pub captures: u64,
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.steps += other.steps;
        self.sleeps += other.sleeps;
        self.wakes += other.wakes;
        self.refused += other.refused;
        self.short += other.short;
        self.freed_asleep += other.freed_asleep;
        self.found_again += other.found_again;
        self.captures += other.captures;
    }
}

/// Where a block's memory is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Default,
    Tag(usize),
    Own,
    Graphs,
}

/// A block, as the model knows it.
#[derive(Clone, Copy, Debug)]
struct Block {
    span: Span,
    home: Home,
    /// By which its contents are told from all others'; none if there is anything.
    written: Option<u64>,
    asleep: bool,
    /// What becomes of its contents while it sleeps.
    keep: Keep,
}

struct Program {
    random: Random,
    device: Arc<SimDevice>,
    allocator: Arc<Allocator>,
    /// By when they were made.
    blocks: BTreeMap<u64, Block>,
    next: u64,
    keeps: [Keep; 3],
    has_faults: bool,
    generation: u64,
    capturing: bool,
    /// Blocks were freed that another stream uses: some may be counted as in use yet.
    waits: bool,
    report: Report,
}

/// Runs the program of a seed; or says, with the seed, what did not hold.
pub fn run(seed: u64, steps: usize) -> Result<Report, String> {
    let mut program = Program::new(seed);
    for step in 0..steps {
        let said = program.step();
        said.map_err(|said| format!("seed {seed}, step {step}: {said}"))?;
    }
    program.end().map_err(|said| format!("seed {seed}, at the end: {said}"))?;
    Ok(program.report)
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut random = Random::new(seed);
        let policies =
            [Policy::larder(), Policy::tight(), Policy::torch_2_11(), Policy::torch_2_13()];
        let policy = policies[(seed % 4) as usize].clone();
        let settings = *random.pick(&["", "expandable_segments:True"]);
        let config = Config::parse(settings).expect("settings that can be read");
        let options = SimOptions::default().memory_bytes(MEMORY_BYTES);
        let device = Arc::new(SimDevice::new(options));
        let allocator = Arc::new(Allocator::new(device.clone(), config, policy));
        let has_faults = (seed / 4) % 2 == 1;
        let program = Program {
            keeps: [Keep::Contents, *random.pick(&[Keep::Nothing, Keep::Zeros]), Keep::Contents],
            random,
            device,
            allocator,
            blocks: BTreeMap::new(),
            next: 1,
            has_faults,
            generation: 0,
            capturing: false,
            waits: false,
            report: Report::default(),
        };
        program.allocator.add_pool_use(OWN_POOL).expect("a new pool");
        program.set_faults(true);
        program
    }

    fn set_faults(&self, on: bool) {
        let mut plan = FaultPlan::new(self.report.steps);
        if on && self.has_faults {
            for kind in CallKind::ALL {
                plan = plan.fail_sometimes(kind, FAULTS, Fault::Other);
            }
        }
        self.device.set_faults(plan);
    }

    fn step(&mut self) -> Result<(), String> {
        self.report.steps += 1;
        match self.random.below(100) {
            0..40 => self.malloc()?,
            40..65 => self.free()?,
            65..72 => self.use_elsewhere()?,
            72..80 => self.sleep()?,
            80..90 => self.wake()?,
            90..93 => self.tenant(),
            93..96 => self.capture()?,
            96..98 => {
                // A device that refuses is asked again another time.
                let _ = self.allocator.empty_cache();
            }
            _ => (0..STREAMS).for_each(|stream| self.device.sync(StreamId(stream))),
        }
        self.check()
    }

    fn malloc(&mut self) -> Result<(), String> {
        let size_bytes = match self.random.below(4) {
            0 => self.random.between(1, 4 * KIB),
            1 => self.random.between(4 * KIB, MIB),
            _ => self.random.between(MIB, 12 * MIB),
        };
        let home = match self.random.below(8) {
            0..3 => Home::Default,
            3..7 => Home::Tag(self.random.below(2) as usize),
            _ => Home::Own,
        };
        let stream = StreamId(if self.capturing { 0 } else { self.random.below(2) });
        let made = match home {
            Home::Default | Home::Graphs => self.allocator.malloc(size_bytes, stream),
            Home::Tag(tag) => {
                let malloc = || self.allocator.malloc(size_bytes, stream);
                self.allocator.region(TAGS[tag], self.keeps[tag], malloc).and_then(|made| made)
            }
            Home::Own if self.capturing => return Ok(()),
            Home::Own => self.malloc_own(size_bytes, stream),
        };
        // Want of memory is no mistake, nor is a device's refusal.
        if let Ok(addr) = made {
            self.note(addr, home)?;
        }
        Ok(())
    }

    fn malloc_own(&self, size_bytes: u64, stream: StreamId) -> Result<Addr, Error> {
        self.allocator.begin_pool(OWN_POOL, Filter::Thread(std::thread::current().id()))?;
        let made = self.allocator.malloc(size_bytes, stream);
        self.allocator.end_pool(OWN_POOL)?;
        self.allocator.drop_pool_use(OWN_POOL)?;
        made
    }

    /// A block was made: it lies on no other, and is written to.
    fn note(&mut self, addr: Addr, home: Home) -> Result<(), String> {
        let size_bytes = self.allocator.usable_bytes(addr).map_err(|error| error.to_string())?;
        let span = Span::new(addr, size_bytes);
        if let Some(other) = self.blocks.values().find(|block| block.span.overlaps(span)) {
            return Err(format!("{span:?} lies on {other:?}"));
        }
        let id = self.next;
        self.next += 1;
        contents::fill(&self.device, span, id)?;
        let keep = self.keep_of(home);
        let block = Block { span, home, written: Some(id), asleep: false, keep };
        self.blocks.insert(id, block);
        Ok(())
    }

    fn keep_of(&self, home: Home) -> Keep {
        match home {
            Home::Tag(tag) => self.keeps[tag],
            Home::Default | Home::Own | Home::Graphs => Keep::Contents,
        }
    }

    fn pick(&mut self) -> Option<u64> {
        let ids: Vec<u64> = self.blocks.keys().copied().collect();
        if ids.is_empty() { None } else { Some(*self.random.pick(&ids)) }
    }

    fn free(&mut self) -> Result<(), String> {
        let Some(id) = self.pick() else { return Ok(()) };
        let block = self.blocks[&id];
        match self.allocator.free(block.span.addr) {
            Ok(()) => {
                self.blocks.remove(&id);
                self.report.freed_asleep += u64::from(block.asleep);
            }
            Err(Error::Device { .. }) => {}
            Err(error) => return Err(format!("a free of {block:?} failed: {error}")),
        }
        Ok(())
    }

    fn use_elsewhere(&mut self) -> Result<(), String> {
        let Some(id) = self.pick() else { return Ok(()) };
        let block = self.blocks[&id];
        // Nothing uses what sleeps.
        if block.asleep || self.capturing {
            return Ok(());
        }
        let stream = StreamId(self.random.below(2));
        match self.allocator.record_stream(block.span.addr, stream) {
            Ok(()) => {
                self.waits = true;
                self.device.issue(stream);
                Ok(())
            }
            Err(Error::Device { .. }) => Ok(()),
            Err(error) => Err(format!("a use of {block:?} failed: {error}")),
        }
    }

    /// Whose memory is meant, and which blocks of the model that are.
    fn which(&mut self) -> (Which, fn(Home) -> bool) {
        let tags = self.allocator.tags();
        let has = |name: &str| tags.iter().any(|tag| tag.name == name);
        match self.random.below(5) {
            0 if has(TAGS[0]) => (Which::tag(TAGS[0]), |home| home == Home::Tag(0)),
            1 if has(TAGS[1]) => (Which::tag(TAGS[1]), |home| home == Home::Tag(1)),
            2 if has(TAGS[2]) => (Which::tag(TAGS[2]), |home| home == Home::Graphs),
            3 => (Which::Pool(OWN_POOL), |home| home == Home::Own),
            _ => (Which::All, |_| true),
        }
    }

    fn sleep(&mut self) -> Result<(), String> {
        let (which, is_meant) = self.which();
        let keep = self.random.chance(0.2).then_some(Keep::Zeros);
        match self.allocator.sleep(&which, keep) {
            Ok(slept) => {
                if self.capturing {
                    return Err("memory fell asleep in a capture".to_owned());
                }
                self.report.sleeps += 1;
                for block in self.blocks.values_mut().filter(|block| is_meant(block.home)) {
                    let stays = slept.plain.iter().any(|span| span.covers(block.span));
                    if stays && matches!(block.home, Home::Tag(_) | Home::Graphs) {
                        return Err(format!("{block:?} of a tag cannot sleep"));
                    }
                    if !stays && !block.asleep {
                        block.asleep = true;
                        block.keep = keep.unwrap_or(match block.home {
                            Home::Tag(tag) => self.keeps[tag],
                            _ => Keep::Contents,
                        });
                    }
                }
                Ok(())
            }
            Err(error) => self.refuse("sleep", &error),
        }
    }

    fn wake(&mut self) -> Result<(), String> {
        let (which, is_meant) = self.which();
        match self.allocator.wake(&which) {
            Ok(()) => {
                let mut woken = 0;
                let meant = self.blocks.values_mut().filter(|block| is_meant(block.home));
                for block in meant.filter(|block| block.asleep) {
                    woken += 1;
                    block.asleep = false;
                    block.written = match block.keep {
                        Keep::Contents => block.written,
                        Keep::Nothing => None,
                        Keep::Zeros => Some(CLEARED),
                    };
                }
                self.report.wakes += u64::from(woken > 0);
                self.report.found_again += woken;
                let generation = self.allocator.sleep_stats().generation;
                if generation < self.generation || woken > 0 && generation == self.generation {
                    return Err(format!("{woken} blocks woke in generation {generation}"));
                }
                self.generation = generation;
                Ok(())
            }
            Err(error) => self.refuse("wake", &error),
        }
    }

    /// A sleep or a wake failed, which it may for few reasons.
    fn refuse(&mut self, call: &str, error: &Error) -> Result<(), String> {
        self.report.refused += 1;
        match error {
            Error::Sleep(SleepProblem::NoRoom { needed_bytes, free_bytes }) => {
                self.report.short += 1;
                if *needed_bytes <= *free_bytes {
                    return Err(format!("{call}: {needed_bytes} bytes fit into {free_bytes}"));
                }
                Ok(())
            }
            Error::Sleep(SleepProblem::Captured) if self.capturing => Ok(()),
            Error::Device { .. } if self.has_faults => Ok(()),
            error => Err(format!("{call} failed: {error}")),
        }
    }

    fn tenant(&mut self) {
        let size_bytes = self.random.between(MIB, 60 * MIB);
        if self.random.chance(0.5) {
            self.device.tenant_take(size_bytes);
        } else {
            self.device.tenant_give(size_bytes);
        }
    }

    /// A capture in a region begins or ends. Its pool sleeps with the region's tag.
    fn capture(&mut self) -> Result<(), String> {
        if self.capturing {
            self.capturing = false;
            self.device.end_capture(CAPTURED).map_err(|error| error.to_string())?;
            self.allocator.end_pool(GRAPHS).map_err(|error| error.to_string())?;
            // What the capture used is gone with it.
            return self.allocator.drop_pool_use(GRAPHS).map_err(|error| error.to_string());
        }
        if self.allocator.pool_uses(GRAPHS).is_none() {
            self.allocator.add_pool_use(GRAPHS).map_err(|error| error.to_string())?;
        }
        let sleeps = self.blocks.values().any(|block| block.home == Home::Graphs && block.asleep);
        let begin = || self.allocator.begin_pool(GRAPHS, Filter::Capture(CAPTURED));
        let begun = self.allocator.region(TAGS[2], self.keeps[2], begin);
        match begun.and_then(|begun| begun) {
            Ok(()) if sleeps => Err("a capture began on what sleeps".to_owned()),
            Ok(()) => {
                self.device.begin_capture(CAPTURED).map_err(|error| error.to_string())?;
                self.capturing = true;
                self.report.captures += 1;
                let made = self.allocator.malloc(self.random.between(1, 6 * MIB), CAPTURED);
                made.map_or(Ok(()), |addr| self.note(addr, Home::Graphs))
            }
            // Its free memory may sleep where no block does.
            Err(Error::Pool { .. }) => Ok(()),
            Err(error) => Err(format!("a capture could not begin: {error}")),
        }
    }

    /// The allocator agrees with itself and with the model, and so does the device.
    fn check(&mut self) -> Result<(), String> {
        self.allocator.check().map_err(|unsound| unsound.to_string())?;
        let size_bytes = |block: &&Block| block.span.size_bytes;
        let allocated_bytes: u64 = self.blocks.values().map(|block| block.span.size_bytes).sum();
        let counted_bytes = self.allocator.stats().allocated_bytes.all.current as u64;
        if counted_bytes != allocated_bytes {
            return Err(format!("{counted_bytes} bytes are allocated, not {allocated_bytes}"));
        }
        let asleep = self.blocks.values().filter(|block| block.asleep);
        let asleep_bytes: u64 = asleep.map(|block| size_bytes(&block)).sum();
        let used_bytes = self.allocator.sleep_stats().used_bytes;
        if used_bytes < asleep_bytes || (!self.waits && used_bytes != asleep_bytes) {
            return Err(format!("{used_bytes} bytes in use sleep, not {asleep_bytes}"));
        }
        for block in self.blocks.values() {
            self.check_block(block)?;
        }
        Ok(())
    }

    fn check_block(&self, block: &Block) -> Result<(), String> {
        let ends = [block.span.addr, Addr(block.span.end().0 - 1)];
        if block.asleep {
            let seen = ends.into_iter().find(|&addr| self.device.read(addr).is_some());
            // A page that the device would not unmap may show what was there.
            let is_gone = seen.is_none() || self.has_faults;
            return is_gone.then_some(()).ok_or_else(|| format!("{block:?} can be read"));
        }
        match block.written {
            Some(CLEARED) => {
                let zero = ends.into_iter().all(|addr| self.device.read(addr) == Some(0));
                zero.then_some(()).ok_or_else(|| format!("{block:?} was not cleared"))
            }
            Some(id) => contents::check(&self.device, block.span, id),
            None => {
                let there = ends.into_iter().all(|addr| self.device.read(addr).is_some());
                there.then_some(()).ok_or_else(|| format!("{block:?} cannot be used"))
            }
        }
    }

    /// The troubles end: all wakes, is as it was, and goes back to the device.
    fn end(&mut self) -> Result<(), String> {
        self.has_faults = false;
        self.set_faults(false);
        if self.capturing {
            self.capture()?;
        }
        self.device.tenant_give(u64::MAX);
        // What was put off or refused goes now.
        self.allocator.empty_cache().map_err(|error| error.to_string())?;
        while let Err(error) = self.allocator.wake(&Which::All) {
            // More may be in use than the device has: what is awake makes room, and where that is
            // nothing, what sleeps needs less.
            let awake = self.blocks.iter().find(|(_, block)| !block.asleep);
            let next = awake.or(self.blocks.iter().next()).map(|(&id, _)| id);
            let is_short = matches!(error, Error::Sleep(SleepProblem::NoRoom { .. }));
            let block = next.filter(|_| is_short).and_then(|id| self.blocks.remove(&id));
            let block = block.ok_or_else(|| format!("not all can wake: {error}"))?;
            self.allocator.free(block.span.addr).map_err(|error| error.to_string())?;
        }
        let sleepers: Vec<u64> =
            self.blocks.iter().filter(|(_, block)| block.asleep).map(|(&id, _)| id).collect();
        for id in sleepers {
            let block = self.blocks.get_mut(&id).expect("it is listed");
            block.asleep = false;
            block.written = match block.keep {
                Keep::Contents => block.written,
                Keep::Nothing => None,
                Keep::Zeros => Some(CLEARED),
            };
        }
        self.check()?;
        let stats = self.allocator.sleep_stats();
        if (stats.asleep_bytes, stats.kept_bytes) != (0, 0) {
            return Err(format!("all is awake, and yet: {stats:?}"));
        }
        for block in std::mem::take(&mut self.blocks).into_values() {
            self.allocator.free(block.span.addr).map_err(|error| error.to_string())?;
        }
        (0..STREAMS).for_each(|stream| self.device.sync(StreamId(stream)));
        for pool in [OWN_POOL, GRAPHS] {
            while self.allocator.pool_uses(pool).is_some_and(|uses| uses > 0) {
                self.allocator.drop_pool_use(pool).map_err(|error| error.to_string())?;
            }
        }
        // Tags' pools stay: what they have goes to sleep first.
        self.allocator.sleep(&Which::All, Some(Keep::Nothing)).map_err(|e| e.to_string())?;
        self.allocator.empty_cache().map_err(|error| error.to_string())?;
        let used_bytes = self.device.used_bytes();
        if used_bytes > 0 {
            return Err(format!("{used_bytes} bytes are left on the device"));
        }
        self.allocator.check().map_err(|unsound| unsound.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_programs_find_what_they_left_when_it_wakes() {
        let asked = std::env::var("LARDER_SEED").ok();
        let asked = asked.map(|text| text.parse::<u64>().expect("LARDER_SEED is a seed"));
        let seeds = asked.map_or(1..=400, |seed| seed..=seed);
        let mut all = Report::default();
        for seed in seeds {
            match run(seed, 80) {
                Ok(report) => all += report,
                Err(said) => panic!("{said}"),
            }
        }
        if asked.is_some() {
            return;
        }
        // Programs that never got anywhere would prove nothing.
        let seen = [all.sleeps, all.wakes, all.refused, all.freed_asleep, all.found_again];
        assert!(seen.into_iter().all(|count| count > 300), "{all:?}");
        assert!(all.short > 20 && all.captures > 100, "{all:?}");
    }
}
