//! Many plans, one after the other, with ranks that are threads; and what has to come of each.

use std::ops::AddAssign;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::cluster::meeting::Meeting;
use crate::cluster::plan::{Plan, Planted, Trouble, Wish};
use crate::cluster::rank::{Death, Report, run_rank};
use crate::cluster::{Failure, Gather};

/// How long ranks wait for one another: a run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was seen over many plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Plans that were carried out.
    pub sequences: u64,
    /// Blocks that were placed, counted once for all ranks.
    pub blocks: u64,
    /// Requests that no rank could be served.
    pub refused: u64,
    /// Segments that were made, counted once for all ranks.
    pub segments: u64,
    /// Times that all ranks agreed.
    pub seals: u64,
    /// Differences that every rank was told of, at exactly the call where they were planted.
    pub named: u64,
    /// Deaths that every other rank was told of.
    pub deaths: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.sequences += other.sequences;
        self.blocks += other.blocks;
        self.refused += other.refused;
        self.segments += other.segments;
        self.seals += other.seals;
        self.named += other.named;
        self.deaths += other.deaths;
    }
}

/// Carries out a plan with ranks that are threads, and judges what came of it.
pub fn run_plan(plan: &Plan) -> Result<Tally, Failure> {
    let meeting = Meeting::new(plan.ranks, PATIENCE);
    let reports: Vec<Result<Report, Failure>> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..plan.ranks)
            .map(|rank| {
                let seat: Arc<dyn Gather> = Arc::new(meeting.seat(rank));
                scope.spawn(move || run_rank(plan, rank, seat, Death::Leave, None))
            })
            .collect();
        let join = |rank: thread::ScopedJoinHandle<'_, _>| {
            rank.join()
                .unwrap_or_else(|_| Err(format!("seed {}: a rank panicked", plan.seed).into()))
        };
        ranks.into_iter().map(join).collect()
    });
    let reports = reports.into_iter().collect::<Result<Vec<Report>, Failure>>()?;
    judge(plan, &reports).map_err(|failure| format!("seed {}: {failure}", plan.seed).into())
}

/// Says whether the ranks' reports are what the plan has to lead to.
pub fn judge(plan: &Plan, reports: &[Report]) -> Result<Tally, Failure> {
    let first = reports.first().ok_or("there is no rank")?;
    let mut tally = Tally {
        sequences: 1,
        blocks: first.positions.len() as u64,
        refused: first.refused,
        segments: first.segments,
        seals: first.seals,
        ..Tally::default()
    };
    match plan.planted {
        None | Some(Planted { trouble: Trouble::Late, .. }) => expect_equal(reports)?,
        Some(Planted { trouble: Trouble::Dies, rank, .. }) => {
            if reports.iter().all(|report| report.loss.is_none()) {
                // It was to die at a segment that nobody needed.
                expect_equal(reports)?;
            } else {
                expect_loss(reports, rank)?;
                tally.deaths = 1;
            }
        }
        Some(Planted { rank, .. }) => {
            expect_named(reports, rank)?;
            tally.named = 1;
        }
    }
    Ok(tally)
}

fn expect_equal(reports: &[Report]) -> Result<(), String> {
    for (rank, report) in reports.iter().enumerate() {
        if report.divergence.is_some() || report.loss.is_some() {
            return Err(format!("rank {rank} ended early with nothing planted: {report:?}"));
        }
        let differs =
            report.positions.iter().zip(&reports[0].positions).find(|(here, there)| here != there);
        if let Some((here, there)) = differs {
            return Err(format!("rank {rank} has a block at {here:?}, rank 0 at {there:?}"));
        }
        if report.positions.len() != reports[0].positions.len() {
            return Err(format!("rank {rank} has other blocks than rank 0"));
        }
    }
    Ok(())
}

fn expect_loss(reports: &[Report], lost: usize) -> Result<(), String> {
    for (rank, report) in reports.iter().enumerate().filter(|&(rank, _)| rank != lost) {
        let words = report.loss.as_deref().unwrap_or("nothing");
        if !words.contains(&format!("rank {lost} ")) {
            return Err(format!("rank {lost} died, and rank {rank} was told: {words}"));
        }
    }
    Ok(())
}

fn expect_named(reports: &[Report], odd: usize) -> Result<(), String> {
    let planted = reports[odd].planted_call.ok_or("the difference was never made")?;
    for (rank, report) in reports.iter().enumerate() {
        let Some(divergence) = &report.divergence else {
            return Err(format!("rank {rank} was not told of the difference at call {planted}"));
        };
        if divergence.call != Some(planted) {
            return Err(format!("call {planted} differs, and rank {rank} was told: {divergence}"));
        }
        if Some(divergence) != reports[0].divergence.as_ref() {
            return Err(format!("rank {rank} was told otherwise than rank 0"));
        }
        if reports.len() > 2 && divergence.odd_ranks() != [odd] {
            return Err(format!("rank {odd} differs, and not who was named: {divergence}"));
        }
    }
    Ok(())
}

/// Carries out the plans of so many seeds, from the first on. `done` is called after each.
pub fn run_many(
    seed: u64,
    sequences: u64,
    ranks: usize,
    wish: Wish,
    mut done: impl FnMut(u64),
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for number in 0..sequences {
        tally += run_plan(&Plan::new(seed.wrapping_add(number), ranks, wish))?;
        done(number + 1);
    }
    Ok(tally)
}
