//! Ranks: the recordings of one program's many processes, read at once on all cores. Of each only
//! its figures are kept, so that a thousand of them take no more memory than as many as there are
//! cores.

mod apart;
mod files;
mod odd;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use larder_core::Policy;
use larder_core::config::Config;

use crate::crew;
use crate::holdings::{Holdings, Place};
use crate::question::{Posed, Question};
use crate::replay::{Outcome, Replay, Setup};
use crate::settings::with_entry;
use crate::watch::{Extent, Watch, Watched};
use crate::workload::Workload;

pub use apart::Stage;
pub use files::{Rank, files, is_many};
pub use odd::{Odd, Since};

/// What came of a rank with one of the settings that all are tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// How many requests failed.
    pub ooms: u64,
    /// How often the cache was given back to try again.
    pub retries: u64,
    /// The most that was held at once.
    pub peak_reserved_bytes: u64,
    /// The most that was in use at once.
    pub peak_active_bytes: u64,
}

/// The figures of a rank.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How many operations it has.
    pub operations: u64,
    /// What came of it as it was recorded.
    pub as_it_is: Trial,
    /// What it may have.
    pub allowed_bytes: u64,
    /// What the program itself asked for and had at once, at most.
    pub asked_bytes: u64,
    /// With each of the tried settings, in their order.
    pub trials: Vec<Trial>,
    /// What each place held at the peak of what was asked for, by the place's mark.
    pub then: HashMap<u64, u64>,
    /// How many requests each place makes, and of how many bytes in all, by the place's mark.
    pub asked: HashMap<u64, (u64, u64)>,
}

/// Something that all ranks are tried with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idea {
    /// What to set, as entries of a settings text; none for the settings as they are.
    pub conf: Option<String>,
    /// Who decides; as it was recorded where none is named.
    pub policy: Option<Policy>,
    /// What to do, in words that follow "with".
    pub words: String,
}

/// All ranks of a program, and what there is to say of them together.
#[derive(Debug)]
pub struct Ranks {
    /// The ranks, by their numbers.
    pub ranks: Vec<(Rank, Result<Figures, String>)>,
    /// What they were tried with.
    pub ideas: Vec<Idea>,
    /// The groups of those that have one shape, as the stages of a pipeline have, with those that
    /// belong to each, by their places in `ranks`.
    pub stages: Vec<Stage>,
    /// Those that differ from the rest of their stage, the furthest first.
    pub odd: Vec<Odd>,
    /// What is known of the places, by their marks.
    pub places: HashMap<u64, Vec<String>>,
}

/// With what all ranks are tried.
pub fn ideas() -> Vec<Idea> {
    let policy = |policy, words: &str| {
        let words = words.to_owned();
        Idea { conf: None, policy: Some(policy), words }
    };
    let expandable = "expandable_segments:True".to_owned();
    vec![
        Idea { conf: Some(expandable.clone()), policy: None, words: expandable },
        policy(Policy::tight(), "Larder's policy tight"),
    ]
}

impl Ranks {
    /// Reads and replays them all, as many at a time as there are cores.
    pub fn of(
        ranks: Vec<Rank>,
        device: u32,
        question: &Question,
        ideas: Vec<Idea>,
        watch: &dyn Watch,
    ) -> Ranks {
        let places = Mutex::new(HashMap::new());
        let mut reading = Watched::begin(watch, "ranks", Extent::Steps(ranks.len() as u64));
        let read = |rank: &Rank| figures(&rank.file, device, question, &ideas, &places);
        let found = crew::each(&ranks, read, || reading.step());
        drop(reading);
        let ranks: Vec<_> = ranks.into_iter().zip(found).collect();
        let places = places.into_inner().unwrap_or_default();
        let stages = apart::stages(&ranks);
        let odd = odd::odd(&ranks, &stages, device, watch);
        Ranks { ranks, ideas, stages, odd, places }
    }

    /// The figures of those that could be read, each with its place.
    pub fn read(&self) -> impl Iterator<Item = (usize, &Rank, &Figures)> {
        let all = self.ranks.iter().enumerate();
        all.filter_map(|(at, (rank, found))| Some((at, rank, found.as_ref().ok()?)))
    }

    /// The one that has most in use at its peak, of those that fail if any does.
    pub fn worst(&self) -> Option<usize> {
        let key = |figures: &Figures| {
            let trial = figures.as_it_is;
            (trial.ooms > 0, trial.peak_active_bytes.max(figures.asked_bytes))
        };
        self.read()
            .max_by_key(|(at, _, figures)| (key(figures), usize::MAX - at))
            .map(|(at, ..)| at)
    }

