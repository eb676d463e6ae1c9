//! One rank: carries out a plan in a symmetric pool, and does things of its own besides.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use larder_core::allocator::symmetric::SymmetricOptions;
use larder_core::device::DeviceError;
use larder_core::sequence::{Divergence, Position};
use larder_core::types::{KIB, MIB};
use larder_core::{Addr, Allocator, Config, Error, MemPool, Policy, StreamId};

use crate::cluster::commons::{COMMONS_CODE, Commons, SharedBytes};
use crate::cluster::plan::{ODD_BYTES, Plan, Step, Trouble};
use crate::cluster::{Failure, Gather};
use larder_sim::SimDevice;
use larder_sim::SimOptions;
use larder_sim::random::Random;

/// How a rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// It leaves the exchange, as if it had died. For ranks that are threads.
    Leave,
    /// Its process ends, at once and with no farewell.
    Abort,
}

/// What became of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Where each request that was served was put.
    pub positions: Vec<Position>,
    /// Requests for which there was no memory, on whatever rank.
    pub refused: u64,
    /// Times the ranks agreed.
    pub seals: u64,
    /// Segments that were made.
    pub segments: u64,
    /// Words that were read from other ranks' memory.
    pub words_read: u64,
    /// What the ranks were told when they parted.
    pub divergence: Option<Divergence>,
    /// On the rank that made a call otherwise: the number of that call.
    pub planted_call: Option<u64>,
    /// What it was told when a rank was gone.
    pub loss: Option<String>,
}

/// Why a rank carries out no more of its plan.
enum End {
    /// Something that must not be.
    Wrong(String),
    /// The ranks parted.
    Parted(Divergence),
    /// Ranks could not make a segment together; if they parted, a seal says where.
    Unequal,
    /// A rank is gone.
    Loss(String),
}

impl From<String> for End {
    fn from(words: String) -> End {
        End::Wrong(words)
    }
}

/// A rank at work.
struct Rank<'a> {
    plan: &'a Plan,
    number: usize,
    device: Arc<SimDevice>,
    allocator: Arc<Allocator>,
    gather: Arc<dyn Gather>,
    pool: MemPool,
    /// The live blocks of the pool.
    live: Vec<Addr>,
    /// Memory of its own.
    own: Vec<Addr>,
    /// It makes no call any more, but for seals.
    stopped: bool,
    /// What it does of its own follows from this.
    random: Random,
    bytes: Option<&'a SharedBytes>,
    report: Report,
}

/// Carries out a plan as one of its ranks. With a folder the ranks read each other's memory. Fails
/// with a sentence if something is not as it has to be; that the ranks parted, or that one was
/// lost, is in the report.
pub fn run_rank(
    plan: &Plan,
    number: usize,
    gather: Arc<dyn Gather>,
    death: Death,
    folder: Option<&Path>,
) -> Result<Report, Failure> {
    let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
    let options = SimOptions::default().memory_bytes(plan.memory_bytes[number]);
    let device = Arc::new(SimDevice::new(options));
    let policies = Policy::all();
    let policy = policies[plan.seed as usize % policies.len()].clone();
    let allocator = Arc::new(Allocator::new(device.clone(), Config::default(), policy));
    let commons = commons_of(plan, number, device.clone(), gather.clone(), death);
    let options = SymmetricOptions::default().growth_bytes(plan.growth_bytes);
    let pool = MemPool::symmetric(&allocator, Arc::new(commons), options);
    let pool = pool.map_err(|error| error.to_string())?;
    let shared = folder.map(|folder| SharedBytes::open(folder, plan.ranks)).transpose();
    let shared = shared.map_err(|error| error.to_string())?;
    let mut rank = Rank {
        plan,
        number,
        device,
        allocator,
        gather,
        pool,
        live: Vec::new(),
        own: Vec::new(),
        stopped: false,
        random: Random::new(seed),
        bytes: shared.as_ref(),
        report: Report::default(),
    };
    rank.carry_out()?;
    Ok(rank.clean_up()?)
}

fn commons_of(
    plan: &Plan,
    number: usize,
    device: Arc<SimDevice>,
    gather: Arc<dyn Gather>,
    death: Death,
) -> Commons {
    let commons = Commons::new(device, gather.clone());
    let Some(planted) = plan.planted.filter(|planted| planted.rank == number) else {
        return commons;
    };
    commons.midway(Box::new(move |segment| {
        if segment == planted.at {
            meet_trouble(planted.trouble, death, &*gather);
        }
    }))
}

