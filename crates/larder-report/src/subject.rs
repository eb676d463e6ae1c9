//! Subjects: a file, replayed, and all that there is to say of the run.

use std::path::Path;

use larder_study::compare::{self, Row};
use larder_study::file::{Contents, LoadError};
use larder_study::question::{self, PoseError, Posed};
use larder_study::recording::Recording;
use larder_study::replay::{ReplayError, Setup};
use larder_study::report::answer::{Commands, answer};
use larder_study::report::host_memory::HostMemory;
use larder_study::report::verdict;
use larder_study::settings::Chosen;
use larder_study::timeline::{Origins, Timeline};
use larder_study::watch::Watch;
use larder_study::workload::Workload;
use serde_json::Value;

/// How a file is to be run.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// On what, by whom and with which settings.
    pub run: question::Question,
    /// Which device's trace is taken from a snapshot; without it the first. A script has none.
    pub device: Option<u32>,
    /// Whether other settings are compared too, which takes a replay for each.
    pub compares: bool,
}

/// A file that was replayed.
pub struct Subject {
    /// The name that the page shows.
    pub name: String,
    pub(crate) workload: Workload,
    pub(crate) setup: Setup,
    pub(crate) settings: Chosen,
    pub(crate) timeline: Timeline,
    pub(crate) origins: Origins,
    pub(crate) compared: Vec<(Setup, Vec<Row>)>,
    pub(crate) answer: String,
    /// What stands above all charts; null where nothing but the run itself was asked for.
    pub(crate) verdict: Value,
}

/// Why there is no page; one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum SubjectError {
    /// The file cannot be taken.
    Load(LoadError),
    /// The replay could not go on.
    Replay(String),
}

impl std::fmt::Display for SubjectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SubjectError::Load(error) => error.fmt(f),
            SubjectError::Replay(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for SubjectError {}

impl From<LoadError> for SubjectError {
    fn from(error: LoadError) -> SubjectError {
        SubjectError::Load(error)
    }
}

impl Subject {
    /// Reads a file, runs it, and runs it under other settings where that is asked for.
    pub fn of(
        path: &Path,
        question: &Question,
        watch: &dyn Watch,
    ) -> Result<Subject, SubjectError> {
        let file = path.display();
        let stopped = |error: ReplayError| SubjectError::Replay(format!("{file}: {error}"));
        let posed = |error: PoseError| SubjectError::Replay(format!("{file}: {error}"));
        let refused = |what: String| SubjectError::Replay(format!("{file}: {what}"));
        let device = question.device.unwrap_or(0);
        let (workload, origins, host) = match Contents::load(path, watch)? {
            Contents::Script(_) if question.device.is_some() => {
                return Err(refused("--device is for a snapshot, and this is a script".to_owned()));
            }
            Contents::Script(ops) => {
                (Workload { ops, ..Workload::default() }, Origins::default(), None)
            }
            Contents::Snapshot(snapshot) => {
                let recording = Recording::from_snapshot(&snapshot, device)
                    .map_err(|error| refused(error.to_string()))?;
                let origins = Origins::of(&snapshot, device, &recording);
                (Workload::from(recording), origins, HostMemory::of(&snapshot))
            }
        };
        if workload.ops.is_empty() {
            return Err(refused("there is no operation in it".to_owned()));
        }
        let Posed { setup, settings } = question.run.pose(&workload).map_err(posed)?;
        settings.check_known(&setup.policy).map_err(|error| refused(error.to_string()))?;
        let timeline = Timeline::of(&workload, &setup, watch).map_err(stopped)?;
        let compared = if question.compares {
            let policy = question.run.policy.is_some().then_some(&setup.policy);
            compare::usual(&workload, &setup, policy, watch).map_err(stopped)?
        } else {
            Vec::new()
        };
        let verdict = if question.compares {
            verdict::verdict(&workload, &setup, watch).map_err(stopped)?
        } else {
            Value::Null
        };
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut answer =
            answer(&Commands::of(&path.to_string_lossy()), &compared).trim().to_owned();
        // The host's memory beside the card's.
        if let Some(host) = host {
            let gap = if answer.is_empty() { "" } else { " " };
            answer.push_str(&format!("{gap}{host}"));
        }
        Ok(Subject {
            name,
            workload,
            setup,
            settings,
            timeline,
            origins,
            compared,
            answer,
            verdict,
        })
    }
}