    /// In which stage a rank is.
    pub fn stage_of(&self, at: usize) -> Option<usize> {
        self.stages.iter().position(|stage| stage.members.contains(&at))
    }

    /// How many ranks run with an idea, and the most that any of them holds with it.
    pub fn with(&self, idea: usize) -> (usize, u64) {
        let trials: Vec<&Trial> =
            self.read().filter_map(|(_, _, figures)| figures.trials.get(idea)).collect();
        let most = trials.iter().map(|trial| trial.peak_reserved_bytes).max().unwrap_or(0);
        (trials.iter().filter(|trial| trial.ooms == 0).count(), most)
    }

    /// The idea with which most ranks run, and then the one that holds least, if it is better than
    /// nothing.
    pub fn best(&self) -> Option<usize> {
        let all = self.read().count();
        let running = self.read().filter(|(_, _, figures)| figures.as_it_is.ooms == 0).count();
        let held = self.read().map(|(_, _, figures)| figures.as_it_is.peak_reserved_bytes).max();
        let best = (0..self.ideas.len())
            .map(|idea| (idea, self.with(idea)))
            .min_by_key(|&(_, (runs, most))| (all - runs, most));
        let is_better = |&(_, (runs, most)): &(usize, (usize, u64))| {
            runs > running || runs == running && most < held.unwrap_or(0)
        };
        best.filter(is_better).map(|(idea, _)| idea)
    }
}

/// The middle one of some numbers.
pub fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

fn figures(
    file: &Path,
    device: u32,
    question: &Question,
    ideas: &[Idea],
    places: &Mutex<HashMap<u64, Vec<String>>>,
) -> Result<Figures, String> {
    let (workload, snapshot) = Workload::load_whole(file, device, &crate::watch::Unwatched)
        .map_err(|error| error.to_string())?;
    let named = |what: String| format!("{}: {what}", file.display());
    if workload.ops.is_empty() {
        return Err(named("there is no operation in it".to_owned()));
    }
    let posed = question.pose(&workload).map_err(|error| named(error.to_string()))?;
    let Posed { setup, settings } = posed;
    settings.check_known(&setup.policy).map_err(|error| named(error.to_string()))?;
    let trial = |setup: &Setup| -> Result<Trial, String> {
        let outcome = Replay::new(&workload, setup).run(&workload.ops, &mut ());
        outcome.map(|outcome| Trial::of(&outcome)).map_err(|error| named(error.to_string()))
    };
    let as_it_is = trial(&setup)?;
    let tried = ideas.iter().map(|idea| {
        let entry = idea.conf.as_deref().filter(|conf| !conf.is_empty());
        let conf = match entry {
            Some(entry) => with_entry(&settings.conf, entry),
            None => settings.conf.clone(),
        };
        let config = Config::parse(&conf).map_err(|error| named(error.to_string()))?;
        let policy = idea.policy.clone().unwrap_or_else(|| setup.policy.clone());
        trial(&Setup { policy, config, ..setup.clone() })
    });
    let trials = tried.collect::<Result<Vec<_>, _>>()?;
    let holdings = Holdings::by_stack(&workload, snapshot.as_deref().map(|taken| (taken, device)));
    let (most, asked) = (holdings.most(&workload), holdings.asked(&workload));
    if let Ok(mut known) = places.lock() {
        for Place { mark, words, .. } in &holdings.places {
            known.entry(*mark).or_insert_with(|| words.clone());
        }
    }
    let marks = || holdings.places.iter().map(|place| place.mark);
    let then = marks().zip(most.then).filter(|&(_, bytes)| bytes > 0).collect();
    Ok(Figures {
        operations: workload.ops.len() as u64,
        as_it_is,
        allowed_bytes: setup.allowed_bytes(),
        asked_bytes: most.all.0,
        trials,
        then,
        asked: marks().zip(asked).collect(),
    })
}

impl Trial {
    fn of(outcome: &Outcome) -> Trial {
        let stats = &outcome.stats;
        let [reserved, active] =
            [&stats.reserved_bytes, &stats.active_bytes].map(|bytes| bytes.all.peak.max(0) as u64);
        Trial {
            ooms: outcome.ooms,
            retries: stats.num_alloc_retries,
            peak_reserved_bytes: reserved,
            peak_active_bytes: active,
        }
    }
}

/// A rank by the file that it was read from.
impl Rank {
    /// With the number that its name has, if it has one.
    pub fn new(file: PathBuf) -> Rank {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        let number = files::number_in(&name);
        Rank { file, name, number }
    }
}