/// What happens in the middle of making the segment that the plan names.
fn meet_trouble(trouble: Trouble, death: Death, gather: &dyn Gather) {
    match (trouble, death) {
        (Trouble::Late, _) => thread::sleep(Duration::from_millis(3)),
        (Trouble::Dies, Death::Leave) => gather.leave(),
        (Trouble::Dies, Death::Abort) => process::abort(),
        _ => {}
    }
}

impl Rank<'_> {
    /// Does all steps, up to where the ranks part or one is lost.
    fn carry_out(&mut self) -> Result<(), String> {
        let mut end = Ok(());
        for (at, &step) in self.plan.steps.iter().enumerate() {
            end =
                self.mind_own_business().map_err(End::from).and_then(|()| self.take_step(at, step));
            if end.is_err() {
                break;
            }
        }
        let end = match end {
            Err(End::Unequal) => self.seal(),
            end => end,
        };
        match end {
            Ok(()) => {}
            Err(End::Wrong(words)) => return Err(self.blame(&words)),
            Err(End::Unequal) => return Err(self.blame("a seal made a segment")),
            Err(End::Parted(divergence)) => self.report.divergence = Some(divergence),
            Err(End::Loss(words)) => self.report.loss = Some(words),
        }
        Ok(())
    }

    fn blame(&self, words: &str) -> String {
        format!("seed {}, rank {} of {}: {words}", self.plan.seed, self.number, self.plan.ranks)
    }

    fn take_step(&mut self, at: usize, step: Step) -> Result<(), End> {
        let planted = self.plan.planted.filter(|planted| {
            (planted.rank, planted.at) == (self.number, at as u64)
                && !matches!(planted.trouble, Trouble::Dies | Trouble::Late)
        });
        let mut step = step;
        if let Some(planted) = planted {
            self.report.planted_call = Some(self.calls()?);
            match (planted.trouble, step) {
                (Trouble::Stops, _) => self.stopped = true,
                (Trouble::Differs, Step::Ask { size_bytes }) => {
                    step = Step::Ask { size_bytes: size_bytes + 1 };
                }
                (Trouble::FreesAnother, Step::Free { at }) if self.live.len() > 1 => {
                    step = Step::Free { at: at + 1 };
                }
                _ => self.ask(ODD_BYTES)?,
            }
        }
        match step {
            Step::Ask { .. } | Step::Free { .. } | Step::Trim if self.stopped => Ok(()),
            Step::Ask { size_bytes } => self.ask(size_bytes),
            Step::Free { at } => self.free(at),
            Step::Trim => match self.pool.trim() {
                Ok(_) => Ok(()),
                Err(error) => Err(sort(&error)),
            },
            Step::Seal => {
                self.seal()?;
                self.read_others()
            }
        }
    }

    fn calls(&self) -> Result<u64, String> {
        self.pool.sequence().map(|state| state.calls).map_err(|error| error.to_string())
    }

    fn ask(&mut self, size_bytes: u64) -> Result<(), End> {
        let stream = StreamId(self.random.below(3));
        let asked = self.pool.scope(|| self.allocator.malloc(size_bytes, stream));
        match asked.and_then(|asked| asked) {
            Ok(addr) => {
                let position = self.pool.position_of(addr).map_err(|error| error.to_string())?;
                self.report.positions.push(position);
                self.write(position).map_err(|error| error.to_string())?;
                self.live.push(addr);
                Ok(())
            }
            Err(Error::OutOfMemory(_)) => {
                self.report.refused += 1;
                Ok(())
            }
            Err(error) => Err(sort(&error)),
        }
    }

    fn free(&mut self, at: u64) -> Result<(), End> {
        if self.live.is_empty() {
            return Ok(());
        }
        let addr = self.live.remove((at % self.live.len() as u64) as usize);
        self.allocator.free(addr).map_err(|error| End::Wrong(error.to_string()))
    }

    /// Compares the calls. A rank that was growing meanwhile answers with something else, and comes
    /// next time.
    fn seal(&mut self) -> Result<(), End> {
        loop {
            let gather = self.gather.clone();
            match self.pool.seal(|said| gather.gather(said)) {
                Ok(_) => {
                    self.report.seals += 1;
                    return Ok(());
                }
                Err(Error::Exchange(error)) => {
                    let words = error.to_string();
                    if !words.contains("no seal of this pool") {
                        return Err(End::Loss(words));
                    }
                }
                Err(Error::Diverged(divergence)) => return Err(End::Parted(*divergence)),
                Err(error) => return Err(End::Wrong(error.to_string())),
            }
        }
    }

    /// What a rank writes into a block of its own.
    fn word(&self, rank: usize, position: Position) -> u64 {
        let parts = [self.plan.seed, rank as u64, position.segment, position.offset_bytes];
        parts.into_iter().fold(position.generation, |sum, part| sum.wrapping_mul(0x100_0193) ^ part)
    }

    fn write(&self, position: Position) -> std::io::Result<()> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        let word = self.word(self.number, position);
        bytes.write(self.number, position.segment, position.offset_bytes, word)
    }

    /// Reads every live block at its place in every other rank's memory, where that rank has put
    /// its own.
    fn read_others(&mut self) -> Result<(), End> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        for &addr in &self.live {
            let position = self.pool.position_of(addr).map_err(|error| error.to_string())?;
            for rank in 0..self.plan.ranks {
                let (segment, offset_bytes) = (position.segment, position.offset_bytes);
                let word =
                    bytes.read(rank, segment, offset_bytes).map_err(|error| error.to_string())?;
                if word != self.word(rank, position) {
                    return Err(End::Wrong(format!(
                        "rank {rank} has another word at {position:?}"
                    )));
                }
                self.report.words_read += 1;
            }
        }
        // Nobody writes before all have read.
        match self.gather.gather(b"read") {
            Ok(_) => Ok(()),
            Err(error) => Err(End::Loss(error.to_string())),
        }
    }

    /// What no other rank does: work on streams, memory outside the pool, uses by other streams.
    fn mind_own_business(&mut self) -> Result<(), String> {
        let stream = StreamId(self.random.below(3));
        match self.random.below(10) {
            0 => self.device.issue(stream),
            1 => self.device.sync(stream),
            2 if !self.live.is_empty() => {
                let addr = *self.random.pick(&self.live);
                self.allocator.record_stream(addr, stream).map_err(|error| error.to_string())?;
            }
            3 if self.own.len() < 6 => {
                let size_bytes = *self.random.pick(&[64 * KIB, 3 * MIB / 2, 2 * MIB]);
                match self.allocator.malloc(size_bytes, stream) {
                    Ok(addr) => self.own.push(addr),
                    Err(Error::OutOfMemory(_)) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            4 if !self.own.is_empty() => {
                let addr = self.own.swap_remove(self.random.below(self.own.len() as u64) as usize);
                self.allocator.free(addr).map_err(|error| error.to_string())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Frees everything; then nothing may be left, on whichever way this ended.
    fn clean_up(mut self) -> Result<Report, String> {
        if self.report.divergence.is_some() || self.report.loss.is_some() {
            // The ranks have different segments to give back, so that nobody waits for anybody.
            self.gather.leave();
        }
        self.allocator.check().map_err(|unsound| self.blame(&unsound.to_string()))?;
        for addr in self.live.drain(..).chain(self.own.drain(..)) {
            self.allocator.free(addr).map_err(|error| error.to_string())?;
        }
        let id = self.pool.id();
        self.report.segments = self.pool.source_counts().map_or(0, |counts| counts.made);
        let Rank { plan, number, device, allocator, pool, report, .. } = self;
        let blame = |words: String| format!("seed {}, rank {number}: {words}", plan.seed);
        drop(pool);
        allocator.empty_cache().map_err(|error| blame(error.to_string()))?;
        allocator.check().map_err(|unsound| blame(unsound.to_string()))?;
        if allocator.pool_uses(id).is_some() || device.used_bytes() != 0 {
            return Err(blame(format!("{} bytes were never given back", device.used_bytes())));
        }
        Ok(report)
    }
}

/// What an error of a request or a trim means for the rank.
fn sort(error: &Error) -> End {
    match error {
        Error::Source { error: DeviceError::Other { code: COMMONS_CODE, text }, .. } => {
            let is_loss = text.ends_with("is gone") || text.contains("did not come");
            if is_loss { End::Loss(text.clone()) } else { End::Unequal }
        }
        error => End::Wrong(error.to_string()),
    }
}
